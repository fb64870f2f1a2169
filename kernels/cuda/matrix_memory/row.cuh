// A row of a matrix in the registers of a warp, for the sizes that kernels are tuned for, and what
// is pending for a tile of rows.
#pragma once

#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/memory.cuh"

namespace mneme::cuda::matrix_memory {

// Which elements of a row a lane holds: kChunks runs of kWidth, so that a warp reads contiguous
// memory by vectors.
template <int kKeyDim>
struct Lane {
  static constexpr int kWidth = kKeyDim >= 128 ? 4 : 2;
  static constexpr int kChunks = kKeyDim / (kWidth * kWarp);
  static constexpr int kSize = kWidth * kChunks;  // elements of a lane
};

template <int kWidth>
struct FloatVector;
template <>
struct FloatVector<2> {
  using Type = float2;
};
template <>
struct FloatVector<4> {
  using Type = float4;
};

// kGlobal: of the device, not of the multiprocessor.
enum class Cache : uint8_t { kKeep, kStream, kGlobal };
template <Cache kCache, typename Vector>
__device__ inline Vector LoadThrough(const Vector* from) {
  if constexpr (kCache == Cache::kStream) return __ldcs(from);
  if constexpr (kCache == Cache::kGlobal) return __ldcg(from);
  return *from;
}

// A lane's part of the row at `row`, which is in global or in shared memory.
template <int kKeyDim, Cache kCache = Cache::kKeep>
__device__ inline void LoadRow(const float* row, float (&x)[Lane<kKeyDim>::kSize]) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
  using Vector = typename FloatVector<kWidth>::Type;
  const auto* vectors = reinterpret_cast<const Vector*>(row) + threadIdx.x % kWarp;
#pragma unroll
  for (int c = 0; c < Lane<kKeyDim>::kChunks; ++c) {
    const Vector y = LoadThrough<kCache>(vectors + c * kWarp);
    x[kWidth * c] = y.x;
    x[kWidth * c + 1] = y.y;
    if constexpr (kWidth == 4) {
      x[kWidth * c + 2] = y.z;
      x[kWidth * c + 3] = y.w;
    }
  }
}

template <int kKeyDim, Cache kCache = Cache::kKeep>
__device__ inline void LoadRow(const __half* row, float (&x)[Lane<kKeyDim>::kSize]) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int c = 0; c < Lane<kKeyDim>::kChunks; ++c) {
    const __half* from = row + (c * kWarp + lane) * kWidth;
    if constexpr (kWidth == 4) {
      const uint2 y = LoadThrough<kCache>(reinterpret_cast<const uint2*>(from));
      const float2 a = __half22float2(reinterpret_cast<const __half2&>(y.x));
      const float2 b = __half22float2(reinterpret_cast<const __half2&>(y.y));
      x[4 * c] = a.x;
      x[4 * c + 1] = a.y;
      x[4 * c + 2] = b.x;
      x[4 * c + 3] = b.y;
    } else {
      const unsigned y = LoadThrough<kCache>(reinterpret_cast<const unsigned*>(from));
      const float2 a = __half22float2(reinterpret_cast<const __half2&>(y));
      x[2 * c] = a.x;
      x[2 * c + 1] = a.y;
    }
  }
}

// The elements of a row, to be multiplied by RowScale().
template <int kKeyDim, Cache kCache = Cache::kKeep, typename T>
__device__ inline void LoadElements(const T* row, float (&x)[Lane<kKeyDim>::kSize]) {
  LoadRow<kKeyDim, kCache>(row, x);
}
template <int kKeyDim, Cache kCache = Cache::kKeep>
__device__ inline void LoadElements(const int8_t* row, float (&x)[Lane<kKeyDim>::kSize]) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
  const int8_t* from = row + threadIdx.x % kWarp * kWidth;
#pragma unroll
  for (int c = 0; c < Lane<kKeyDim>::kChunks; ++c, from += kWarp * kWidth) {
    if constexpr (kWidth == 4) {
      UnpackInts(LoadThrough<kCache>(reinterpret_cast<const uint32_t*>(from)), x + 4 * c);
    } else {
      float four[4];
      UnpackInts(LoadThrough<kCache>(reinterpret_cast<const uint16_t*>(from)), four);
      x[2 * c] = four[0];
      x[2 * c + 1] = four[1];
    }
  }
}
template <int kKeyDim, Cache kCache = Cache::kKeep>
__device__ inline void LoadRow(const int8_t* row, float (&x)[Lane<kKeyDim>::kSize]) {
  LoadElements<kKeyDim, kCache>(row, x);
  const float scale = RowScale(row, kKeyDim);
#pragma unroll
  for (int i = 0; i < Lane<kKeyDim>::kSize; ++i) x[i] *= scale;
}

template <int kKeyDim>
__device__ inline void StoreRow(float* row, const float (&x)[Lane<kKeyDim>::kSize]) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
  using Vector = typename FloatVector<kWidth>::Type;
  auto* vectors = reinterpret_cast<Vector*>(row) + threadIdx.x % kWarp;
#pragma unroll
  for (int c = 0; c < Lane<kKeyDim>::kChunks; ++c) {
    Vector y;
    y.x = x[kWidth * c];
    y.y = x[kWidth * c + 1];
    if constexpr (kWidth == 4) {
      y.z = x[kWidth * c + 2];
      y.w = x[kWidth * c + 3];
    }
    __stcs(vectors + c * kWarp, y);
  }
}

template <int kKeyDim>
__device__ inline void StoreRow(__half* row, const float (&x)[Lane<kKeyDim>::kSize]) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int c = 0; c < Lane<kKeyDim>::kChunks; ++c) {
    __align__(8) __half y[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) StoreState(y + i, x[kWidth * c + i]);
    __half* to = row + (c * kWarp + lane) * kWidth;
    if constexpr (kWidth == 4) {
      __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(y));
    } else {
      __stcs(reinterpret_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(y));
    }
  }
}

template <int kKeyDim>
__device__ inline void StoreRow(int8_t* row, const float (&x)[Lane<kKeyDim>::kSize]) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
  const int lane = threadIdx.x % kWarp;
  unsigned largest = 0;  // the bits of a magnitude are in order
#pragma unroll
  for (int i = 0; i < Lane<kKeyDim>::kSize; ++i) {
    largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
  }
  const RowUnit unit(__uint_as_float(__reduce_max_sync(kAllLanes, largest)));
#pragma unroll
  for (int c = 0; c < Lane<kKeyDim>::kChunks; ++c) {
    __align__(4) int8_t y[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] = Quantised(x[kWidth * c + i], unit);
    int8_t* to = row + (c * kWarp + lane) * kWidth;
    if constexpr (kWidth == 4) {
      __stcs(reinterpret_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(y));
    } else {
      __stcs(reinterpret_cast<unsigned short*>(to), *reinterpret_cast<const unsigned short*>(y));
    }
  }
  if (lane == 0) __stcs(reinterpret_cast<float*>(row + kKeyDim), unit.scale);
}

template <int kSize>
__device__ inline float DotLane(const float (&x)[kSize], const float (&y)[kSize]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) sum = __fmaf_rn(x[i], y[i], sum);
  return sum;
}

// L2Norm of the row whose parts are x.
template <int kSize>
__device__ inline void Normalise(const QueryKeyNorms::Norm& norm, float (&x)[kSize]) {
  const float scale = norm.scale / sqrtf(SumLanes(DotLane(x, x)) + norm.eps);
#pragma unroll
  for (int i = 0; i < kSize; ++i) x[i] *= scale;
}

// What is pending for a memory's head, as a warp holds it: lane j has that of place j, one of the
// kMaxPending in which writes are kept.
struct PendingDecay {
  float since;  // log decay since the write of this lane
  float all;    // since the matrix was stored, in all lanes
};

// `sum` is the log decay of lane j's write, 0 where nothing is pending.
__device__ inline PendingDecay SumPendingDecay(float sum) {
  const int lane = threadIdx.x % kWarp;
  // Sums from this lane's write to the last.
#pragma unroll
  for (int offset = 1; offset < kMaxPending; offset *= 2) {
    const float other = __shfl_down_sync(kAllLanes, sum, offset);
    if (lane + offset < kWarp) sum += other;
  }
  PendingDecay decay;
  decay.all = __shfl_sync(kAllLanes, sum, 0);
  const float next = __shfl_down_sync(kAllLanes, sum, 1);
  decay.since = lane + 1 < kWarp ? next : 0.0f;
  return decay;
}

__device__ inline float LoadDecay(const Problem& p, const Item& item, Range range) {
  const int lane = threadIdx.x % kWarp;
  const float* decays = p.decays.At<const float>(item.slot, item.memory) + item.head;
  return range.Has(lane) ? decays[lane * p.value_heads] : 0.0f;
}

__device__ inline PendingDecay LoadPendingDecay(const Problem& p, const Item& item, Range range) {
  return SumPendingDecay(LoadDecay(p, item, range));
}

// u of place lane / kRows + i * 32 / kRows, row lane % kRows, for every i.
template <int kRows>
struct PendingUpdates {
  static constexpr int kApart = kWarp / kRows;  // places between those of a lane
  static constexpr int kEach = kMaxPending / kApart;
  static_assert(kEach * kApart == kMaxPending);
  float u[kEach];

  __device__ static int Place(int i) { return threadIdx.x % kWarp / kRows + i * kApart; }
  template <typename TermType>
  __device__ void Load(const Problem& p, const Item& item, Range range, int first_row) {
    const int row = first_row + threadIdx.x % kRows;
    const auto* updates =
        p.updates.At<const TermType>(item.slot, item.memory) + item.head * p.value_dim + row;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int j = Place(i);
      u[i] = range.Has(j) && row < p.value_dim
                 ? static_cast<float>(updates[j * p.value_heads * p.value_dim])
                 : 0.0f;
    }
  }
  // Scales each by its write's weight, which lane j holds, and leaves them where AddPending() looks
  // for them.
  __device__ void Share(float weight, float (*shared)[kRows]) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int j = Place(i);
      shared[j][threadIdx.x % kRows] = __shfl_sync(kAllLanes, weight, j) * u[i];
    }
    __syncwarp();
  }
};

// x[i] += sum_j shared[j][first + i] k_j, for kCount rows of a warp. kKeys keys are on their way at
// a time: folding waits for little else.
template <int kKeyDim, int kKeys, typename TermType, int kCount, int kRows>
__device__ inline void AddPending(const Problem& p, const TermType* keys, Range range, int first,
                                  const float (*shared)[kRows],
                                  float (&x)[kCount][Lane<kKeyDim>::kSize]) {
  constexpr int kSize = Lane<kKeyDim>::kSize;
#pragma unroll kKeys
  for (int j = range.begin; j < range.end; ++j) {
    float key[kSize];
    LoadRow<kKeyDim>(keys + j * p.heads * kKeyDim, key);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const float u = shared[j][first + r];
#pragma unroll
      for (int i = 0; i < kSize; ++i) x[r][i] = __fmaf_rn(u, key[i], x[r][i]);
    }
  }
}

}  // namespace mneme::cuda::matrix_memory
