// Matrices that are on chip: W in shared memory, S in registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"

namespace mneme::cuda::neural_memory {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// A block's part of a matrix: `rows` of `columns`, which follow each other in shared memory. In the
// slab they are `pitch` apart, and the parts of two blocks `between`. `groups` of threads take a
// row each, a thread four columns.
struct Part {
  int rows, columns, pitch, between, groups;
};

// Keeps the compiler from finding before a loop, and holding in registers, what follows from x.
__device__ inline void FollowHere(int& x) { asm volatile("" : "+r"(x)); }

// A thread's share of a part: four columns of every groups-th row.
struct Share {
  int column, first, count;
  __device__ explicit Share(const Part& part) {
    const int fours = part.columns / 4, thread = static_cast<int>(threadIdx.x);
    column = thread % fours * 4;
    first = thread / fours;
    count = 0;  // more threads than work
    if (first < part.groups && first < part.rows) count = (part.rows - 1 - first) / part.groups + 1;
  }
};

__device__ inline void AddScaled(float4& sum, float x, const float4& w) {
  sum.x = fmaf(x, w.x, sum.x);
  sum.y = fmaf(x, w.y, sum.y);
  sum.z = fmaf(x, w.z, sum.z);
  sum.w = fmaf(x, w.w, sum.w);
}

// visit(i, element in shared memory, element in the slab, row) for the i-th four of the share.
template <int kHeld, typename Visit>
__device__ inline void ForEachFour(const Part& part, const Share& share, Visit visit) {
  int row = share.first, at = row * part.columns + share.column,
      in_slab = row * part.pitch + share.column;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (i < share.count) visit(i, at, in_slab, row);
    row += part.groups;
    at += part.groups * part.columns;
    in_slab += part.groups * part.pitch;
  }
}

// Starts copies of the share to shared memory.
__device__ inline void FetchShare(const float* from, const Part& part, const Share& share,
                                  float* to) {
  from += share.first * part.pitch + share.column;
  to += share.first * part.columns + share.column;
#pragma unroll 1
  for (int i = 0; i < share.count; ++i) {
    CopyAsync16(to, from);
    from += part.groups * part.pitch;
    to += part.groups * part.columns;
  }
}
// The share, or zeros of null.
template <int kHeld>
__device__ inline void LoadShare(const float* from, const Part& part, const Share& share,
                                 float4 (&held)[kHeld]) {
#pragma unroll
  for (float4& four : held) four = {};
  if (from == nullptr) return;
  from += share.first * part.pitch + share.column;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (i < share.count) held[i] = __ldcs(reinterpret_cast<const float4*>(from));
    from += part.groups * part.pitch;
  }
}

// The share of x W becomes part of `partial`, which has a row of columns for each group of rows.
template <int kHeld>
__device__ inline void ProductOfShare(const float* x, const float* weights, const Part& part,
                                      const Share& share, float* partial) {
  float4 sum = {};
  ForEachFour<kHeld>(part, share, [&](int, int at, int, int row) {
    AddScaled(sum, x[row], LoadFour(weights + at));
  });
  SaveFour(partial + 4 * threadIdx.x, sum);
}
// A column of x W.
__device__ inline float SumOfGroups(const float* partial, const Part& part, int column) {
  float sum = 0;
#pragma unroll 4
  for (int g = 0; g < part.groups; ++g) sum += partial[g * part.columns + column];
  return sum;
}

// y_i = sum_o W_io x_o slope_i by all warps, eight lanes to a row; x is in shared memory. The rows
// are a multiple of four.
__device__ inline void ProductOfRows(const float* weights, const Part& part, const float* x,
                                     const float* slope, float* y) {
  constexpr int kRowLanes = 8, kRows = kWarp / kRowLanes;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int row = warp * kRows + lane / kRowLanes; row < part.rows; row += kWarps * kRows) {
    float sum = 0;
    for (int o = lane % kRowLanes * 4; o < part.columns; o += 4 * kRowLanes) {
      const float4 w = LoadFour(weights + row * part.columns + o), four = LoadFour(x + o);
      sum += (w.x * four.x + w.y * four.y) + (w.z * four.z + w.w * four.w);
    }
#pragma unroll
    for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, offset);
    }
    if (lane % kRowLanes == 0) y[row] = sum * slope[row];
  }
}

// Of one step, scaled already: S = momentum S - z delta, W = keep W + S.
struct StepGates {
  float momentum, keep;
};
// Where a step leaves a part: in shared memory, or, of the last one, in the slab, W in both its
// copies. Null: nowhere.
struct StepTargets {
  float *weights, *anchors, *momenta;
};

// The step on a share; the share of x W after it becomes part of `partial`.
template <int kHeld, bool kToSlab>
__device__ inline void StepOfShare(const float* z, const float4& delta, const float* x,
                                   const StepGates& gates, bool has_momentum, const float* weights,
                                   const Part& part, const Share& share, const StepTargets& to,
                                   float4 (&momenta)[kHeld], float* partial) {
  float4 sum = {};
  ForEachFour<kHeld>(part, share, [&](int i, int at, int in_slab, int row) {
    const float along = -z[row];
    float4 w = {along * delta.x, along * delta.y, along * delta.z, along * delta.w};
    if (has_momentum) {
      AddScaled(w, gates.momentum, momenta[i]);
      if constexpr (kToSlab) {
        __stcs(reinterpret_cast<float4*>(to.momenta + in_slab), w);
      } else {
        momenta[i] = w;
      }
    }
    AddScaled(w, gates.keep, LoadFour(weights + at));
    AddScaled(sum, x[row], w);
    if constexpr (kToSlab) {
      __stcs(reinterpret_cast<float4*>(to.weights + in_slab), w);
      if (to.anchors != nullptr) SaveFour(to.anchors + in_slab, w);
    } else {
      SaveFour(to.weights + at, w);
      if (to.anchors != nullptr) SaveFour(to.anchors + at, w);
    }
  });
  SaveFour(partial + 4 * threadIdx.x, sum);
}

}  // namespace mneme::cuda::neural_memory
