// Products of few rows: a warp per few output features, its lanes along in_features. Each weight is
// read once for up to eight entries; the sum of an output has the same order whatever their number.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear_device.cuh"
#include "kernels/cuda/linear_mma.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
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

// How many features of kEntries rows a block holds: 32 KB.
template <int kEntries>
constexpr int kHeld = 8192 / kEntries;

// Where feature k of a row lies: a lane reads eight at once in two halves, each half next to its
// neighbours' so that they meet no bank twice.
template <int kPiece, int kEntries>
__device__ inline int Place(int k) {
  return kPiece == 8 ? k / 4 % 2 * (kHeld<kEntries> / 2) + k / 8 * 4 + k % 4 : k;
}

// Features [k0, k0 + count) of the rows of entries [entry, entry + kEntries); past `end` repeats
// the last.
template <int kPiece, int kEntries>
__device__ inline void HoldActivations(const LinearProduct& p, int entry, int end, int k0,
                                       int count, float (*held)[kHeld<kEntries>]) {
#pragma unroll
  for (int e = 0; e < kEntries; ++e) {
    const float* from = static_cast<const float*>(p.x) +
                        RowOfEntry(p, min(entry + e, end - 1)) * p.in_features + k0;
    if constexpr (kPiece == 1) {
      for (int k = threadIdx.x; k < count; k += kThreads) held[e][k] = from[k];
    } else {
      for (int k = threadIdx.x * 4; k < count; k += kThreads * 4) {
        CopyAsync16(SharedAddress(&held[e][Place<kPiece, kEntries>(k)]), from + k, true);
      }
    }
  }
  CommitCopies();
  WaitCopies<0>();
}

// Block: kWarps * kOutputs output features of one group of one product.
template <typename T, int kPiece, int kEntries, int kOutputs>
__global__ void __launch_bounds__(kThreads, 2) FewRows(const __grid_constant__ LinearBatch batch) {
  // Pieces of each output that a lane works on at once, while as many more are under way.
  constexpr int kPieces = kPiece == 1 ? 4 : kEntries * kOutputs > 16 ? 1 : kOutputs > 2 ? 2 : 4;
  constexpr int kStride = kWarp * kPiece;
  constexpr int kBatch = kPieces * kStride;
  constexpr int kCount = kOutputs * kEntries;
  static_assert(kCount <= kWarp && kHeld<kEntries> % kBatch == 0);
  __shared__ __align__(16) float held[kEntries][kHeld<kEntries>];

  LetNextKernelStart();
  const LinearProduct& p = batch.products[ProductOfBlock(batch, blockIdx.x)];
  const int block = blockIdx.x - p.first_block;
  const int blocks_per_group = (p.out_features + kWarps * kOutputs - 1) / (kWarps * kOutputs);
  const int group = block / blocks_per_group;
  const int lane = threadIdx.x % kWarp;
  const int first = ((block % blocks_per_group) * kWarps + threadIdx.x / kWarp) * kOutputs;
  const int in_features = p.in_features;

  const T* rows[kOutputs];
  const T* weights = static_cast<const T*>(batch.weights[p.first_weight + group]);
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    rows[o] = weights + int64_t{min(first + o, p.out_features - 1)} * in_features + lane * kPiece;
  }
  using Pieces = Piece<T, kPiece>[kPieces][kOutputs];
  const auto load = [&](Pieces& w, int k0) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = k0 + j * kStride;
      if (k + lane * kPiece >= in_features || first >= p.out_features) continue;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) w[j][o] = LoadWeights<T, kPiece>(rows[o] + k);
    }
  };

  Pieces w;
  // These are needed in any case, and nobody writes them.
  const bool early = p.group_ends == nullptr;
  if (early) load(w, 0);
  WaitForPreviousKernel();
  const int begin = GroupBegin(p, group), end = GroupEnd(p, group);
  if (begin == end) return;
  if (!early) load(w, 0);

  for (int entry = begin; entry < end; entry += kEntries) {
    float sums[kCount] = {};
    for (int k0 = 0; k0 < in_features; k0 += kBatch) {
      if (k0 % kHeld<kEntries> == 0) {
        __syncthreads();
        HoldActivations<kPiece, kEntries>(p, entry, end, k0, min(kHeld<kEntries>, in_features - k0),
                                          held);
        __syncthreads();
      }
      Pieces next;
      const bool more = k0 + kBatch < in_features;
      if (more || entry + kEntries < end) load(next, more ? k0 + kBatch : 0);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int k = k0 + j * kStride + lane * kPiece;
        if (k >= in_features) continue;
        float values[kOutputs][kPiece];
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) Unpack(w[j][o], values[o]);
        const int place = Place<kPiece, kEntries>(k % kHeld<kEntries>);
#pragma unroll
        for (int e = 0; e < kEntries; ++e) {
          float x[kPiece];
          if constexpr (kPiece == 1) {
            x[0] = held[e][place];
          } else {
#pragma unroll
            for (int i = 0; i < kPiece; i += 4) {
              const float4 four =
                  *reinterpret_cast<const float4*>(&held[e][place + i / 4 * (kHeld<kEntries> / 2)]);
              x[i] = four.x;
              x[i + 1] = four.y;
              x[i + 2] = four.z;
              x[i + 3] = four.w;
            }
          }
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
            for (int i = 0; i < kPiece; ++i) {
              float& sum = sums[o * kEntries + e];
              sum = fmaf(values[o][i], x[i], sum);
            }
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) w[j][o] = next[j][o];
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
    LaunchOverlapping(device, "FewRows", FewRows<T, kPiece, kEntries, kOutputs>, blocks, kThreads,
                      0, 1, batch);
  }
}

template <typename T, int kPiece>
void LaunchFor(Device& device, LinearProducts products, int outputs_per_warp) {
  int64_t entries = 1, outputs = 0;
  for (const LinearArgs* args : products) {
    entries = std::max(entries, LikelyEntriesPerGroup(*args));
    outputs += args->weights[0].out_features *
               std::min<int64_t>(static_cast<int64_t>(args->weights.size()), args->y.shape[0]);
  }
  // Small matrices need all warps; with several outputs a warp, large ones need fewer reads of x.
  if (outputs_per_warp == 0) outputs_per_warp = outputs < 24 * device.multiprocessors() ? 1 : 2;
  const bool one = outputs_per_warp == 1;
  if (entries == 1) {
    if (one) return Launch<T, kPiece, 1, 1>(device, products);
    return Launch<T, kPiece, 1, 2>(device, products);
  }
  if (entries == 2) {
    if (one) return Launch<T, kPiece, 2, 1>(device, products);
    return Launch<T, kPiece, 2, 2>(device, products);
  }
  if (entries <= 4) {
    if (one) return Launch<T, kPiece, 4, 1>(device, products);
    return Launch<T, kPiece, 4, 2>(device, products);
  }
  if (one) return Launch<T, kPiece, 8, 2>(device, products);
  Launch<T, kPiece, 8, 4>(device, products);
}

}  // namespace

void LinearFewRows(Device& device, LinearProducts products, DType dtype, bool aligned,
                   int outputs_per_warp) {
  if (products.empty()) return;
  if (dtype == DType::kF32) {
    if (aligned) return LaunchFor<float, 4>(device, products, outputs_per_warp);
    return LaunchFor<float, 1>(device, products, outputs_per_warp);
  }
  if (dtype == DType::kBF16) {
    if (aligned) return LaunchFor<__nv_bfloat16, 8>(device, products, outputs_per_warp);
    return LaunchFor<__nv_bfloat16, 1>(device, products, outputs_per_warp);
  }
  if (aligned) return LaunchFor<__half, 8>(device, products, outputs_per_warp);
  LaunchFor<__half, 1>(device, products, outputs_per_warp);
}

}  // namespace mneme::cuda
