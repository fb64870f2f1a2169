// Products of many rows on Hopper, grouped or not, all of a call in one launch: tiles of 128
// entries x kN output features, in blocks that stay and take one tile after the other. Two warps
// fetch into a ring of stages, and go on with the next tile while two warpgroups, which multiply,
// store the last one's outputs.
//
// Activations come row by row, from wherever an entry's row is, so that nobody has to gather them
// first.
#include <cuda.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <vector>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/linear/bulk.cuh"
#include "kernels/cuda/linear/bulk_outputs.cuh"
#include "kernels/cuda/linear/entries.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kStep = 64;      // features of a stage: 128 bytes of a row
constexpr int kEntries = 128;  // of a block's tile
constexpr int kFetchingWarps = 2;
constexpr int kThreads = (kStoringWarps + kFetchingWarps) * kWarp;

struct LinearMaps {
  CUtensorMap weights[kMaxBulkGroups];
};

template <int kN, int kStages>
struct BulkShape {
  static constexpr int kActivationBytes = kEntries * kStep * 2;
  static constexpr int kWeightBytes = kN * kStep * 2;
  static constexpr int kStageBytes = kActivationBytes + kWeightBytes;
  static constexpr int kOutputAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kOutputAt + kStoringWarps * kOutputBytes;
  // A kilobyte to align the ring in.
  static constexpr int kSharedBytes = kBarriersAt + 2 * kStages * 8 + 1024;
};

// The tiles of a launch: those of each group of each product in turn, of a group those of the same
// entries side by side.
struct TileList {
  int first[kMaxBulkGroups];  // tile of each group; INT_MAX past the last group
  int product[kMaxBulkGroups];
  int begin[kMaxBulkGroups], end[kMaxBulkGroups];  // entries
  int count;                                       // of tiles
};
static_assert(kMaxBulkGroups == kWarp);

struct Tile {
  int product, group, begin, end, first_output;
};

// Output features of a product's tile: gate and up have a half each of a tile's weights.
template <int kN>
__device__ inline int TileOutputs(const LinearProduct& p) {
  return p.gated ? kN / 2 : kN;
}

// One warp: a lane for each group.
template <int kN>
__device__ inline void ListTiles(const LinearBatch& batch, TileList* list) {
  const int lane = threadIdx.x % kWarp;
  int n = 0;
  while (n + 1 < batch.count && lane >= batch.products[n + 1].first_weight) ++n;
  const LinearProduct& p = batch.products[n];
  const int group = lane - p.first_weight;
  int tiles = 0;
  if (group < p.groups) {
    list->product[lane] = n;
    const int begin = GroupBegin(p, group), end = GroupEnd(p, group);
    list->begin[lane] = begin;
    list->end[lane] = end;
    tiles = (end - begin + kEntries - 1) / kEntries *
            ((p.out_features + TileOutputs<kN>(p) - 1) / TileOutputs<kN>(p));
  }
  int sum = tiles;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int before = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += before;
  }
  list->first[lane] = tiles > 0 ? sum - tiles : INT_MAX;
  if (lane == kWarp - 1) list->count = sum;
}

// Called by whole warps.
template <int kN>
__device__ inline Tile FindTile(const LinearBatch& batch, const TileList& list, int tile) {
  // The last group that has tiles and begins at or before it.
  const int lane = threadIdx.x % kWarp;
  const int at = 31 - __clz(__ballot_sync(kAllLanes, list.first[lane] <= tile));
  const LinearProduct& p = batch.products[list.product[at]];
  const int out_tiles = (p.out_features + TileOutputs<kN>(p) - 1) / TileOutputs<kN>(p);
  const int n = tile - list.first[at];
  return {list.product[at], at - p.first_weight, list.begin[at] + n / out_tiles * kEntries,
          list.end[at], n % out_tiles * TileOutputs<kN>(p)};
}

template <typename T, int kN, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    Bulk(const __grid_constant__ LinearBatch batch, const __grid_constant__ LinearMaps maps,
         int terms) {
#if __CUDA_ARCH__ >= 900
  using S = BulkShape<kN, kStages>;
  extern __shared__ unsigned char unaligned[];
  __shared__ TileList list;
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const uint32_t ring = SharedAddress(shared);
  auto* const full = reinterpret_cast<uint64_t*>(shared + S::kBarriersAt);
  uint64_t* const empty = full + kStages;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  LetNextKernelStart();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(full + i, 1 + kFetchingWarps * kWarp);
      InitBarrier(empty + i, kStoringWarps);
    }
    FenceBulkBarriers();
  }
  if (threadIdx.x / kWarp == kStoringWarps && lane < batch.weight_count) {
    FetchMap(&maps.weights[lane]);
  }
  WaitForPreviousKernel();
  if (warp == 0) ListTiles<kN>(batch, &list);
  __syncthreads();

  const int first_tile = blockIdx.x, stride = gridDim.x;
  RingPlace<kStages> place;
  if (warp >= kStoringWarps) {
    // A thread fetches the same piece of every kRowsAtOnce-th row.
    constexpr int kRowsAtOnce = kFetchingWarps * kWarp / 8, kRows = kEntries / kRowsAtOnce;
    static_assert(kRowsAtOnce % 8 == 0);  // further rows have their pieces in the same order
    const int thread = threadIdx.x - kStoringWarps * kWarp;
    const int piece = thread % 8, row = thread / 8;
    const uint32_t own = row * 128 + (piece ^ (row % 8)) * 16;
    for (int t = first_tile; t < list.count; t += stride) {
      const Tile tile = FindTile<kN>(batch, list, t);
      const LinearProduct& p = batch.products[tile.product];
      const T* rows[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int e = min(tile.begin + row + j * kRowsAtOnce, tile.end - 1);
        rows[j] = static_cast<const T*>(p.x) + RowOfEntry(p, e) * p.in_features + piece * 8;
      }
      for (int term = terms - 1; term >= 0; --term) {
        const int64_t term_begin = int64_t{term} * p.rows * p.in_features;
        for (int k = 0; k < p.in_features; k += kStep) {
          BulkWait(empty + place.at, place.phase ^ 1);
          const uint32_t stage = ring + place.at * S::kStageBytes;
          if (thread == 0) {
            uint64_t* const barrier = full + place.at;
            ArriveAndExpect(barrier, S::kWeightBytes);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const CUtensorMap* const map =
                  &maps.weights[p.first_weight + (p.gated ? half : tile.group)];
              const int from = tile.first_output + (p.gated ? 0 : half * (kN / 2));
              const uint32_t to = stage + S::kActivationBytes + half * (S::kWeightBytes / 2);
              CopyBox(map, to, barrier, k, from);
            }
          }
          const bool valid = k + piece * 8 < p.in_features;
          const int64_t offset = valid ? term_begin + k : 0;
#pragma unroll
          for (int j = 0; j < kRows; ++j) {
            CopyAsync16(stage + own + j * kRowsAtOnce * 128, rows[j] + offset, valid);
          }
          ArriveAfterCopies(full + place.at);
          place.Next();
        }
      }
    }
  } else {
    const int warpgroup = warp / 4;
    const auto release = [&](int slot) {
      if (lane == 0) Arrive(empty + slot);
    };
    for (int t = first_tile; t < list.count; t += stride) {
      const Tile tile = FindTile<kN>(batch, list, t);
      const LinearProduct& p = batch.products[tile.product];
      const int steps = (p.in_features + kStep - 1) / kStep * terms;
      float sums[kN / 2] = {};
      int last = 0;
      for (int i = 0; i < steps; ++i) {
        BulkWait(full + place.at, place.phase);
        PublishToProducts();  // what the fetching warps' own copies have brought
        const uint32_t stage = ring + place.at * S::kStageBytes;
        uint64_t x = DescribeMatrix(stage + warpgroup * 64 * kStep * 2);
        uint64_t w = DescribeMatrix(stage + S::kActivationBytes);
        BeginProducts();
#pragma unroll
        for (int k = 0; k < kStep / 16; ++k) {
          WarpgroupProduct<kN>::Add(sums, x, w, T());
          x += kSixteenColumns;
          w += kSixteenColumns;
        }
        CommitProducts();
        WaitProducts<1>();
        if (i > 0) release(last);
        last = place.at;
        place.Next();
      }
      WaitProducts<0>();
      release(last);
      StoreOutputs<kN>(p, tile.group, tile.begin + warp * 16, tile.end, tile.first_output, sums,
                       shared + S::kOutputAt + warp * kOutputBytes);
    }
  }
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

template <int kN>
int64_t TileBound(const LinearArgs& args) {
  const int64_t outputs = IsGated(args) ? kN / 2 : kN;
  return (args.weights[0].out_features + outputs - 1) / outputs * EntryTileBound(args, kEntries);
}

template <typename T, int kN, int kStages>
void Launch(Device& device, LinearProducts products, DType dtype, int terms,
            std::span<const void* const> rounded) {
  using S = BulkShape<kN, kStages>;
  while (!products.empty()) {
    int tiles = 0;
    LinearBatch batch = TakeBatch(&products, &tiles, TileBound<kN>, kMaxBulkGroups);
    LinearMaps maps;
    for (int i = 0; i < batch.count; ++i) {
      LinearProduct& p = batch.products[i];
      p.x = rounded[i];
      for (int w = p.first_weight; w < p.first_weight + (p.gated ? 2 : p.groups); ++w) {
        Encode(device, batch.weights[w], dtype, p.out_features, p.in_features, kN / 2,
               &maps.weights[w]);
      }
    }
    rounded = rounded.subspan(batch.count);
    LaunchOverlapping(device, "Bulk", Bulk<T, kN, kStages>,
                      std::min(tiles, device.multiprocessors()), kThreads, S::kSharedBytes, 1,
                      batch, maps, terms);
  }
}

template <typename T>
void LaunchFor(Device& device, LinearProducts products, DType dtype, int terms,
               std::span<const void* const> rounded, int outputs) {
  if (outputs == kBulkWide) return Launch<T, 256, 4>(device, products, dtype, terms, rounded);
  Launch<T, 128, 6>(device, products, dtype, terms, rounded);
}

// What takes fewer rounds of all multiprocessors; one of narrow tiles takes some 0.7 of the other's
// time.
int ChooseOutputs(const Device& device, LinearProducts products) {
  int64_t narrow = 0, wide = 0;
  for (const LinearArgs* args : products) {
    narrow += TileBound<kBulkNarrow>(*args);
    wide += TileBound<kBulkWide>(*args);
  }
  const auto rounds = [&](int64_t tiles) {
    return (tiles + device.multiprocessors() - 1) / device.multiprocessors();
  };
  return 7 * rounds(narrow) < 10 * rounds(wide) ? kBulkNarrow : kBulkWide;
}

}  // namespace

void LinearBulk(Device& device, LinearProducts products, DType dtype, int terms,
                std::span<const void* const> rounded, int tile_outputs) {
  if (products.empty()) return;
  if (tile_outputs == 0) tile_outputs = ChooseOutputs(device, products);
  if (dtype == DType::kBF16) {
    return LaunchFor<__nv_bfloat16>(device, products, dtype, terms, rounded, tile_outputs);
  }
  LaunchFor<__half>(device, products, dtype, terms, rounded, tile_outputs);
}

}  // namespace mneme::cuda::linear
