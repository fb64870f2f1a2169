// Products of a decode step of many rows on Hopper's tensor cores. Each warpgroup of a block has 64
// rows of weights (the tall operand), or a cluster's share of their features; both operands stream
// through a ring of stages in shared memory. Which weights a block takes depends on its place
// alone, so that as many as the ring holds are on their way before the previous kernel has ended.
//
// The blocks of a cluster add their sums up in order: each reads the others', or, of few rows and
// in clusters of more than two, is sent those of its share of the entries, so that nobody waits for
// a barrier of the cluster.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/decode/batch/finish.cuh"
#include "kernels/cuda/decode/batch/product.cuh"

namespace mneme::cuda::decode::batch {
namespace {

constexpr int kStep = 64;  // features of a stage: 128 bytes of a row

// Blocks of a cluster, at most. Where there is much to store, blocks are many without.
constexpr int MaxCluster(ManyEpilogue epilogue) { return epilogue == ManyEpilogue::kStore ? 4 : 8; }

// Entries kN, 64 output features of each of kGroups warpgroups.
template <int kN, int kStages, ManyEpilogue kEpilogue, int kGroups>
struct ManyShape {
  static constexpr int kThreads = 128 * kGroups;
  static constexpr int kOutputs = 64 * kGroups;
  static constexpr int kWeightBytes = kOutputs * kStep * 2;
  static constexpr int kStageBytes = kWeightBytes + kN * kStep * 2;
  static constexpr int kSumPitch = kOutputs + 4;
  static constexpr int kRingBytes = std::max(kStages * kStageBytes, kN* kSumPitch * 4);
  // Sums that the cluster's blocks send each other come to lie behind the ring. More rows than this
  // gain nothing by it, and have less room. For a block with one tile of all rows: it is sent sums
  // once. Clusters are a power of two, so that shares of kN entries fill what is there at most.
  static constexpr bool kSends = kN <= 16 && kEpilogue != ManyEpilogue::kStore;
  static constexpr int kSentBytes = kSends ? kN * kOutputs * 4 : 0;
  // A kilobyte to align the ring in.
  static constexpr int kSharedBytes = kRingBytes + kSentBytes + 1024;
};

// How many blocks a multiprocessor is to hold. The convolutions start beside kStore, and want some
// registers, too.
template <int kN, ManyEpilogue kEpilogue, int kGroups>
constexpr int MinBlocks() {
  if (kGroups > 1) return 2;
  return kN <= 32 && kEpilogue == ManyEpilogue::kStore ? 4 : 3;
}

// Sends each block of the cluster the sums of its share of the entries, which comes to lie at
// `sent`, [block][entry of the share][output]. By the whole block, whose sums are in `own`.
template <typename S>
__device__ inline void SendShares(const float* own, int count, int share, int rank, float* sent,
                                  uint64_t* received) {
  constexpr int kFours = S::kOutputs / 4;
#pragma unroll 1
  for (int item = threadIdx.x; item < count * kFours; item += S::kThreads) {
    const int e = item / kFours, o = item % kFours * 4, to = e / share;
    SendFour(*reinterpret_cast<const float4*>(own + e * S::kSumPitch + o),
             sent + ((rank - to) * share + e) * S::kOutputs + o, received, to);
  }
}

template <int kN, int kStages, ManyEpilogue kEpilogue, int kGroups>
__global__ void __launch_bounds__(128 * kGroups, MinBlocks<kN, kEpilogue, kGroups>())
    ManyProductsKernel(const __grid_constant__ ManyProducts p, int cluster) {
#if __CUDA_ARCH__ >= 900
  using S = ManyShape<kN, kStages, kEpilogue, kGroups>;
  constexpr int kHalf = S::kOutputs / 2;
  constexpr int kRowsAtOnce = S::kThreads / 8;  // a thread fetches the same piece of every such row
  constexpr int kXRows = (kN + kRowsAtOnce - 1) / kRowsAtOnce;
  extern __shared__ unsigned char unaligned[];
  __shared__ int list[kN], rows_of[kN];  // entries and their rows
  __shared__ int counts[S::kThreads / kWarp];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const uint32_t ring = SharedAddress(shared);

  const int rank = blockIdx.x % cluster;
  int number = blockIdx.x / cluster, n = 0;
#pragma unroll 1
  while (n + 1 < p.count && number >= p.products[n + 1].first_unit) ++n;
  const ManyProduct& product = p.products[n];
  const Unit u = FindUnit<S::kOutputs>(p, product, p.pairs_of[n], number - product.first_unit);

  const int features = product.in_features;
  const int all_steps = (features + kStep - 1) / kStep;
  const int steps_per_block = (all_steps + cluster - 1) / cluster;
  const int step_begin = min(all_steps, rank * steps_per_block);
  const int steps = min(all_steps, step_begin + steps_per_block) - step_begin;

  const int piece = threadIdx.x % 8, row = threadIdx.x / 8;
  const uint32_t place = row * 128 + (piece ^ (row % 8)) * 16;
  static_assert(kRowsAtOnce % 8 == 0);  // further rows have their pieces in the same order
  const int64_t offset = int64_t{row} * features + step_begin * kStep + piece * 8;
  const int64_t stride = int64_t{kRowsAtOnce} * features;
  // Whether there are features of this thread's piece in step i; zeros where there are none.
  const auto exists = [&](int i) { return (step_begin + i) * kStep + piece * 8 < features; };
  const auto fetch_weights = [&](int i) {
    const uint32_t stage = ring + i % kStages * S::kStageBytes + place;
    const bool any = exists(i);
#pragma unroll
    for (int j = 0; j < S::kOutputs / kRowsAtOnce; ++j) {
      constexpr int kPerHalf = kHalf / kRowsAtOnce;
      const int half = j / kPerHalf, r = j % kPerHalf;
      const bool inside = any && row + r * kRowsAtOnce < u.rows[half];
      CopyAsync16(stage + j * kRowsAtOnce * 128,
                  u.weights[half] + (inside ? offset + r * stride + i * kStep : 0), inside);
    }
  };

  __shared__ uint64_t received;  // of kSends: the barrier of what is sent
  const bool sends = S::kSends && cluster > 1;
  if (sends) {
    if (threadIdx.x == 0) {
      InitBulkBarrier(&received);
      FenceBulkBarriers();
    }
    ArriveAtCluster();
  }
  if constexpr (kEpilogue != ManyEpilogue::kStore) LetNextKernelStart();
  bool have_weights = u.tile == 0 || !u.routed;
  if (have_weights) {
#pragma unroll 1
    for (int i = 0; i < min(steps, kStages); ++i) fetch_weights(i);
    // The rest as far as the L2 cache.
    const int half = threadIdx.x / kHalf, r = threadIdx.x % kHalf;
    if (steps > kStages && half < 2 && r < (half == 0 ? u.rows[0] : u.rows[1])) {
      const int begin = (step_begin + kStages) * kStep;
      PrefetchToL2((half == 0 ? u.weights[0] : u.weights[1]) + int64_t{r} * features + begin,
                   (min(features, (step_begin + steps) * kStep) - begin) * 2);
    }
  }
  WaitForPreviousKernel();
  // What the next kernel reads before its own wait is of the kernel before this one.
  if constexpr (kEpilogue == ManyEpilogue::kStore) LetNextKernelStart();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto blocks = cooperative_groups::this_cluster();
#pragma unroll 1
  for (int tile = u.tile;; tile += product.routed_tiles) {
    EntryRange range = RangeOfTile(p.rows, tile, kN);
    if (u.routed) {
      ForEachChoice(
          p.indices, p.rows * p.top_k, u.group, counts,
          [&](int total) { return range = RangeOfTile(total, tile, kN); },
          [&](int number, int pair) {
            rows_of[number] = pair / p.top_k;
            list[number] = rows_of[number] * (product.columns - p.top_k) + pair;
          });
      __syncthreads();
    }
    const int count = range.count;
    if (count == 0) break;  // all blocks of the cluster
    const auto entry_of = [&](int e) {
      return u.routed ? list[e] : (range.begin + e) * product.columns + product.last_choice;
    };

    const __nv_bfloat16* x_rows[kXRows];
#pragma unroll
    for (int j = 0; j < kXRows; ++j) {
      const int e = min(row + j * kRowsAtOnce, count - 1);
      const int x_row = u.routed ? rows_of[e] : range.begin + e;
      x_rows[j] = product.x + int64_t{x_row} * features + step_begin * kStep + piece * 8;
    }
    const auto fetch_activations = [&](int i) {
      const uint32_t stage = ring + i % kStages * S::kStageBytes + S::kWeightBytes + place;
      const bool any = exists(i);
#pragma unroll
      for (int j = 0; j < kXRows; ++j) {
        const int r = row + j * kRowsAtOnce;
        if (kN % kRowsAtOnce != 0 && r >= kN) continue;
        const bool inside = any && r < count;
        CopyAsync16(stage + j * kRowsAtOnce * 128, x_rows[j] + (inside ? i * kStep : 0), inside);
      }
    };
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      if (i < steps) {
        if (!have_weights) fetch_weights(i);
        fetch_activations(i);
      }
      CommitCopies();
    }
    have_weights = false;

    // This thread's first four outputs: of the block's share of the entries, or of all.
    constexpr int kFours = (kEpilogue == ManyEpilogue::kSwiGlu ? kHalf : S::kOutputs) / 4;
    const int share = sends ? (count + cluster - 1) / cluster : 0;
    const int first_item = rank * (sends ? share * kFours : S::kThreads) + threadIdx.x;
    const int entries_end = sends ? min(count, (rank + 1) * share) : count;
    int64_t position = product.first_position;
    const auto old_of = [&](int item) {
      if (kEpilogue != ManyEpilogue::kAdd || item >= entries_end * kFours) return float4{};
      if (product.positions != nullptr) position = product.positions[entry_of(item / kFours)];
      return *reinterpret_cast<const float4*>(
          static_cast<const float*>(product.y) +
          int64_t{entry_of(item / kFours)} * product.out_features + u.first + item % kFours * 4);
    };
    float4 old = old_of(first_item);

    float sums[kN / 2] = {};
    const auto multiply = [&](int i) {
      const uint32_t stage = ring + i % kStages * S::kStageBytes;
      uint64_t w = DescribeMatrix(stage + warp / 4 * 64 * 128);
      uint64_t x = DescribeMatrix(stage + S::kWeightBytes);
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) {
        WarpgroupProduct<kN>::Add(sums, w, x, __nv_bfloat16());
        w += kSixteenColumns;
        x += kSixteenColumns;
      }
    };
    const bool at_once = kN <= 32 && steps <= kStages;
    if (at_once) WaitCopies<0>();
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      // A group of copies for each stage that was filled ahead, then one for each round, which is
      // that of the stage of the round before.
      if (!at_once) WaitCopies<kStages - 2>();
      if (!at_once || i == 0) {
        PublishToProducts();
        __syncthreads();
      }
      BeginProducts();
      multiply(i);
      CommitProducts();
      // The products of round i - 1 have been waited for by all warps at the barrier.
      if (i >= 1 && i - 1 + kStages < steps) {
        fetch_weights(i - 1 + kStages);
        fetch_activations(i - 1 + kStages);
      }
      CommitCopies();
      WaitProducts<0>();
    }
    WaitCopies<0>();
    __syncthreads();

    // The ring becomes room for the sums, [entry][output].
    float* const block_sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int e = j * 8 + lane % 4 * 2 + c % 2, o = warp * 16 + lane / 4 + c / 2 * 8;
        block_sums[e * S::kSumPitch + o] = sums[4 * j + c];
      }
    }
    if (sends || cluster == 1) {
      __syncthreads();
    } else {
      blocks.sync();
    }
    float* const sent = reinterpret_cast<float*>(shared + S::kRingBytes);
    if (sends) {
      WaitForCluster();  // long since: all have begun
      SendShares<S>(block_sums, count, share, rank, sent, &received);
      const int mine = entries_end - rank * share;
      if (mine > 0) {
        if (threadIdx.x == 0) ArriveAndExpect(&received, cluster * mine * S::kOutputs * 4);
        WaitForSent(&received, 0);
      }
    }
#pragma unroll 1
    for (int item = first_item; item < entries_end * kFours;
         item += (sends ? 1 : cluster) * S::kThreads) {
      const int e = item / kFours;
      if (item != first_item) old = old_of(item);
      if (kEpilogue == ManyEpilogue::kAdd && position < product.first_position) continue;
      Finish<kEpilogue, kHalf>(p, product, u, entry_of(e), item % kFours * 4, old, [&](int o) {
        const float* const mine = block_sums + e * S::kSumPitch + o;
        if (cluster == 1) return *reinterpret_cast<const float4*>(mine);
        constexpr int kMaxCluster = MaxCluster(kEpilogue);
        float4 parts[kMaxCluster];
#pragma unroll
        for (int r = 0; r < kMaxCluster; ++r) {
          if (r < cluster) {
            parts[r] = *reinterpret_cast<const float4*>(
                S::kSends ? sent + ((r - rank) * share + e) * S::kOutputs + o
                          : blocks.map_shared_rank(mine, r));
          }
        }
        float4 sum = parts[0];
#pragma unroll
        for (int r = 1; r < kMaxCluster; ++r) {
          if (r >= cluster) break;
          sum = {sum.x + parts[r].x, sum.y + parts[r].y, sum.z + parts[r].z, sum.w + parts[r].w};
        }
        return sum;
      });
    }
    // Others may still read this block's sums, and its list is about to change.
    if (cluster > 1 && !sends) {
      blocks.sync();
    } else if (u.routed) {
      __syncthreads();
    }
    if (!u.routed) break;
  }
  WaitCopies<0>();
#else
  (void)cluster;
#endif
}

template <int kN, int kStages, ManyEpilogue kEpilogue, int kGroups = 1>
void Launch(Device& device, ManyProducts& p) {
  using S = ManyShape<kN, kStages, kEpilogue, kGroups>;
  const int tiles = (p.rows + kN - 1) / kN;
  int units = 0, most_features = 0;
  for (int i = 0; i < p.count; ++i) {
    ManyProduct& product = p.products[i];
    if (product.in_features == 0) product.in_features = p.in_features;
    most_features = std::max(most_features, product.in_features);
    const int width = p.pairs_of[i] ? S::kOutputs / 2 : S::kOutputs;
    const int out_tiles = (product.out_features + width - 1) / width;
    product.first_unit = units;
    product.all_tiles = tiles * product.all_rows;
    // As many as likely; blocks go on if there are more.
    product.routed_tiles = 1;
    if (product.routed > 0) {
      const int likely = p.rows * p.top_k / product.routed * 9 / 8;
      product.routed_tiles = std::clamp((likely + kN - 1) / kN, 1, tiles);
    }
    units += out_tiles * (product.all_tiles + product.routed * product.routed_tiles);
  }
  // As many blocks as run at a time, each with steps enough to be worth its start.
  const int steps = most_features / kStep;
  const int room = device.multiprocessors() * std::min(MinBlocks<kN, kEpilogue, kGroups>(),
                                                       (227 << 10) / (S::kSharedBytes + 2048));
  // Products that are stored have clusters of two blocks at most, unless tiles are so few that a
  // multiprocessor has one block.
  const auto fits = [&](int blocks) {
    return kEpilogue == ManyEpilogue::kStore && blocks > 2 ? device.multiprocessors() : room;
  };
  int cluster = 1;
  while (cluster < MaxCluster(kEpilogue) && units * cluster * 2 <= fits(cluster * 2) &&
         steps >= 4 * cluster) {
    cluster *= 2;
  }
  LaunchOverlapping(device, "products of a decode step",
                    ManyProductsKernel<kN, kStages, kEpilogue, kGroups>, units * cluster,
                    S::kThreads, S::kSharedBytes, cluster, p, cluster);
}

// Tiles of 128 output features and so many entries; 0 if some entries are not known yet.
int TilesOf(const ManyProducts& p, int entries) {
  constexpr int kOutputs = 128;
  int tiles = 0;
  for (int i = 0; i < p.count; ++i) {
    if (p.products[i].routed > 0 || p.pairs_of[i]) return 0;
    tiles += (p.products[i].out_features + kOutputs - 1) / kOutputs;
  }
  return tiles * ((p.rows + entries - 1) / entries);
}

// Whether large tiles would leave three of four multiprocessors without any, or, of many rows,
// half.
bool HasFewTiles(const Device& device, const ManyProducts& p) {
  constexpr int kEntries = 96, kCluster = 2;
  const int tiles = TilesOf(p, kEntries);
  const int least = p.rows > 128 ? 2 : 4;  // blocks for which there would be room
  return tiles > 0 && tiles * kCluster * least <= device.multiprocessors();
}

// Whether clusters of two blocks for each tile of so many entries run all at a time, two blocks to
// a multiprocessor.
bool RunAtOnce(const Device& device, const ManyProducts& p, int entries) {
  const int tiles = TilesOf(p, entries);
  return tiles > 0 && tiles <= device.multiprocessors();
}

}  // namespace

void LaunchManyProducts(Device& device, ManyProducts products, ManyEpilogue epilogue) {
  // Tiles, and stages, by what they took on an H200: many short rings ahead of few long ones, but
  // for projections of few rows and for gate and up of very many.
  const int rows = products.rows;
  switch (epilogue) {
    case ManyEpilogue::kStore:
      if (rows <= 16) return Launch<16, 7, ManyEpilogue::kStore>(device, products);
      if (rows <= 48 || HasFewTiles(device, products)) {
        return Launch<32, 4, ManyEpilogue::kStore>(device, products);
      }
      // As many blocks as run at a time beat larger ones that share more of what they fetch.
      if (rows <= kStepRows && RunAtOnce(device, products, 32)) {
        return Launch<32, 4, ManyEpilogue::kStore, 2>(device, products);
      }
      if (rows <= kStepRows && RunAtOnce(device, products, 64)) {
        return Launch<64, 4, ManyEpilogue::kStore, 2>(device, products);
      }
      if (rows < 96) return Launch<80, 4, ManyEpilogue::kStore>(device, products);
      // 256 rows in mom-340m make three tiles of all and two of each memory's: all run at a time.
      if (rows > 128 && rows <= kStepRows) {
        return Launch<96, 3, ManyEpilogue::kStore, 2>(device, products);
      }
      if (rows < kMinRowsForRouteGates)
        return Launch<128, 3, ManyEpilogue::kStore, 2>(device, products);
      // 512 rows make four tiles of all and two of each memory's some 256: all 264 run at a time.
      return Launch<144, 3, ManyEpilogue::kStore, 2>(device, products);
    case ManyEpilogue::kAdd:
      if (rows <= 16) return Launch<16, 4, ManyEpilogue::kAdd>(device, products);
      if (rows <= 64) return Launch<32, 4, ManyEpilogue::kAdd>(device, products);
      return Launch<64, 4, ManyEpilogue::kAdd>(device, products);
    case ManyEpilogue::kActivate:
      if (rows <= 16) return Launch<16, 4, ManyEpilogue::kActivate>(device, products);
      if (rows <= 48) return Launch<32, 4, ManyEpilogue::kActivate>(device, products);
      return Launch<64, 4, ManyEpilogue::kActivate>(device, products);
    case ManyEpilogue::kSwiGlu:
      if (rows <= 16) return Launch<16, 4, ManyEpilogue::kSwiGlu>(device, products);
      if (rows <= 48) return Launch<32, 4, ManyEpilogue::kSwiGlu>(device, products);
      if (rows <= kStepRows) return Launch<64, 4, ManyEpilogue::kSwiGlu>(device, products);
      return Launch<128, 6, ManyEpilogue::kSwiGlu, 2>(device, products);
  }
}

}  // namespace mneme::cuda::decode::batch
