// Products of up to sixteen rows or so on tensor cores: the weights are the tall operand, each
// streams through shared memory once; a block holds the activations of its entries and features
// there.
//
// Features of a product are split over the warps of a block and over the blocks of a cluster; what
// they have summed up is added in that order, always.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear_device.cuh"
#include "kernels/cuda/linear_mma.cuh"

namespace mneme::cuda {
namespace {

constexpr int kWarpsOver = 2;   // output features
constexpr int kWarpsAlong = 2;  // input features
constexpr int kWarps = kWarpsOver * kWarpsAlong;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWarpOutputs = 32;
constexpr int kOutputs = kWarpsOver * kWarpOutputs;  // of a block
constexpr int kStep = 64;                            // features: 128 bytes of a row
constexpr int kStages = 3;
constexpr int kStageBytes = kWarpOutputs * kStep * 2;
constexpr int kRingBytes = kWarps * kStages * kStageBytes;
constexpr int kMaxCluster = 8;
constexpr int kMaxEntries = 16;

// Sums of a block, [entry][output]: four floats of padding keep the warps' stores apart.
constexpr int kSumPitch = kOutputs + 4;

int64_t ActivationBytes(int entries, int64_t steps) { return entries * steps * kStep * 2; }
int64_t SumBytes(int entries) { return int64_t{kWarpsAlong} * entries * kSumPitch * 4; }
int64_t SharedBytes(int entries, int64_t steps) {
  return std::max(kRingBytes + ActivationBytes(entries, steps), SumBytes(entries));
}

// T: of the weights. kTiles: entries / 8.
template <typename T, int kTiles>
__global__ void __launch_bounds__(kThreads)
    Skinny(const __grid_constant__ LinearBatch batch, int cluster) {
  constexpr int kEntries = kTiles * 8;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const activations = shared + kRingBytes;

  const int unit = blockIdx.x / cluster, rank = blockIdx.x % cluster;
  const LinearProduct& p = batch.products[ProductOfBlock(batch, unit)];
  const int out_tiles = (p.out_features + kOutputs - 1) / kOutputs;
  const int first = (unit - p.first_block) % out_tiles * kOutputs;
  const int entry_tile = (unit - p.first_block) / out_tiles;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int over = warp % kWarpsOver, along = warp / kWarpsOver;

  // Steps [step_begin, step_end) are this block's, every kWarpsAlong-th of them this warp's.
  const int steps = (p.in_features + kStep - 1) / kStep;
  const int steps_per_block = (steps + cluster - 1) / cluster;
  const int step_begin = min(steps, rank * steps_per_block);
  const int step_end = min(steps, step_begin + steps_per_block);
  const int warp_steps = (step_end - step_begin - along + kWarpsAlong - 1) / kWarpsAlong;

  const uint32_t ring = SharedAddress(shared) + warp * kStages * kStageBytes;
  const T* weights = nullptr;
  // A stage is 32 rows of eight 16-byte pieces; odd rows have their halves swapped, so that the
  // eight lanes that read at once find eight different places.
  const auto fetch = [&](int i) {
    if (i < warp_steps) {
      const uint32_t stage = ring + (i % kStages) * kStageBytes;
      const int k = (step_begin + i * kWarpsAlong + along) * kStep + lane % 8 * 8;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int row = lane / 8 + j * 4;
        const int output = first + over * kWarpOutputs + row;
        const bool valid = output < p.out_features && k < p.in_features;
        const T* from = weights + (valid ? int64_t{output} * p.in_features + k : 0);
        CopyAsync16(stage + row * 128 + ((lane % 8) ^ (row % 2 * 4)) * 16, from, valid);
      }
    }
    CommitCopies();
  };

  // The weights of an ungrouped product are known before the previous kernel has ended.
  const bool early = p.group_ends == nullptr;
  if (early) {
    weights = static_cast<const T*>(batch.weights[p.first_weight]);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
  }
  LetNextKernelStart();
  WaitForPreviousKernel();
  EntryTile tile;
  // All blocks of a cluster leave here together.
  if (!FindEntryTile(p, entry_tile, kEntries, &tile)) return;
  if (!early) {
    weights = static_cast<const T*>(batch.weights[p.first_weight + tile.group]);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
  }
  const int count = tile.end - tile.begin;
  const int tiles = (count + 7) / 8;

  // Activations lie as a lane wants them: for every 32 features and 8 entries, the lane's entry
  // lane / 4 and features 8 (lane % 4) + 0..7. A warp rounds every kWarps-th row.
  constexpr int kRows = kEntries / kWarps, kAtOnce = 2;
  const float* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int entry = tile.begin + min(warp + r * kWarps, count - 1);
    rows[r] = static_cast<const float*>(p.x) + RowOfEntry(p, entry) * p.in_features;
  }
  const int pieces = (step_end - step_begin) * (kStep / 8);
  for (int piece0 = lane; piece0 < pieces; piece0 += kAtOnce * kWarp) {
    float4 low[kAtOnce][kRows], high[kAtOnce][kRows];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int k = step_begin * kStep + (piece0 + j * kWarp) * 8;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        low[j][r] = high[j][r] = make_float4(0, 0, 0, 0);
        if (warp + r * kWarps < count && k < p.in_features) {
          low[j][r] = *reinterpret_cast<const float4*>(rows[r] + k);
          high[j][r] = *reinterpret_cast<const float4*>(rows[r] + k + 4);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int piece = piece0 + j * kWarp;
      if (piece >= pieces) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int e = warp + r * kWarps;
        const int place = (piece / 4 * kTiles + e / 8) * kWarp + e % 8 * 4 + piece % 4;
        reinterpret_cast<uint4*>(activations)[place] = RoundEight<T>(low[j][r], high[j][r]);
      }
    }
  }
  __syncthreads();

  float sums[2][kTiles][4] = {};
  const uint32_t lane_row = lane / 4 * 128;
  for (int i = 0; i < warp_steps; ++i) {
    WaitCopies<kStages - 2>();
    __syncwarp();
    fetch(i + kStages - 1);  // where all lanes have read in the last round
    const uint32_t stage = ring + (i % kStages) * kStageBytes;
    const uint32_t b_base = SharedAddress(activations) +
                            (i * kWarpsAlong + along) * (2 * kTiles * kWarp * 16) + lane * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t place = ((half * 4 + lane % 4) ^ (lane / 4 % 2 * 4)) * 16;
      uint4 a[4];  // rows lane / 4 + 8 j
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] = LoadShared16(stage + j * 1024 + lane_row + place);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (n >= tiles) break;
        const uint4 b = LoadShared16(b_base + (half * kTiles + n) * (kWarp * 16));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &low = a[2 * m], &high = a[2 * m + 1];
          const uint32_t a0[4] = {low.x, high.x, low.y, high.y};
          const uint32_t a1[4] = {low.z, high.z, low.w, high.w};
          MultiplyAdd(sums[m][n], a0, b.x, b.y, T());
          MultiplyAdd(sums[m][n], a1, b.z, b.w, T());
        }
      }
    }
  }

  // The ring becomes room for the sums.
  WaitCopies<0>();
  __syncthreads();
  float* const block_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n >= tiles) break;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int e = n * 8 + lane % 4 * 2 + c % 2;
        const int o = over * kWarpOutputs + m * 16 + lane / 4 + c / 2 * 8;
        block_sums[(along * kEntries + e) * kSumPitch + o] = sums[m][n][c];
      }
    }
  }
  __syncthreads();

#if __CUDA_ARCH__ >= 900
  const auto blocks = cooperative_groups::this_cluster();
  if (cluster > 1) blocks.sync();
#endif
  // Four outputs at once.
  for (int i = rank * kThreads + threadIdx.x; i < count * kOutputs / 4; i += cluster * kThreads) {
    const int e = i / (kOutputs / 4), o = i % (kOutputs / 4) * 4;
    if (first + o >= p.out_features) continue;
    float4 parts[kMaxCluster * kWarpsAlong];
#pragma unroll
    for (int r = 0; r < kMaxCluster; ++r) {
      if (r >= cluster) break;
      const float* from = block_sums;
#if __CUDA_ARCH__ >= 900
      if (cluster > 1) from = blocks.map_shared_rank(block_sums, r);
#endif
#pragma unroll
      for (int w = 0; w < kWarpsAlong; ++w) {
        parts[r * kWarpsAlong + w] =
            *reinterpret_cast<const float4*>(from + (w * kEntries + e) * kSumPitch + o);
      }
    }
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < kMaxCluster * kWarpsAlong; ++r) {
      if (r >= cluster * kWarpsAlong) break;
      AddTo(sum, parts[r]);
    }
    StoreFour(p, tile.begin + e, first + o, sum);
  }
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) blocks.sync();  // others may still read this block's sums
#endif
}

int64_t Steps(const LinearArgs& args) { return (args.weights[0].in_features + kStep - 1) / kStep; }

template <typename T, int kTiles>
void Launch(Device& device, LinearProducts products) {
  const auto units = [](const LinearArgs& args) {
    const int64_t out_tiles = (args.weights[0].out_features + kOutputs - 1) / kOutputs;
    return out_tiles * EntryTileBound(args, kTiles * 8);
  };
  while (!products.empty()) {
    int blocks = 0;
    const LinearProducts taken = products;
    LinearBatch batch = TakeBatch(&products, &blocks, units);
    int64_t steps = 1;
    for (int i = 0; i < batch.count; ++i) {
      steps = std::max(steps, Steps(*taken[i]));
    }
    // As many blocks as fill the device twice, and as activations need to fit.
    int cluster = 1;
    const auto fits = [&](int n) {
      return SharedBytes(kTiles * 8, (steps + n - 1) / n) <=
             static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
    };
    if (HasHopperCode(device)) {
      while (cluster < kMaxCluster &&
             (!fits(cluster) || (blocks * cluster < 2 * device.multiprocessors() &&
                                 steps >= 2 * kWarpsAlong * cluster))) {
        cluster *= 2;
      }
    }
    const int64_t bytes = SharedBytes(kTiles * 8, (steps + cluster - 1) / cluster);
    LaunchOverlapping(device, "Skinny", Skinny<T, kTiles>, blocks * cluster, kThreads, bytes,
                      cluster, batch, cluster);
  }
}

template <typename T>
void LaunchFor(Device& device, LinearProducts products) {
  int64_t entries = 1;
  for (const LinearArgs* args : products) {
    entries = std::max(entries, LikelyEntriesPerGroup(*args));
  }
  if (entries <= 8) return Launch<T, 1>(device, products);
  Launch<T, 2>(device, products);
}

}  // namespace

bool FitsLinearSkinny(const Device& device, const LinearArgs& args) {
  const int cluster = HasHopperCode(device) ? kMaxCluster : 1;
  return SharedBytes(kMaxEntries, (Steps(args) + cluster - 1) / cluster) <=
         static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
}

void LinearSkinny(Device& device, LinearProducts products, DType dtype) {
  if (products.empty()) return;
  if (dtype == DType::kBF16) return LaunchFor<__nv_bfloat16>(device, products);
  LaunchFor<__half>(device, products);
}

}  // namespace mneme::cuda
