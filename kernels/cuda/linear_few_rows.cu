// Products of few rows: a warp per few output features, its lanes along in_features. Each weight is
// read once for up to eight entries; the sum of an output has the same order whatever their number.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear_device.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// kPiece consecutive features: 16 bytes of weights, or a single one.
template <typename T, int kPiece>
struct alignas(sizeof(T) * kPiece) Piece {
  T values[kPiece];
};

// Weights are used once a step and would only push other things out of L1.
template <typename T, int kPiece>
__device__ inline Piece<T, kPiece> LoadWeights(const T* from) {
  Piece<T, kPiece> piece;
  if constexpr (sizeof(piece) == 16) {
    uint4& raw = reinterpret_cast<uint4&>(piece);
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
  } else {
    static_assert(kPiece == 1);
    piece.values[0] = *from;
  }
  return piece;
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

// values[i] summed over the warp, for the i with the lane's topmost log2(kCount) bits; each sum in
// the order of WarpSum.
template <int kCount>
__device__ inline float WarpSums(float (&values)[kCount], int lane) {
  int offset = kWarp / 2;
#pragma unroll
  for (int n = kCount; n > 1; n /= 2, offset /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const float keep = upper ? values[i + n / 2] : values[i];
      const float give = upper ? values[i] : values[i + n / 2];
      values[i] = keep + __shfl_xor_sync(kAllLanes, give, offset);
    }
  }
  float sum = values[0];
  for (; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  return sum;
}

// Block: kWarps * kOutputs output features of one group of one product.
template <typename T, int kPiece, int kEntries, int kOutputs>
__global__ void __launch_bounds__(kThreads) FewRows(const __grid_constant__ LinearBatch batch) {
  // Loads under way at once, per lane; enough of them over all warps hide the memory's latency.
  constexpr int kAhead = kOutputs >= 4 ? 2 : 4;
  constexpr int kStride = kWarp * kPiece;
  constexpr int kCount = kOutputs * kEntries;
  static_assert(kCount <= kWarp);

  const LinearProduct& p = batch.products[ProductOfBlock(batch, blockIdx.x)];
  const int block = blockIdx.x - p.first_block;
  const int blocks_per_group = (p.out_features + kWarps * kOutputs - 1) / (kWarps * kOutputs);
  const int group = block / blocks_per_group;
  const int lane = threadIdx.x % kWarp;
  const int first = ((block % blocks_per_group) * kWarps + threadIdx.x / kWarp) * kOutputs;
  if (first >= p.out_features) return;
  const int begin = GroupBegin(p, group), end = GroupEnd(p, group);

  const T* rows[kOutputs];
  const T* weights = static_cast<const T*>(batch.weights[p.first_weight + group]);
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    rows[o] = weights + int64_t{min(first + o, p.out_features - 1)} * p.in_features;
  }

  for (int entry = begin; entry < end; entry += kEntries) {
    const float* x[kEntries];
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      x[e] =
          static_cast<const float*>(p.x) + RowOfEntry(p, min(entry + e, end - 1)) * p.in_features;
    }
    float sums[kCount] = {};
    for (int k0 = lane * kPiece; k0 < p.in_features; k0 += kAhead * kStride) {
      Piece<T, kPiece> w[kAhead][kOutputs];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int k = k0 + a * kStride;
        if (k >= p.in_features) continue;
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) w[a][o] = LoadWeights<T, kPiece>(rows[o] + k);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int k = k0 + a * kStride;
        if (k >= p.in_features) continue;
#pragma unroll
        for (int e = 0; e < kEntries; ++e) {
          float values[kPiece];
          LoadActivations<kPiece>(x[e] + k, values);
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
            for (int i = 0; i < kPiece; ++i) {
              float& sum = sums[o * kEntries + e];
              sum = fmaf(ToFloat(w[a][o].values[i]), values[i], sum);
            }
          }
        }
      }
    }
    const float sum = WarpSums(sums, lane);
    constexpr int kLanesPerSum = kWarp / kCount;
    const int o = lane / kLanesPerSum / kEntries, e = lane / kLanesPerSum % kEntries;
    if (lane % kLanesPerSum == 0 && first + o < p.out_features && entry + e < end) {
      float* y = p.y + int64_t{entry + e} * p.out_features + first + o;
      *y = p.accumulate ? *y + sum : sum;
    }
  }
}

template <typename T, int kPiece, int kEntries, int kOutputs>
void Launch(Device& device, LinearProducts products) {
  while (!products.empty()) {
    int blocks = 0;
    const LinearBatch batch = TakeBatch(&products, &blocks, [](const LinearArgs& args) {
      const int per_block = kWarps * kOutputs;
      return int64_t(args.weights.size()) *
             ((args.weights[0].out_features + per_block - 1) / per_block);
    });
    FewRows<T, kPiece, kEntries, kOutputs><<<blocks, kThreads, 0, device.stream()>>>(batch);
    device.Check(cudaGetLastError(), "FewRows");
  }
}

template <typename T, int kPiece>
void LaunchFor(Device& device, LinearProducts products) {
  int64_t entries = 1, outputs = 0;
  for (const LinearArgs* args : products) {
    entries = std::max(entries, LikelyEntriesPerGroup(*args));
    outputs += args->weights[0].out_features *
               std::min<int64_t>(static_cast<int64_t>(args->weights.size()), args->y.shape[0]);
  }
  // Small matrices need all warps; with several outputs a warp, large ones need fewer reads of x.
  const bool small = outputs < 32 * device.multiprocessors();
  if (entries == 1) {
    if (small) return Launch<T, kPiece, 1, 1>(device, products);
    return Launch<T, kPiece, 1, 2>(device, products);
  }
  if (entries == 2) {
    if (small) return Launch<T, kPiece, 2, 1>(device, products);
    return Launch<T, kPiece, 2, 2>(device, products);
  }
  if (entries <= 4) {
    if (small) return Launch<T, kPiece, 4, 1>(device, products);
    return Launch<T, kPiece, 4, 2>(device, products);
  }
  if (small) return Launch<T, kPiece, 8, 2>(device, products);
  return Launch<T, kPiece, 8, 4>(device, products);
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

}  // namespace mneme::cuda
