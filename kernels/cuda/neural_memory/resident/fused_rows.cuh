// A matrix in the registers of a block, rows among the lanes of its warps: its products and its
// steps.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/neural_memory/resident/matrix.cuh"

namespace mneme::cuda::neural_memory::resident {

// A thread's part of a matrix: four columns of every so-manieth row.
struct Rows {
  int bits, column, first, between, rows;
  bool has;

  __device__ Rows(const Part& part, int bits) : bits(bits), rows(part.rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    column = (lane & (lanes() - 1)) * 4;
    first = warp * at_once() + (lane >> bits);
    between = kWarps * at_once();
    has = column < part.columns;
  }
  __device__ int lanes() const { return 1 << bits; }
  __device__ int at_once() const { return kWarp >> bits; }
  // The lane that finds what belongs to the i-th row of this lane, and the row that a lane finds
  // things for.
  __device__ int FinderOf(int i, int lane) const { return i * at_once() + (lane >> bits); }
  __device__ int FoundBy(int lane) const {
    const int i = lane * lanes() / kWarp;
    return first - (lane >> bits) + (lane & (at_once() - 1)) + i * between;
  }
  template <int kHeld, typename Visit>
  __device__ void ForEach(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int row = first + i * between;
      if (has && row < rows) visit(i, row);
    }
  }
  // Sum over the lanes of a row.
  __device__ float Along(float x) const {
    for (int offset = lanes() / 2; offset > 0; offset /= 2) {
      x += __shfl_xor_sync(kAllLanes, x, offset);
    }
    return x;
  }
  // Sum over the rows of a warp, to the warp's place of `partial`.
  __device__ void SumRows(float4 sum, int columns, float* partial) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int offset = kWarp / 2; offset >= lanes(); offset /= 2) {
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, offset);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, offset);
      sum.z += __shfl_xor_sync(kAllLanes, sum.z, offset);
      sum.w += __shfl_xor_sync(kAllLanes, sum.w, offset);
    }
    if (lane < lanes() && has) {
      SaveFour(partial + static_cast<int>(threadIdx.x) / kWarp * columns + column, sum);
    }
  }
};

// Four elements of a vector of a head.
struct Four {
  float x[4];

  __device__ Four() : x{} {}
  __device__ explicit Four(const float4& v) : x{v.x, v.y, v.z, v.w} {}
  __device__ float4 all() const { return {x[0], x[1], x[2], x[3]}; }
};

// Past the multiprocessor's cache, which may hold an earlier step's.
template <int kHeld>
__device__ inline void LoadRows(const float* from, const Part& part, const Rows& rows,
                                float4 (&to)[kHeld]) {
#pragma unroll
  for (float4& four : to) four = {};
  if (from == nullptr) return;
  rows.ForEach<kHeld>([&](int i, int row) {
    to[i] = __ldcg(reinterpret_cast<const float4*>(from + row * part.pitch + rows.column));
  });
}

// Adds steps that others held back.
template <int kHeld>
__device__ inline void AddHeld(const StepsOfSlab& steps, const Rows& rows, float4 (&weights)[kHeld],
                               float4 (&momenta)[kHeld]) {
  const float3 factors = steps.Factors();
  rows.ForEach<kHeld>([&](int i, int row) {
    AddStepsToFour(steps, factors, row, rows.column, weights[i], momenta[i]);
  });
}

// One row's step: S = momentum S - z delta, W = keep W + S.
__device__ inline void StepRow(float z, const float4& delta, const StepGates& gates, float4& w,
                               float4& s) {
  const float along = -z;
  float4 next = {along * delta.x, along * delta.y, along * delta.z, along * delta.w};
  AddScaled(next, gates.momentum, s);
  s = next;
  AddScaled(next, gates.keep, w);
  w = next;
}

}  // namespace mneme::cuda::neural_memory::resident
