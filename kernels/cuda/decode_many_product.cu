// Products of a decode step of many rows on Hopper's tensor cores. A block has 64 rows of weights
// (the tall operand), or a cluster's share of their features; both operands stream through a ring
// of stages in shared memory. Which weights a block takes depends on its place alone, so that as
// many as the ring holds are on their way before the previous kernel has ended.
//
// The blocks of a cluster add their sums up in order.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/decode_many.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/linear_mma.cuh"
#include "kernels/cuda/linear_wgmma.cuh"
#include "kernels/cuda/overlap.cuh"

namespace mneme::cuda {
namespace {

constexpr int kStep = 64;  // features of a stage: 128 bytes of a row
constexpr int kOutputs = 64;
constexpr int kHalf = kOutputs / 2;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxCluster = 8;
constexpr int kRowsAtOnce =
    kThreads / 8;  // a thread fetches the same piece of every so manyeth row
constexpr int kSumPitch = kOutputs + 4;

// Entries kN.
template <int kN, int kStages>
struct ManyShape {
  static constexpr int kWeightBytes = kOutputs * kStep * 2;
  static constexpr int kStageBytes = kWeightBytes + kN * kStep * 2;
  // A kilobyte to align the ring in.
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, kN* kSumPitch * 4) + 1024;
};

// What a block works on: 32 rows each of two matrices, or 64 of one, and which entries.
struct Unit {
  const __nv_bfloat16* weights[2];  // of each half of the rows
  int rows[2];                      // that there are
  int first;                        // output feature
  bool pair, routed;
  int group, tile, tile_stride;  // of entries
};

__device__ inline Unit FindUnit(const ManyProducts& p, const ManyProduct& product, bool pair,
                                int unit) {
  Unit u;
  u.pair = pair;
  const int width = pair ? kHalf : kOutputs;
  const int out_tiles = (product.out_features + width - 1) / width;
  const int all_units = out_tiles * product.all_tiles * product.all_rows;
  int out_tile;
  if (unit < all_units) {
    u.routed = false;
    u.group = product.routed;
    out_tile = unit / product.all_tiles;
    u.tile = unit % product.all_tiles;
    u.tile_stride = product.all_tiles;
  } else {
    unit -= all_units;
    u.routed = true;
    u.tile = unit % product.routed_tiles;
    u.tile_stride = product.routed_tiles;
    unit /= product.routed_tiles;
    u.group = unit / out_tiles;
    out_tile = unit % out_tiles;
  }
  u.first = out_tile * width;
  const int left = product.out_features - u.first;
  const int64_t from = int64_t{u.first} * p.in_features;
  const __nv_bfloat16* const* const matrices =
      p.weights + product.first_weight + u.group * (pair ? 2 : 1);
  u.weights[0] = matrices[0] + from;
  u.weights[1] = pair ? matrices[1] + from : u.weights[0] + int64_t{kHalf} * p.in_features;
  u.rows[0] = left;
  u.rows[1] = pair ? left : left - kHalf;
  return u;
}

// Of the entries of `memory`, those from number `begin` on to `list`, at most `room`; returns how
// many there are in all. Called by the whole block; `counts` has kWarps ints.
__device__ inline int FindEntries(const int32_t* indices, int pairs, int memory, int top_k,
                                  int columns, int begin, int room, int* list, int* counts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int chunks = (pairs + kWarp - 1) / kWarp, each = (chunks + kWarps - 1) / kWarps;
  const int chunk_begin = warp * each, chunk_end = min(chunks, chunk_begin + each);
  const auto hits = [&](int chunk) {
    const int pair = chunk * kWarp + lane;
    return pair < pairs && indices[pair] == memory;
  };
  int count = 0;
#pragma unroll 4
  for (int c = chunk_begin; c < chunk_end; ++c) {
    count += __popc(__ballot_sync(kAllLanes, hits(c)));
  }
  if (lane == 0) counts[warp] = count;
  __syncthreads();
  int before = -begin, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += counts[w];
    total += counts[w];
  }
#pragma unroll 4
  for (int c = chunk_begin; c < chunk_end; ++c) {
    const bool hit = hits(c);
    const unsigned all = __ballot_sync(kAllLanes, hit);
    const int at = before + __popc(all & ((1u << lane) - 1));
    const int pair = c * kWarp + lane;
    if (hit && at >= 0 && at < room) list[at] = pair / top_k * columns + pair % top_k;
    before += __popc(all);
  }
  __syncthreads();
  return total;
}

template <ManyEpilogue kEpilogue>
__device__ inline void Finish(const ManyProducts& p, const ManyProduct& product, const Unit& u,
                              int entry, int o, const float4& sum) {
  if constexpr (kEpilogue == ManyEpilogue::kStore) {
    const bool second = u.pair && o >= kHalf;
    if (second) o -= kHalf;
    const int left = product.out_features - u.first - o;
    if (left <= 0) return;
    float* const y = (second ? product.second_y : product.y) +
                     int64_t{entry} * product.out_features + u.first + o;
    if (product.out_features % 4 == 0) {
      *reinterpret_cast<float4*>(y) = sum;
      return;
    }
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < left) y[i] = values[i];
    }
  } else {
    float4* const y =
        reinterpret_cast<float4*>(product.y + int64_t{entry} * product.out_features + u.first + o);
    const float4 old = *y;
    *y = {old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w};
  }
}

template <int kN, int kStages, ManyEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads)
    ManyProductsKernel(const __grid_constant__ ManyProducts p, int cluster) {
#if __CUDA_ARCH__ >= 900
  using S = ManyShape<kN, kStages>;
  constexpr bool kStore = kEpilogue == ManyEpilogue::kStore;
  extern __shared__ unsigned char unaligned[];
  __shared__ int list[kN];
  __shared__ int counts[kWarps];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const uint32_t ring = SharedAddress(shared);

  const int rank = blockIdx.x % cluster;
  int number = blockIdx.x / cluster, n = 0;
  while (n + 1 < p.count && number >= p.products[n + 1].first_unit) ++n;
  const ManyProduct& product = p.products[n];
  const Unit u = FindUnit(p, product, p.pairs_of[n], number - product.first_unit);

  const int all_steps = p.in_features / kStep;
  const int steps_per_block = (all_steps + cluster - 1) / cluster;
  const int step_begin = min(all_steps, rank * steps_per_block);
  const int steps = min(all_steps, step_begin + steps_per_block) - step_begin;

  const int piece = threadIdx.x % 8, row = threadIdx.x / 8;
  const uint32_t place = row * 128 + (piece ^ (row % 8)) * 16;
  static_assert(kRowsAtOnce % 8 == 0);  // further rows have their pieces in the same order
  const int64_t offset = int64_t{row} * p.in_features + step_begin * kStep + piece * 8;
  const int64_t stride = int64_t{kRowsAtOnce} * p.in_features;
  const auto fetch_weights = [&](int i) {
    const uint32_t stage = ring + i % kStages * S::kStageBytes + place;
#pragma unroll
    for (int j = 0; j < kOutputs / kRowsAtOnce; ++j) {
      constexpr int kPerHalf = kHalf / kRowsAtOnce;
      const int half = j / kPerHalf, r = j % kPerHalf;
      const bool inside = row + r * kRowsAtOnce < u.rows[half];
      CopyAsync16(stage + j * kRowsAtOnce * 128,
                  u.weights[half] + (inside ? offset + r * stride + i * kStep : 0), inside);
    }
  };

  if constexpr (!kStore) LetNextKernelStart();
  bool have_weights = u.tile == 0 || !u.routed;
  if (have_weights) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (i < steps) fetch_weights(i);
    }
  }
  WaitForPreviousKernel();
  // What the next kernel reads before its own wait is of the kernel before this one.
  if constexpr (kStore) LetNextKernelStart();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto blocks = cooperative_groups::this_cluster();
  for (int tile = u.tile;; tile += u.tile_stride) {
    int count;
    if (u.routed) {
      count = FindEntries(p.indices, p.rows * p.top_k, u.group, p.top_k, product.columns, tile * kN,
                          kN, list, counts);
    } else {
      count = p.rows;
      for (int i = threadIdx.x; i < kN; i += kThreads) {
        list[i] = (tile * kN + i) * product.columns + product.last_choice;
      }
      __syncthreads();
    }
    count = min(count - tile * kN, kN);
    if (count <= 0) break;  // all blocks of the cluster

    const __nv_bfloat16* x_rows[kN / kRowsAtOnce];
#pragma unroll
    for (int j = 0; j < kN / kRowsAtOnce; ++j) {
      const int e = list[min(row + j * kRowsAtOnce, count - 1)] / product.columns;
      x_rows[j] = product.x + int64_t{e} * p.in_features + step_begin * kStep + piece * 8;
    }
    const auto fetch_activations = [&](int i) {
      const uint32_t stage = ring + i % kStages * S::kStageBytes + S::kWeightBytes + place;
#pragma unroll
      for (int j = 0; j < kN / kRowsAtOnce; ++j) {
        CopyAsync16(stage + j * kRowsAtOnce * 128, x_rows[j] + i * kStep,
                    row + j * kRowsAtOnce < count);
      }
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (i < steps) {
        if (!have_weights) fetch_weights(i);
        fetch_activations(i);
      }
      CommitCopies();
    }
    have_weights = false;

    float sums[kN / 2] = {};
    for (int i = 0; i < steps; ++i) {
      // A group of copies for each stage that was filled ahead, then one for each round, which is
      // that of the stage of two rounds before.
      if (i < kStages) {
        WaitCopies<kStages - 1>();
      } else {
        WaitCopies<kStages - 3>();
      }
      PublishToProducts();
      __syncthreads();
      const uint32_t stage = ring + i % kStages * S::kStageBytes;
      uint64_t w = DescribeMatrix(stage + 0), x = DescribeMatrix(stage + S::kWeightBytes);
      BeginProducts();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) {
        WarpgroupProduct<kN>::Add(sums, w, x, __nv_bfloat16());
        w += kSixteenColumns;
        x += kSixteenColumns;
      }
      CommitProducts();
      // The products of round i - 2 have been waited for by all warps at the barrier.
      if (i >= 2 && i - 2 + kStages < steps) {
        fetch_weights(i - 2 + kStages);
        fetch_activations(i - 2 + kStages);
      }
      CommitCopies();
      WaitProducts<1>();
    }
    WaitProducts<0>();
    WaitCopies<0>();
    __syncthreads();

    // The ring becomes room for the sums, [entry][output].
    float* const block_sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int e = j * 8 + lane % 4 * 2 + c % 2, o = warp * 16 + lane / 4 + c / 2 * 8;
        block_sums[e * kSumPitch + o] = sums[4 * j + c];
      }
    }
    if (cluster > 1) {
      blocks.sync();
    } else {
      __syncthreads();
    }
    const auto sum_of = [&](int e, int o) {
      float4 parts[kMaxCluster];
#pragma unroll
      for (int r = 0; r < kMaxCluster; ++r) {
        if (r < cluster) {
          parts[r] = *reinterpret_cast<const float4*>(
              (cluster > 1 ? blocks.map_shared_rank(block_sums, r) : block_sums) + e * kSumPitch +
              o);
        }
      }
      float4 sum = parts[0];
#pragma unroll
      for (int r = 1; r < kMaxCluster; ++r) {
        if (r < cluster) {
          sum = {sum.x + parts[r].x, sum.y + parts[r].y, sum.z + parts[r].z, sum.w + parts[r].w};
        }
      }
      return sum;
    };
    constexpr int kFours = (kEpilogue == ManyEpilogue::kSwiGlu ? kHalf : kOutputs) / 4;
    for (int i = rank * kThreads + threadIdx.x; i < count * kFours; i += cluster * kThreads) {
      const int e = i / kFours, o = i % kFours * 4;
      if constexpr (kEpilogue == ManyEpilogue::kSwiGlu) {
        const float4 gate = sum_of(e, o), up = sum_of(e, kHalf + o);
        const __nv_bfloat162 low = __floats2bfloat162_rn(Silu(gate.x) * up.x, Silu(gate.y) * up.y);
        const __nv_bfloat162 high = __floats2bfloat162_rn(Silu(gate.z) * up.z, Silu(gate.w) * up.w);
        *reinterpret_cast<uint2*>(p.rounded + int64_t{list[e]} * product.out_features + u.first +
                                  o) = {reinterpret_cast<const unsigned&>(low),
                                        reinterpret_cast<const unsigned&>(high)};
      } else {
        Finish<kEpilogue>(p, product, u, list[e], o, sum_of(e, o));
      }
    }
    // Others may still read this block's sums, and its list is about to change.
    if (cluster > 1) {
      blocks.sync();
    } else {
      __syncthreads();
    }
    if (!u.routed) break;
  }
  WaitCopies<0>();
#else
  (void)cluster;
#endif
}

template <int kN, int kStages, ManyEpilogue kEpilogue>
void Launch(Device& device, ManyProducts& p) {
  using S = ManyShape<kN, kStages>;
  const int tiles = (p.rows + kN - 1) / kN;
  int units = 0;
  for (int i = 0; i < p.count; ++i) {
    ManyProduct& product = p.products[i];
    const int width = p.pairs_of[i] ? kHalf : kOutputs;
    const int out_tiles = (product.out_features + width - 1) / width;
    product.first_unit = units;
    product.all_tiles = tiles;
    // As many as likely, with a quarter more rows than on average; blocks go on if there are more.
    product.routed_tiles = 1;
    if (product.routed > 0) {
      const int likely = p.rows * p.top_k / product.routed * 5 / 4;
      product.routed_tiles = std::clamp((likely + kN - 1) / kN, 1, tiles);
    }
    units += out_tiles * (product.all_rows * tiles + product.routed * product.routed_tiles);
  }
  // As many blocks as run at a time, each with steps enough to be worth its start.
  const int steps = p.in_features / kStep;
  const int room = device.multiprocessors() * std::min(3, (227 << 10) / (S::kSharedBytes + 2048));
  int cluster = 1;
  while (cluster < kMaxCluster && units * cluster * 2 <= room && steps >= 4 * cluster) {
    cluster *= 2;
  }
  LaunchOverlapping(device, "products of a decode step", ManyProductsKernel<kN, kStages, kEpilogue>,
                    units * cluster, kThreads, S::kSharedBytes, cluster, p, cluster);
}

template <ManyEpilogue kEpilogue>
void LaunchRows(Device& device, ManyProducts& p) {
  if (p.rows <= 16) return Launch<16, 7, kEpilogue>(device, p);
  if (p.rows <= 48) return Launch<32, 6, kEpilogue>(device, p);
  if (p.rows <= 128) return Launch<64, 4, kEpilogue>(device, p);
  Launch<128, 4, kEpilogue>(device, p);
}

}  // namespace

void LaunchManyProducts(Device& device, ManyProducts products, ManyEpilogue epilogue) {
  switch (epilogue) {
    case ManyEpilogue::kStore:
      return LaunchRows<ManyEpilogue::kStore>(device, products);
    case ManyEpilogue::kAdd:
      return LaunchRows<ManyEpilogue::kAdd>(device, products);
    case ManyEpilogue::kSwiGlu:
      return LaunchRows<ManyEpilogue::kSwiGlu>(device, products);
  }
}

}  // namespace mneme::cuda
