// Products of few rows: a warp per few output features, its lanes along in_features. Each weight is
// read once for up to eight entries; the sum of an output has the same order whatever their number.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear/entries.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// kPiece consecutive features: 16 bytes of weights, or a single one.
template <typename T, int kPiece>
struct Piece {
  uint4 raw;
};
template <typename T>
struct Piece<T, 1> {
  T raw;
};

// Weights are used once a step and would only push other things out of L1.
template <typename T, int kPiece>
__device__ inline Piece<T, kPiece> LoadWeights(const T* from) {
  Piece<T, kPiece> piece;
  if constexpr (kPiece == 1) {
    piece.raw = *from;
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.raw.x), "=r"(piece.raw.y), "=r"(piece.raw.z), "=r"(piece.raw.w)
                 : "l"(from));
  }
  return piece;
}

__device__ inline void UnpackPair(uint32_t pair, __nv_bfloat16, float* values) {
  values[0] = __uint_as_float(pair << 16);
  values[1] = __uint_as_float(pair & 0xffff0000u);
}
__device__ inline void UnpackPair(uint32_t pair, __half, float* values) {
  const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
  values[0] = both.x;
  values[1] = both.y;
}

template <typename T, int kPiece>
__device__ inline void Unpack(const Piece<T, kPiece>& piece, float (&values)[kPiece]) {
  if constexpr (kPiece == 1) {
    values[0] = ToFloat(piece.raw);
  } else if constexpr (kPiece == 4) {
    values[0] = __uint_as_float(piece.raw.x);
    values[1] = __uint_as_float(piece.raw.y);
    values[2] = __uint_as_float(piece.raw.z);
    values[3] = __uint_as_float(piece.raw.w);
  } else {
    UnpackPair(piece.raw.x, T(), values);
    UnpackPair(piece.raw.y, T(), values + 2);
    UnpackPair(piece.raw.z, T(), values + 4);
    UnpackPair(piece.raw.w, T(), values + 6);
  }
}

template <int kPiece>
__device__ inline void LoadActivations(const float* from, float (&x)[kPiece]) {
  if constexpr (kPiece == 1) {
    x[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  }
}

// Block: kWarps / split * kOutputs output features of one group of one product; `split` warps share
// the features of each.
template <typename T, int kPiece, int kEntries, int kOutputs>
__global__ void __launch_bounds__(kThreads)
    FewRows(const __grid_constant__ LinearBatch batch, int split) {
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
    if (ends) {
      if (p.accumulate) sum = old + sum;
      *y = p.bias != nullptr ? sum + p.bias[int64_t{group} * p.out_features + first + o] : sum;
    }
  }
}

template <typename T, int kPiece, int kEntries, int kOutputs>
void Launch(Device& device, LinearProducts products) {
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
                      0, 1, batch, split);
  }
}

template <typename T, int kPiece>
void LaunchFor(Device& device, LinearProducts products) {
  int64_t entries = 1;
  for (const LinearArgs* args : products) {
    entries = std::max(entries, LikelyEntriesPerGroup(*args));
  }
  // Two outputs a warp share each read of x; more cost registers, and so loads under way.
  if (entries == 1) return Launch<T, kPiece, 1, 2>(device, products);
  if (entries == 2) return Launch<T, kPiece, 2, 2>(device, products);
  if (entries <= 4) return Launch<T, kPiece, 4, 2>(device, products);
  Launch<T, kPiece, 8, 2>(device, products);
}

}  // namespace

void LinearFewRows(Device& device, LinearProducts products, DType dtype, bool aligned) {
  if (products.empty()) return;
  if (dtype == DType::kF32) {
    if (aligned) return LaunchFor<float, 4>(device, products);
    return LaunchFor<float, 1>(device, products);
  }
  if (dtype == DType::kBF16) {
    if (aligned) return LaunchFor<__nv_bfloat16, 8>(device, products);
    return LaunchFor<__nv_bfloat16, 1>(device, products);
  }
  if (aligned) return LaunchFor<__half, 8>(device, products);
  LaunchFor<__half, 1>(device, products);
}

}  // namespace mneme::cuda::linear
