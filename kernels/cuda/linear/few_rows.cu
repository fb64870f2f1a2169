// Products of few rows: a warp per few output features, its lanes along in_features. Each weight is
// read once for up to eight entries; the sum of an output has the same order whatever their number.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear/entries.cuh"
#include "kernels/cuda/linear/few_rows.h"
#include "kernels/cuda/linear/pieces.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// Block: kWarps / split * kOutputs output features of one group of one product; `split` warps share
// the features of each.
template <typename T, int kPiece, int kEntries, int kOutputs>
__global__ void __launch_bounds__(kThreads)
    FewRows(const __grid_constant__ LinearBatch batch, int split, FromPosition from) {
  // Pieces of each output that a lane works on at once. All their loads are under way together.
  constexpr int kPieces = kOutputs * kEntries <= 2 ? 4 : 2;
  constexpr int kStride = kWarp * kPiece;
  constexpr int kCount = kOutputs * kEntries;
  // Few enough activations to wait for along with the weights?
  constexpr bool kTogether = kEntries == 1;
  static_assert(kCount <= kWarp);
  __shared__ float parts[kWarps][kWarp];

  LetNextKernelStart();
  const LinearProduct& p = batch.products[ProductOfBlock(batch, blockIdx.x)];
  const int block = blockIdx.x - p.first_block;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int per_block = kWarps / split * kOutputs;
  const int blocks_per_group = (p.out_features + per_block - 1) / per_block;
  const int group = block / blocks_per_group;
  const int first = block % blocks_per_group * per_block + warp / split * kOutputs;
  const int in_features = p.in_features;
  // This warp's features, [k_begin, k_end).
  const int slice = (in_features + split * kStride - 1) / (split * kStride) * kStride;
  const int k_begin = min(in_features, warp % split * slice) + lane * kPiece;
  const int k_end = first < p.out_features ? min(in_features, (warp % split + 1) * slice) : 0;

  const T* rows[kOutputs];
  const T* weights = static_cast<const T*>(batch.weights[p.first_weight + group]);
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    rows[o] = weights + int64_t{min(first + o, p.out_features - 1)} * in_features;
  }
  Piece<T, kPiece> w[kPieces][kOutputs];
  const auto load = [&](int k0) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = k0 + j * kStride;
      if (k >= k_end) continue;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) w[j][o] = LoadWeights<T, kPiece>(rows[o] + k);
    }
  };

  // The weights of an ungrouped product are needed in any case, and nobody writes them.
  bool loaded = p.group_ends == nullptr;
  if (loaded) load(k_begin);
  WaitForPreviousKernel();
  const int begin = GroupBegin(p, group), end = GroupEnd(p, group);

  for (int entry = begin; entry < end; entry += kEntries) {
    if (!loaded) load(k_begin);
    const float* x[kEntries];
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      x[e] = static_cast<const float*>(p.x) + RowOfEntry(p, min(entry + e, end - 1)) * in_features;
    }
    // The output that this lane ends with, if it does, and what it adds to.
    constexpr int kLanesPerSum = kWarp / kCount;
    const int o = lane / kLanesPerSum / kEntries, e = lane / kLanesPerSum % kEntries;
    const bool ends = warp % split == 0 && lane % kLanesPerSum == 0 && first + o < p.out_features &&
                      entry + e < end;
    const int64_t position =
        ends && from.positions != nullptr ? from.positions[entry + e] : from.first;
    float* const y = p.y + int64_t{entry + e} * p.out_features + first + o;
    const float old = ends && p.accumulate ? *y : 0.0f;
    float sums[kCount] = {};
    for (int k0 = k_begin; k0 < k_end; k0 += kPieces * kStride) {
      if (k0 != k_begin) load(k0);
      float together[kPieces][kPiece];
      if constexpr (kTogether) {
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          const int k = k0 + j * kStride;
          if (k < k_end) LoadActivations<kPiece>(x[0] + k, together[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int k = k0 + j * kStride;
        if (k >= k_end) continue;
        float values[kOutputs][kPiece];
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) Unpack(w[j][o], values[o]);
#pragma unroll
        for (int e = 0; e < kEntries; ++e) {
          if constexpr (!kTogether) LoadActivations<kPiece>(x[e] + k, together[j]);
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
            for (int i = 0; i < kPiece; ++i) {
              float& sum = sums[o * kEntries + e];
              sum = fmaf(values[o][i], together[j][i], sum);
            }
          }
        }
      }
    }
    loaded = false;

    float sum = WarpSums(sums, lane);
    if (split > 1) {
      __syncthreads();
      parts[warp][lane] = sum;
      __syncthreads();
      if (warp % split != 0) continue;
      for (int i = 1; i < split; ++i) sum += parts[warp + i][lane];
    }
    if (ends && position >= from.first) {
      if (p.accumulate) sum = old + sum;
      *y = p.bias != nullptr ? sum + p.bias[int64_t{group} * p.out_features + first + o] : sum;
    }
  }
}

// One row and so many output features that blocks stay: a warp takes two after the other, with the
// next two's weights on their way, and holds the row in registers. The sums of FewRows, bit by bit.
template <typename T, int kPieces>
__global__ void __launch_bounds__(kThreads, kPieces <= 3 ? 5 : 4)
    WideRow(const T* weights, const float* x, const float* bias, float* y, int in_features,
            int out_features) {
  constexpr int kPiece = 8, kOutputs = 2, kStride = kWarp * kPiece;
  LetNextKernelStart();
  const int lane = threadIdx.x % kWarp;
  int first =
      (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp) * kOutputs;
  const int step = static_cast<int>(gridDim.x) * kWarps * kOutputs;
  Piece<T, kPiece> w[kOutputs][kPieces], next[kOutputs][kPieces];
  const auto load = [&](int output, Piece<T, kPiece>(&to)[kOutputs][kPieces]) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = lane * kPiece + j * kStride;
      if (k >= in_features) continue;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        to[o][j] = LoadWeights<T, kPiece>(
            weights + int64_t{min(output + o, out_features - 1)} * in_features + k);
      }
    }
  };
  if (first < out_features) load(first, w);
  WaitForPreviousKernel();
  float row[kPieces][kPiece];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int k = lane * kPiece + j * kStride;
    if (k < in_features) LoadActivations<kPiece>(x + k, row[j]);
  }
  for (; first < out_features; first += step) {
    if (first + step < out_features) load(first + step, next);
    float sums[kOutputs] = {};
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (lane * kPiece + j * kStride >= in_features) continue;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        float values[kPiece];
        Unpack(w[o][j], values);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) sums[o] = fmaf(values[i], row[j][i], sums[o]);
      }
    }
    float sum = WarpSums(sums, lane);
    const int output = first + lane / (kWarp / kOutputs);
    if (lane % (kWarp / kOutputs) == 0 && output < out_features) {
      y[output] = bias != nullptr ? sum + bias[output] : sum;
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) w[o][j] = next[o][j];
    }
  }
}

// Output features from which on WideRow pays, and features that it holds.
constexpr int kWideOutputs = 16 << 10, kWideFeatures = 1024;

template <typename T>
void LaunchWide(Device& device, const LinearArgs& args) {
  const PackedMatrix& w = args.weights[0];
  const bool three = w.in_features <= 3 * kWarp * 8;
  const auto kernel = three ? WideRow<T, 3> : WideRow<T, 4>;
  LaunchOverlapping(device, "WideRow", kernel, (three ? 5 : 4) * device.multiprocessors(), kThreads,
                    0, 1, static_cast<const T*>(w.data), args.x.as<const float>(),
                    args.bias.as<const float>(), args.y.as<float>(), w.in_features, w.out_features);
}

template <typename T, int kPiece, int kEntries, int kOutputs>
void Launch(Device& device, LinearProducts products, const FromPosition& from) {
  while (!products.empty()) {
    // One round of loads for every warp, if that takes no more than all warps of a block.
    int features = 0;
    for (const LinearArgs* args : products) {
      features = std::max(features, args->weights[0].in_features);
    }
    int split = 1;
    while (split < kWarps && features > split * 4 * kWarp * kPiece) split *= 2;
    int blocks = 0;
    const LinearBatch batch = TakeBatch(&products, &blocks, [&](const LinearArgs& args) {
      const int per_block = kWarps / split * kOutputs;
      return int64_t(args.weights.size()) *
             ((args.weights[0].out_features + per_block - 1) / per_block);
    });
    LaunchOverlapping(device, "FewRows", FewRows<T, kPiece, kEntries, kOutputs>, blocks, kThreads,
                      0, 1, batch, split, from);
  }
}

template <typename T, int kPiece>
void LaunchFor(Device& device, LinearProducts products, const FromPosition& from) {
  int64_t entries = 1;
  for (const LinearArgs* args : products) {
    entries = std::max(entries, LikelyEntriesPerGroup(*args));
  }
  // Two outputs a warp share each read of x; more cost registers, and so loads under way.
  if constexpr (kPiece == 8) {
    const LinearArgs& first = *products[0];
    const PackedMatrix& w = first.weights[0];
    if (products.size() == 1 && first.y.shape[0] == 1 && first.group_offsets.empty() &&
        !first.accumulate && IsWide(w)) {
      return LaunchWide<T>(device, first);
    }
  }
  if (entries == 1) return Launch<T, kPiece, 1, 2>(device, products, from);
  if (entries == 2) return Launch<T, kPiece, 2, 2>(device, products, from);
  if (entries <= 4) return Launch<T, kPiece, 4, 2>(device, products, from);
  Launch<T, kPiece, 8, 2>(device, products, from);
}

}  // namespace

bool IsWide(const PackedMatrix& weights) {
  return weights.out_features >= kWideOutputs && weights.in_features <= kWideFeatures;
}

void LinearFewRows(Device& device, LinearProducts products, DType dtype, bool aligned) {
  LinearFewRows(device, products, dtype, aligned, {});
}

void LinearFewRows(Device& device, LinearProducts products, DType dtype, bool aligned,
                   const FromPosition& from) {
  if (products.empty()) return;
  if (dtype == DType::kF32) {
    if (aligned) return LaunchFor<float, 4>(device, products, from);
    return LaunchFor<float, 1>(device, products, from);
  }
  if (dtype == DType::kBF16) {
    if (aligned) return LaunchFor<__nv_bfloat16, 8>(device, products, from);
    return LaunchFor<__nv_bfloat16, 1>(device, products, from);
  }
  if (aligned) return LaunchFor<__half, 8>(device, products, from);
  LaunchFor<__half, 1>(device, products, from);
}

}  // namespace mneme::cuda::linear
