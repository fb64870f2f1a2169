// Products of many rows on tensor cores, grouped or not, all of a call in one launch: tiles of
// entries x output features, operands through a ring of stages in shared memory.
//
// With several terms a tile goes over its features once for each, the smallest term first.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/linear/entries.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kDepth = 64;  // features of a stage: 128 bytes of a row
constexpr int kStages = 3;

// A block's tile is kWarpsE x kWarpsO tiles of 16 kE entries by 16 kO output features.
template <int kWarpsE, int kWarpsO, int kE, int kO>
struct TileShape {
  static constexpr int kThreads = kWarpsE * kWarpsO * kWarp;
  static constexpr int kEntries = kWarpsE * kE * 16;
  static constexpr int kOutputs = kWarpsO * kO * 16;
  static constexpr int kStageBytes = (kEntries + kOutputs) * kDepth * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// Where 16-byte piece `piece` of row `row` lies: eight rows at one piece meet no bank twice.
__device__ inline uint32_t Place(int row, int piece) {
  return row * 128 + (piece ^ (row % 8)) * 16;
}

template <typename T, int kWarpsE, int kWarpsO, int kE, int kO>
__global__ void __launch_bounds__(TileShape<kWarpsE, kWarpsO, kE, kO>::kThreads)
    Tiles(const __grid_constant__ LinearBatch batch, int terms) {
  using S = TileShape<kWarpsE, kWarpsO, kE, kO>;
  extern __shared__ __align__(128) unsigned char shared[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const LinearProduct& p = batch.products[ProductOfBlock(batch, blockIdx.x)];
  const int block = blockIdx.x - p.first_block;
  const int out_tiles = (p.out_features + S::kOutputs - 1) / S::kOutputs;
  EntryTile tile;
  if (!FindEntryTile(p, block / out_tiles, S::kEntries, &tile)) return;
  const int first = block % out_tiles * S::kOutputs;
  const T* weights = static_cast<const T*>(batch.weights[p.first_weight + tile.group]);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warp_e = warp % kWarpsE * kE * 16, warp_o = warp / kWarpsE * kO * 16;

  // A thread fetches the same piece of every kRowsAtOnce-th row.
  constexpr int kRowsAtOnce = S::kThreads / 8;
  constexpr int kXRows = S::kEntries / kRowsAtOnce, kWRows = S::kOutputs / kRowsAtOnce;
  static_assert(S::kEntries % kRowsAtOnce == 0 && S::kOutputs % kRowsAtOnce == 0);
  const int piece = threadIdx.x % 8, row = threadIdx.x / 8;
  const T* x_rows[kXRows];
#pragma unroll
  for (int j = 0; j < kXRows; ++j) {
    const int e = min(tile.begin + row + j * kRowsAtOnce, tile.end - 1);
    x_rows[j] = static_cast<const T*>(p.x) + RowOfEntry(p, e) * p.in_features + piece * 8;
  }
  const T* w_row = weights + int64_t{first + row} * p.in_features + piece * 8;
  const int64_t w_stride = int64_t{kRowsAtOnce} * p.in_features;
  const int64_t term_stride = int64_t{p.rows} * p.in_features;

  const int steps_per_term = (p.in_features + kDepth - 1) / kDepth;
  const int steps = steps_per_term * terms;
  const uint32_t ring = SharedAddress(shared);
  int fetched = 0, fetch_k = 0;
  int64_t fetch_term = (terms - 1) * term_stride;
  const auto fetch = [&] {
    if (fetched < steps) {
      const uint32_t xs = ring + fetched % kStages * S::kStageBytes;
      const uint32_t ws = xs + S::kEntries * kDepth * 2;
      const bool valid = fetch_k + piece * 8 < p.in_features;
#pragma unroll
      for (int j = 0; j < kXRows; ++j) {
        const int r = row + j * kRowsAtOnce;
        CopyAsync16(xs + Place(r, piece), x_rows[j] + fetch_term + fetch_k, valid);
      }
#pragma unroll
      for (int j = 0; j < kWRows; ++j) {
        const int r = row + j * kRowsAtOnce;
        CopyAsync16(ws + Place(r, piece), w_row + j * w_stride + fetch_k,
                    valid && first + r < p.out_features);
      }
      ++fetched;
      fetch_k += kDepth;
      if (fetch_k >= p.in_features) {
        fetch_k = 0;
        fetch_term -= term_stride;
      }
    }
    CommitCopies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch();

  float sums[kE][2 * kO][4] = {};
  for (int i = 0; i < steps; ++i) {
    WaitCopies<kStages - 2>();
    __syncthreads();
    fetch();
    const uint32_t xs = ring + i % kStages * S::kStageBytes;
    const uint32_t ws = xs + S::kEntries * kDepth * 2;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t x[kE][4], w[kO][4];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        LoadMatrices(x[e], xs + Place(warp_e + e * 16 + lane % 16, 2 * k + lane / 16));
      }
#pragma unroll
      for (int o = 0; o < kO; ++o) {
        LoadMatrices(w[o],
                     ws + Place(warp_o + o * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      }
#pragma unroll
      for (int e = 0; e < kE; ++e) {
#pragma unroll
        for (int o = 0; o < kO; ++o) {
          MultiplyAdd(sums[e][2 * o], x[e], w[o][0], w[o][1], T());
          MultiplyAdd(sums[e][2 * o + 1], x[e], w[o][2], w[o][3], T());
        }
      }
    }
  }
  WaitCopies<0>();

  const bool pairs = p.out_features % 2 == 0;
#pragma unroll
  for (int e = 0; e < kE; ++e) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int entry = tile.begin + warp_e + e * 16 + h * 8 + lane / 4;
      if (entry >= tile.end) continue;
      float* y = p.y + int64_t{entry} * p.out_features;
#pragma unroll
      for (int o = 0; o < 2 * kO; ++o) {
        const int output = first + warp_o + o * 8 + lane % 4 * 2;
        float2 sum = make_float2(sums[e][o][2 * h], sums[e][o][2 * h + 1]);
        if (pairs && output < p.out_features) {
          float2* to = reinterpret_cast<float2*>(y + output);
          if (p.accumulate) {
            sum.x += to->x;
            sum.y += to->y;
          }
          *to = sum;
        } else {
          if (output < p.out_features) {
            y[output] = p.accumulate ? y[output] + sum.x : sum.x;
          }
          if (output + 1 < p.out_features) {
            y[output + 1] = p.accumulate ? y[output + 1] + sum.y : sum.y;
          }
        }
      }
    }
  }
}

template <typename T, int kWarpsE, int kWarpsO, int kE, int kO>
void Launch(Device& device, LinearProducts products, int terms,
            std::span<const void* const> rounded) {
  using S = TileShape<kWarpsE, kWarpsO, kE, kO>;
  while (!products.empty()) {
    int blocks = 0;
    LinearBatch batch = TakeBatch(&products, &blocks, [](const LinearArgs& args) {
      const int64_t out_tiles = (args.weights[0].out_features + S::kOutputs - 1) / S::kOutputs;
      return out_tiles * EntryTileBound(args, S::kEntries);
    });
    for (int i = 0; i < batch.count; ++i) batch.products[i].x = rounded[i];
    rounded = rounded.subspan(batch.count);
    LaunchOverlapping(device, "Tiles", Tiles<T, kWarpsE, kWarpsO, kE, kO>, blocks, S::kThreads,
                      S::kSharedBytes, 1, batch, terms);
  }
}

template <typename T>
void LaunchFor(Device& device, LinearProducts products, int terms,
               std::span<const void* const> rounded) {
  // Few output features, as gates have, would waste wide tiles.
  std::vector<const LinearArgs*> parts[2];
  std::vector<const void*> parts_rounded[2];
  for (size_t i = 0; i < products.size(); ++i) {
    const bool narrow = products[i]->weights[0].out_features <= 32;
    parts[narrow].push_back(products[i]);
    parts_rounded[narrow].push_back(rounded[i]);
  }
  Launch<T, 2, 2, 4, 4>(device, parts[0], terms, parts_rounded[0]);
  Launch<T, 4, 1, 2, 2>(device, parts[1], terms, parts_rounded[1]);
}

}  // namespace

void LinearTiles(Device& device, LinearProducts products, DType dtype, int terms,
                 std::span<const void* const> rounded) {
  if (products.empty()) return;
  if (dtype == DType::kBF16) return LaunchFor<__nv_bfloat16>(device, products, terms, rounded);
  LaunchFor<__half>(device, products, terms, rounded);
}

}  // namespace mneme::cuda::linear
