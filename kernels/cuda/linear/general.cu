// Products of any number of rows, sizes, dtypes and alignment in fp32: square tiles through shared
// memory, no tensor cores.
#include <cstdint>

#include "kernels/cuda/linear/entries.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;      // entries and output features of a block
constexpr int kDepth = 16;     // features per step
constexpr int kPerThread = 4;  // entries and output features of a thread, 16 apart

template <typename T>
__global__ void __launch_bounds__(kThreads) Tiles(const __grid_constant__ LinearBatch batch) {
  __shared__ float xs[kDepth][kTile + 1];
  __shared__ float ws[kDepth][kTile + 1];

  const LinearProduct& p = batch.products[ProductOfBlock(batch, blockIdx.x)];
  const int block = blockIdx.x - p.first_block;
  const int out_tiles = (p.out_features + kTile - 1) / kTile;
  EntryTile tile;
  if (!FindEntryTile(p, block / out_tiles, kTile, &tile)) return;
  const int first = (block % out_tiles) * kTile;
  const T* weights = static_cast<const T*>(batch.weights[p.first_weight + tile.group]);

  // Each thread fetches one feature of four rows of either operand.
  const int depth = threadIdx.x % kDepth, row = threadIdx.x / kDepth;
  const float* x_rows[kPerThread];
  const T* w_rows[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int r = row + i * (kThreads / kDepth);
    x_rows[i] = static_cast<const float*>(p.x) +
                RowOfEntry(p, min(tile.begin + r, tile.end - 1)) * p.in_features;
    w_rows[i] = weights + int64_t{min(first + r, p.out_features - 1)} * p.in_features;
  }

  const int column = threadIdx.x % 16, line = threadIdx.x / 16;
  float sums[kPerThread][kPerThread] = {};
  for (int k0 = 0; k0 < p.in_features; k0 += kDepth) {
    const int k = k0 + depth;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int r = row + i * (kThreads / kDepth);
      xs[depth][r] = k < p.in_features ? x_rows[i][k] : 0.0f;
      ws[depth][r] = k < p.in_features ? ToFloat(w_rows[i][k]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      float x[kPerThread], w[kPerThread];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        x[i] = xs[d][line + 16 * i];
        w[i] = ws[d][column + 16 * i];
      }
#pragma unroll
      for (int e = 0; e < kPerThread; ++e) {
#pragma unroll
        for (int o = 0; o < kPerThread; ++o) sums[e][o] = fmaf(w[o], x[e], sums[e][o]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int e = 0; e < kPerThread; ++e) {
    const int entry = tile.begin + line + 16 * e;
#pragma unroll
    for (int o = 0; o < kPerThread; ++o) {
      const int output = first + column + 16 * o;
      if (entry >= tile.end || output >= p.out_features) continue;
      float* y = p.y + int64_t{entry} * p.out_features + output;
      *y = p.accumulate ? *y + sums[e][o] : sums[e][o];
    }
  }
}

template <typename T>
void Launch(Device& device, LinearProducts products) {
  while (!products.empty()) {
    int blocks = 0;
    const LinearBatch batch = TakeBatch(&products, &blocks, [](const LinearArgs& args) {
      const int64_t out_tiles = (args.weights[0].out_features + kTile - 1) / kTile;
      return out_tiles * EntryTileBound(args, kTile);
    });
    Tiles<T><<<blocks, kThreads, 0, device.stream()>>>(batch);
    device.Check(cudaGetLastError(), "Tiles");
  }
}

}  // namespace

void LinearGeneral(Device& device, LinearProducts products, DType dtype) {
  if (dtype == DType::kF32) return Launch<float>(device, products);
  if (dtype == DType::kBF16) return Launch<__nv_bfloat16>(device, products);
  Launch<__half>(device, products);
}

}  // namespace mneme::cuda::linear
