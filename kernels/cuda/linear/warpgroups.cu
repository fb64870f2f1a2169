// Products of a few to a few hundred rows on Hopper's tensor cores, grouped or not, all of a call
// in one launch. Tiles of output features (the tall operand) x entries; both stream through a ring
// of stages in shared memory, from where the tensor cores read them.
//
// For few rows the features are split over the blocks of a cluster, which add their sums up in
// order. With several terms a tile goes over its features once for each, the smallest term first.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/linear/entries.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kStep = 64;  // features of a stage: 128 bytes of a row
constexpr int kMaxCluster = 8;

// Entries kN, output features 64 kGroups.
template <int kN, int kGroups, int kStages>
struct TileShape {
  static constexpr int kThreads = kGroups * 128;
  static constexpr int kOutputs = kGroups * 64;
  static constexpr int kStageBytes = (kN + kOutputs) * kStep * 2;
  static constexpr int kSumPitch = kOutputs + 4;
  static constexpr int kSumBytes = kN * kSumPitch * 4;
  // A kilobyte to align the ring in.
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, kSumBytes) + 1024;
};

template <typename T, int kN, int kGroups, int kStages>
__global__ void __launch_bounds__(TileShape<kN, kGroups, kStages>::kThreads)
    Warpgroups(const __grid_constant__ LinearBatch batch, int terms, int cluster) {
#if __CUDA_ARCH__ >= 900
  using S = TileShape<kN, kGroups, kStages>;
  extern __shared__ unsigned char unaligned[];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const uint32_t ring = SharedAddress(shared);

  const int unit = blockIdx.x / cluster, rank = blockIdx.x % cluster;
  const LinearProduct& p = batch.products[ProductOfBlock(batch, unit)];
  const int out_tiles = (p.out_features + S::kOutputs - 1) / S::kOutputs;
  const int first = (unit - p.first_block) % out_tiles * S::kOutputs;
  const int entry_tile = (unit - p.first_block) / out_tiles;
  const int in_features = p.in_features;

  // Steps over all terms; [step, step_end) are this block's.
  const int steps_per_term = (in_features + kStep - 1) / kStep;
  const int all_steps = steps_per_term * terms;
  const int steps_per_block = (all_steps + cluster - 1) / cluster;
  const int step_begin = min(all_steps, rank * steps_per_block);
  const int steps = min(all_steps, step_begin + steps_per_block) - step_begin;

  // A thread fetches the same piece of every kRowsAtOnce-th row.
  constexpr int kRowsAtOnce = S::kThreads / 8;
  constexpr int kXRows = (kN + kRowsAtOnce - 1) / kRowsAtOnce, kWRows = S::kOutputs / kRowsAtOnce;
  const int piece = threadIdx.x % 8, row = threadIdx.x / 8;
  const uint32_t place = row * 128 + (piece ^ (row % 8)) * 16;
  static_assert(kRowsAtOnce % 8 == 0);  // further rows have their pieces in the same order

  const T* w_row = nullptr;
  const int64_t w_stride = int64_t{kRowsAtOnce} * in_features;
  const auto fetch_weights = [&](int i) {
    if (i >= steps) return;
    const int k = (step_begin + i) % steps_per_term * kStep;
    const bool valid = k + piece * 8 < in_features;
    const uint32_t stage = ring + i % kStages * S::kStageBytes + place;
#pragma unroll
    for (int j = 0; j < kWRows; ++j) {
      const bool inside = valid && first + row + j * kRowsAtOnce < p.out_features;
      CopyAsync16(stage + j * kRowsAtOnce * 128, inside ? w_row + j * w_stride + k : w_row, inside);
    }
  };
  const auto set_weights = [&](int group) {
    w_row = static_cast<const T*>(batch.weights[p.first_weight + group]) +
            int64_t{min(first + row, p.out_features - 1)} * in_features + piece * 8;
  };

  LetNextKernelStart();
  // The weights of an ungrouped product are known before the previous kernel has ended.
  const bool early = p.group_ends == nullptr;
  if (early) {
    set_weights(0);
#pragma unroll
    for (int i = 0; i < kStages - 2; ++i) fetch_weights(i);
  }
  WaitForPreviousKernel();
  EntryTile tile;
  // All blocks of a cluster leave here together.
  if (!FindEntryTile(p, entry_tile, kN, &tile)) return;
  if (!early) set_weights(tile.group);
  const int count = tile.end - tile.begin;

  const T* x_rows[kXRows];
#pragma unroll
  for (int j = 0; j < kXRows; ++j) {
    const int e = min(row + j * kRowsAtOnce, count - 1);
    x_rows[j] =
        static_cast<const T*>(p.x) + RowOfEntry(p, tile.begin + e) * in_features + piece * 8;
  }
  const int64_t term_stride = int64_t{p.rows} * in_features;
  const auto fetch_activations = [&](int i) {
    if (i < steps) {
      const int term = terms - 1 - (step_begin + i) / steps_per_term;
      const int k = (step_begin + i) % steps_per_term * kStep;
      const bool valid = k + piece * 8 < in_features;
      const int64_t offset = valid ? term * term_stride + k : 0;
      const uint32_t stage = ring + i % kStages * S::kStageBytes + S::kOutputs * kStep * 2 + place;
#pragma unroll
      for (int j = 0; j < kXRows; ++j) {
        const int r = row + j * kRowsAtOnce;
        if (kN % kRowsAtOnce != 0 && r >= kN) continue;
        CopyAsync16(stage + j * kRowsAtOnce * 128, x_rows[j] + offset, valid && r < count);
      }
    }
    CommitCopies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 2; ++i) {
    if (!early) fetch_weights(i);
    fetch_activations(i);
  }

  const int lane = threadIdx.x % kWarp, warpgroup = threadIdx.x / 128;
  float sums[kN / 2] = {};
  for (int i = 0; i < steps; ++i) {
    WaitCopies<kStages - 3>();
    PublishToProducts();
    __syncthreads();
    const uint32_t stage = ring + i % kStages * S::kStageBytes;
    uint64_t w = DescribeMatrix(stage + warpgroup * 64 * kStep * 2);
    uint64_t x = DescribeMatrix(stage + S::kOutputs * kStep * 2);
    BeginProducts();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      WarpgroupProduct<kN>::Add(sums, w, x, T());
      w += kSixteenColumns;
      x += kSixteenColumns;
    }
    CommitProducts();
    // Into the stage of round i - 2, whose products all warps had waited for at the barrier.
    fetch_weights(i + kStages - 2);
    fetch_activations(i + kStages - 2);
    WaitProducts<1>();
  }
  WaitProducts<0>();
  WaitCopies<0>();

  const float* const bias =
      p.bias == nullptr ? nullptr : p.bias + int64_t{tile.group} * p.out_features;
  const int warp_output = warpgroup * 64 + threadIdx.x / kWarp % 4 * 16 + lane / 4;
  if (cluster == 1) {
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int e = n * 8 + lane % 4 * 2 + c % 2, o = first + warp_output + c / 2 * 8;
        if (e >= count || o >= p.out_features) continue;
        float* y = p.y + int64_t{tile.begin + e} * p.out_features + o;
        const float sum = bias == nullptr ? sums[4 * n + c] : sums[4 * n + c] + bias[o];
        *y = p.accumulate ? *y + sum : sum;
      }
    }
    return;
  }

  // The ring becomes room for the sums, [entry][output].
  __syncthreads();
  float* const block_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int e = n * 8 + lane % 4 * 2 + c % 2;
      block_sums[e * S::kSumPitch + warp_output + c / 2 * 8] = sums[4 * n + c];
    }
  }
  const auto blocks = cooperative_groups::this_cluster();
  blocks.sync();
  for (int i = rank * S::kThreads + threadIdx.x; i < count * S::kOutputs / 4;
       i += cluster * S::kThreads) {
    const int e = i / (S::kOutputs / 4), o = i % (S::kOutputs / 4) * 4;
    if (first + o >= p.out_features) continue;
    float4 parts[kMaxCluster];
#pragma unroll
    for (int r = 0; r < kMaxCluster; ++r) {
      if (r < cluster) {
        parts[r] = *reinterpret_cast<const float4*>(blocks.map_shared_rank(block_sums, r) +
                                                    e * S::kSumPitch + o);
      }
    }
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < kMaxCluster; ++r) {
      if (r < cluster) AddTo(sum, parts[r]);
    }
    if (bias != nullptr) AddSome(bias + first + o, p.out_features - first - o, sum);
    StoreFour(p, tile.begin + e, first + o, sum);
  }
  blocks.sync();  // others may still read this block's sums
#else
  (void)terms;
  (void)cluster;
#endif
}

template <typename T, int kN, int kGroups, int kStages>
void Launch(Device& device, LinearProducts products, int terms,
            std::span<const void* const> rounded) {
  using S = TileShape<kN, kGroups, kStages>;
  while (!products.empty()) {
    int blocks = 0;
    LinearBatch batch = TakeBatch(&products, &blocks, [](const LinearArgs& args) {
      const int64_t out_tiles = (args.weights[0].out_features + S::kOutputs - 1) / S::kOutputs;
      return out_tiles * EntryTileBound(args, kN);
    });
    int steps = 1;
    for (int i = 0; i < batch.count; ++i) {
      batch.products[i].x = rounded[i];
      steps = std::max(steps, terms * ((batch.products[i].in_features + kStep - 1) / kStep));
    }
    rounded = rounded.subspan(batch.count);
    // As many blocks as give each multiprocessor two, each with steps enough to be worth its start.
    int cluster = 1;
    while (kGroups == 1 && cluster < kMaxCluster && blocks * cluster < device.multiprocessors() &&
           steps >= 4 * cluster) {
      cluster *= 2;
    }
    LaunchOverlapping(device, "Warpgroups", Warpgroups<T, kN, kGroups, kStages>, blocks * cluster,
                      S::kThreads, S::kSharedBytes, cluster, batch, terms, cluster);
  }
}

template <typename T>
void LaunchFor(Device& device, LinearProducts products, int terms,
               std::span<const void* const> rounded, WarpgroupShape shape) {
  const auto is = [&](int entries, int warpgroups, int stages) {
    return shape.entries == entries && shape.warpgroups == warpgroups && shape.stages == stages;
  };
  if (is(16, 1, 8)) return Launch<T, 16, 1, 8>(device, products, terms, rounded);
  if (is(16, 1, 7)) return Launch<T, 16, 1, 7>(device, products, terms, rounded);
  if (is(32, 1, 6)) return Launch<T, 32, 1, 6>(device, products, terms, rounded);
  if (is(64, 1, 4)) return Launch<T, 64, 1, 4>(device, products, terms, rounded);
  if (is(128, 1, 4)) return Launch<T, 128, 1, 4>(device, products, terms, rounded);
  device.Check(cudaErrorInvalidValue, "LinearWarpgroups: no such shape");
}

WarpgroupShape ChooseShape(const Device& device, LinearProducts products) {
  int64_t entries = 1, tiles = 0;
  for (const LinearArgs* args : products) {
    entries = std::max(entries, LikelyEntriesPerGroup(*args));
    tiles += EntryTileBound(*args, 16) * ((args->weights[0].out_features + 63) / 64);
  }
  // Three blocks fit a multiprocessor with rings of seven stages, two with eight: the more the
  // better while there are few blocks, the longer when there are many.
  if (entries <= 16) return {16, 1, tiles < device.multiprocessors() ? 7 : 8};
  // Up to twice the entries of a tile: reading weights a second time, from L2, costs less than
  // longer tiles on fewer blocks do.
  if (entries <= 64) return {32, 1, 6};
  if (entries <= 128) return {64, 1, 4};
  return {128, 1, 4};
}

}  // namespace

void LinearWarpgroups(Device& device, LinearProducts products, DType dtype, int terms,
                      std::span<const void* const> rounded, WarpgroupShape shape) {
  if (products.empty()) return;
  if (shape.entries == 0) shape = ChooseShape(device, products);
  if (dtype == DType::kBF16) {
    return LaunchFor<__nv_bfloat16>(device, products, terms, rounded, shape);
  }
  LaunchFor<__half>(device, products, terms, rounded, shape);
}

}  // namespace mneme::cuda::linear
