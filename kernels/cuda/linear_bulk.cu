// Products of many rows on Hopper, grouped or not, all of a call in one launch: tiles of 128 output
// features x kN entries. One warp has the operands copied in bulk into a ring of stages, two
// warpgroups multiply. Two blocks of a cluster share their entries: each fetches half for both.
//
// Activations come in the order of entries, so that those of a tile are a box. A tile may reach
// into the next group's entries; what comes out for those is not stored.
#include <cooperative_groups.h>
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/linear_bulk.cuh"
#include "kernels/cuda/linear_device.cuh"
#include "kernels/cuda/linear_mma.cuh"
#include "kernels/cuda/linear_wgmma.cuh"

namespace mneme::cuda {
namespace {

constexpr int kStep = 64;  // features of a stage: 128 bytes of a row
constexpr int kOutputs = 128;
constexpr int kCluster = 2;
constexpr int kConsumerWarps = 8;
constexpr int kThreads = (kConsumerWarps + 1) * kWarp;

struct LinearMaps {
  CUtensorMap x[kMaxLinearProducts];
  CUtensorMap weights[kMaxBulkGroups];
};

template <int kN, int kStages>
struct BulkShape {
  static constexpr int kWeightBytes = kOutputs * kStep * 2;
  static constexpr int kStageBytes = kWeightBytes + kN * kStep * 2;
  // A kilobyte to align the ring in, and the barriers.
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024 + 256;
};

template <typename T, int kN, int kStages>
__global__ void __launch_bounds__(kThreads, kN == 256 ? 1 : 2)
    Bulk(const __grid_constant__ LinearBatch batch, const __grid_constant__ LinearMaps maps,
         int terms) {
#if __CUDA_ARCH__ >= 900
  using S = BulkShape<kN, kStages>;
  extern __shared__ unsigned char unaligned[];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const uint32_t ring = SharedAddress(shared);
  auto* const full = reinterpret_cast<uint64_t*>(shared + kStages * S::kStageBytes);
  uint64_t* const empty = full + kStages;

  LetNextKernelStart();
  const int rank = blockIdx.x % kCluster, unit = blockIdx.x / kCluster;
  const int product = ProductOfBlock(batch, unit);
  const LinearProduct& p = batch.products[product];
  const int out_pairs = (p.out_features + kCluster * kOutputs - 1) / (kCluster * kOutputs);
  const int first = ((unit - p.first_block) % out_pairs * kCluster + rank) * kOutputs;
  WaitForPreviousKernel();
  EntryTile tile;
  // Both blocks of a cluster leave here.
  if (!FindEntryTile(p, (unit - p.first_block) / out_pairs, kN, &tile)) return;

  const auto blocks = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(full + i, 1);
      InitBarrier(empty + i, kCluster * kConsumerWarps);
    }
    FenceBulkBarriers();
  }
  blocks.sync();

  const int steps_per_term = (p.in_features + kStep - 1) / kStep;
  const int steps = steps_per_term * terms;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (warp == kConsumerWarps) {
    if (lane == 0) {
      const CUtensorMap* const x_map = &maps.x[product];
      const CUtensorMap* const w_map = &maps.weights[p.first_weight + tile.group];
      int k = 0, row = (terms - 1) * p.entries + tile.begin + rank * (kN / kCluster);
      for (int i = 0; i < steps; ++i) {
        const int slot = i % kStages;
        const uint32_t stage = ring + slot * S::kStageBytes;
        if (i >= kStages) BulkWait(empty + slot, (i / kStages - 1) % 2);
        ArriveAndExpect(full + slot, S::kStageBytes);
        CopyBox(w_map, stage, full + slot, k, first);
        CopyBoxToAll(x_map, stage + S::kWeightBytes + rank * (kN / kCluster) * kStep * 2,
                     full + slot, k, row, (1 << kCluster) - 1);
        k += kStep;
        if (k >= p.in_features) {
          k = 0;
          row -= p.entries;
        }
      }
    }
    __syncwarp();
  } else {
    const int warpgroup = warp / 4;
    float sums[kN / 2] = {};
    for (int i = 0; i < steps; ++i) {
      const int slot = i % kStages;
      BulkWait(full + slot, i / kStages % 2);
      const uint32_t stage = ring + slot * S::kStageBytes;
      uint64_t w = DescribeMatrix(stage + warpgroup * 64 * kStep * 2);
      uint64_t x = DescribeMatrix(stage + S::kWeightBytes);
      BeginProducts();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) {
        WarpgroupProduct<kN>::Add(sums, w, x, T());
        w += kSixteenColumns;
        x += kSixteenColumns;
      }
      CommitProducts();
      WaitProducts<1>();
      if (i > 0 && lane < kCluster) ArriveAt(empty + (i - 1) % kStages, lane);
    }
    WaitProducts<0>();

    const int count = tile.end - tile.begin;
    const int output = first + warp * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int e = n * 8 + lane % 4 * 2 + c % 2, o = output + c / 2 * 8;
        if (e >= count || o >= p.out_features) continue;
        float* y = p.y + int64_t{tile.begin + e} * p.out_features + o;
        *y = p.accumulate ? *y + sums[4 * n + c] : sums[4 * n + c];
      }
    }
  }
  blocks.sync();  // the other block may still copy to this one
#else
  (void)terms;
#endif
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function; the program is not linked with the driver, so that it runs without one.
EncodeTiled FindEncodeTiled(Device& device) {
  static const EncodeTiled found = [&] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    device.Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                  cudaEnableDefault, &result),
                 "cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return found;
}

void Encode(Device& device, const void* matrix, DType dtype, int64_t rows, int64_t columns,
            int box_rows, CUtensorMap* map) {
  const EncodeTiled encode = FindEncodeTiled(device);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[] = {kStep, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t strides[] = {1, 1};
  const CUresult result =
      encode == nullptr
          ? CUDA_ERROR_NOT_FOUND
          : encode(map,
                   dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                   2, const_cast<void*>(matrix), sizes, pitch, box, strides,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) device.Check(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
}

template <typename T, int kN, int kStages>
void Launch(Device& device, LinearProducts products, DType dtype, int terms,
            std::span<const void* const> gathered) {
  using S = BulkShape<kN, kStages>;
  while (!products.empty()) {
    int units = 0;
    const LinearProducts taken = products;
    LinearBatch batch = TakeBatch(
        &products, &units,
        [](const LinearArgs& args) {
          const int64_t out = args.weights[0].out_features;
          return (out + kCluster * kOutputs - 1) / (kCluster * kOutputs) * EntryTileBound(args, kN);
        },
        kMaxBulkGroups);
    LinearMaps maps;
    for (int i = 0; i < batch.count; ++i) {
      const LinearProduct& p = batch.products[i];
      Encode(device, gathered[i], dtype, int64_t{terms} * p.entries, p.in_features, kN / kCluster,
             &maps.x[i]);
      for (int g = 0; g < p.groups; ++g) {
        Encode(device, taken[i]->weights[g].data, dtype, p.out_features, p.in_features, kOutputs,
               &maps.weights[p.first_weight + g]);
      }
    }
    gathered = gathered.subspan(batch.count);
    LaunchOverlapping(device, "Bulk", Bulk<T, kN, kStages>, units * kCluster, kThreads,
                      S::kSharedBytes, kCluster, batch, maps, terms);
  }
}

}  // namespace

void LinearBulk(Device& device, LinearProducts products, DType dtype, int terms,
                std::span<const void* const> gathered, int tile_entries) {
  if (products.empty()) return;
  // Two blocks of the smaller tile share a multiprocessor: one stores while the other multiplies,
  // which counts where sums are short. The larger tile reads less.
  constexpr int kLongSum = 4096;
  int in_features = 0;
  for (const LinearArgs* args : products) {
    in_features = std::max(in_features, args->weights[0].in_features);
  }
  if (tile_entries == 0) tile_entries = terms == 1 && in_features < kLongSum ? 128 : 256;
  const bool wide = tile_entries == 256;
  if (dtype == DType::kBF16) {
    if (wide) return Launch<__nv_bfloat16, 256, 4>(device, products, dtype, terms, gathered);
    return Launch<__nv_bfloat16, 128, 3>(device, products, dtype, terms, gathered);
  }
  if (wide) return Launch<__half, 256, 4>(device, products, dtype, terms, gathered);
  Launch<__half, 128, 3>(device, products, dtype, terms, gathered);
}

}  // namespace mneme::cuda
