// Matrices that are on chip: W in shared memory, S in registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"

namespace mneme::cuda::neural_memory::resident {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// A block's part of a matrix: `rows` of `columns`, which follow each other in shared memory. In the
// slab they are `pitch` apart, and the parts of two blocks `between`. `groups` of threads take
// `held` rows each, a thread four columns of them.
struct Part {
  int rows = 0, columns = 0, pitch = 0, between = 0, held = 0, groups = 0;

  Part() = default;
  Part(int rows, int columns, int pitch, int between)
      : rows(rows), columns(columns), pitch(pitch), between(between) {
    const int most = kThreads / (columns / 4);
    held = (rows + most - 1) / most;
    groups = (rows + held - 1) / held;
  }
};

// Keeps the compiler from finding before a loop, and holding in registers, what follows from x.
__device__ inline void FollowHere(int& x) { asm volatile("" : "+r"(x)); }

// A thread's share of a part: four columns of the rows of its group.
struct Share {
  int column, first, count;
  __device__ explicit Share(const Part& part) {
    const int fours = part.columns / 4, group = static_cast<int>(threadIdx.x) / fours;
    column = static_cast<int>(threadIdx.x) % fours * 4;
    first = group * part.held;
    count = group < part.groups ? min(part.held, part.rows - first) : 0;
  }
};

__device__ inline void FollowHere(Share& share) {
  FollowHere(share.column);
  FollowHere(share.first);
  FollowHere(share.count);
}

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
    ++row;
    at += part.columns;
    in_slab += part.pitch;
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
    from += part.pitch;
    to += part.columns;
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
    from += part.pitch;
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

// Adds the products of kTile vectors with all rows of a part to their sums, group by group of kHeld
// rows; these are a multiple of four, in which they are read.
template <int kTile, int kHeld>
__device__ inline void AddGroups(const float* const (&own)[kTile], const float* weights,
                                 const Part& part, float4 (&sums)[kTile]) {
#pragma unroll 2
  for (int row = 0; row < part.rows; row += 4) {
    float4 w[4], x[kTile];
#pragma unroll
    for (int r = 0; r < 4; ++r) w[r] = LoadFour(weights + (row + r) * part.columns);
#pragma unroll
    for (int n = 0; n < kTile; ++n) x[n] = LoadFour(own[n] + row);
#pragma unroll
    for (int n = 0; n < kTile; ++n) {
      const float values[] = {x[n].x, x[n].y, x[n].z, x[n].w};
#pragma unroll
      for (int first = 0; first < 4; first += kHeld) {
        float4 of_group = {};
#pragma unroll
        for (int r = first; r < first + kHeld; ++r) AddScaled(of_group, values[r], w[r]);
        AddScaled(sums[n], 1.0f, of_group);
      }
    }
  }
}

// Columns of x W of `count` vectors x of part.rows each, in the same order of additions: for
// store(number of the vector, column, four sums). A thread has kTile vectors at a time.
template <int kTile, typename Store>
__device__ inline void ProductsOfTiles(const float* x, int count, const float* weights,
                                       const Part& part, const Store& store) {
  const int fours = part.columns / 4, tiles = (count + kTile - 1) / kTile;
  for (int item = static_cast<int>(threadIdx.x); item < tiles * fours; item += kThreads) {
    const int token = item / fours * kTile, column = item % fours * 4;
    const float* own[kTile];
    float4 sums[kTile] = {};
#pragma unroll
    for (int n = 0; n < kTile; ++n) own[n] = x + min(token + n, count - 1) * part.rows;
    const bool in_fours = part.rows % 4 == 0;
    if (in_fours && part.held == 1) {
      AddGroups<kTile, 1>(own, weights + column, part, sums);
    } else if (in_fours && part.held == 2) {
      AddGroups<kTile, 2>(own, weights + column, part, sums);
    } else if (in_fours && part.held == 4) {
      AddGroups<kTile, 4>(own, weights + column, part, sums);
    }
    const bool is_done = in_fours && (part.held == 1 || part.held == 2 || part.held == 4);
    for (int first = is_done ? part.rows : 0; first < part.rows; first += part.held) {
      float4 of_group[kTile] = {};
      const int end = min(first + part.held, part.rows);
#pragma unroll 4
      for (int row = first; row < end; ++row) {
        const float4 w = LoadFour(weights + row * part.columns + column);
#pragma unroll
        for (int n = 0; n < kTile; ++n) AddScaled(of_group[n], own[n][row], w);
      }
#pragma unroll
      for (int n = 0; n < kTile; ++n) AddScaled(sums[n], 1.0f, of_group[n]);
    }
#pragma unroll
    for (int n = 0; n < kTile; ++n) {
      if (token + n < count) store(token + n, column, sums[n]);
    }
  }
}
// The same. Tiles where they leave no thread without work.
template <typename Store>
__device__ inline void ProductsOfTokens(const float* x, int count, const float* weights,
                                        const Part& part, const Store& store) {
  constexpr int kTile = 4;
  if (count * (part.columns / 4) < kTile * kThreads) {
    ProductsOfTiles<1>(x, count, weights, part, store);
  } else {
    ProductsOfTiles<kTile>(x, count, weights, part, store);
  }
}

// For `count` vectors x of part.columns:  y_i <- sum_o W_io x_o y_i  by all warps, eight lanes to a
// row. The rows are a multiple of four; where they are too few for the warps, these share vectors.
__device__ inline void ProductsOfRows(const float* weights, const Part& part, const float* x,
                                      int count, float* y) {
  constexpr int kRowLanes = 8, kRows = kWarp / kRowLanes;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int fours = part.rows / kRows, shares = max(kWarps / fours, 1);
  for (int item = warp; item < fours * shares; item += kWarps) {
    const int row = item % fours * kRows + lane / kRowLanes;
#pragma unroll 2
    for (int token = item / fours; token < count; token += shares) {
      float sum = 0;
      for (int o = lane % kRowLanes * 4; o < part.columns; o += 4 * kRowLanes) {
        const float4 w = LoadFour(weights + row * part.columns + o);
        const float4 four = LoadFour(x + token * part.columns + o);
        sum += (w.x * four.x + w.y * four.y) + (w.z * four.z + w.w * four.w);
      }
#pragma unroll
      for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      }
      if (lane % kRowLanes == 0) y[token * part.rows + row] *= sum;
    }
  }
}

// S = kept S - sum z delta, over `count` vectors: the gradients of a share.
template <int kHeld>
__device__ inline void AddGradients(const float* z, int z_pitch, const float* delta,
                                    int delta_pitch, int count, float kept, const Share& share,
                                    float4 (&momenta)[kHeld]) {
#pragma unroll
  for (float4& four : momenta) four = {kept * four.x, kept * four.y, kept * four.z, kept * four.w};
  if (share.count == 0) return;
  for (int t = 0; t < count; ++t) {
    const float4 of_t = LoadFour(delta + t * delta_pitch + share.column);
    const float* const own = z + t * z_pitch + share.first;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i < share.count) AddScaled(momenta[i], -own[i], of_t);
    }
  }
}

// The gates of one step, scaled already: S = momentum S - z delta, W = keep W + S.
struct StepGates {
  float momentum, keep;
};
// Where a step leaves a part: in shared memory, where momenta stay with the thread, or, of the last
// one, in the slab.
struct StepTargets {
  float *weights, *momenta;
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
    } else {
      SaveFour(to.weights + at, w);
    }
  });
  SaveFour(partial + 4 * threadIdx.x, sum);
}

// Steps that a head holds back, in the slab: `count` of z and delta, `between` apart, and what W, S
// and the steps' products have become factors of.
struct StepsOfSlab {
  const float *z, *delta, *numbers;  // n, kept, moved, slowed; g; s
  int between, count, capacity;
  // Kept, moved and slowed.
  __device__ float3 Factors() const { return {numbers[1], numbers[2], numbers[3]}; }
};
// Adds them to four elements of a row, of W and S.
__device__ inline void AddStepsToFour(const StepsOfSlab& steps, const float3& factors, int row,
                                      int column, float4& weights, float4& momenta) {
  float4 w = {}, s = {};
  AddScaled(w, factors.x, weights);
  AddScaled(w, factors.y, momenta);
  AddScaled(s, factors.z, momenta);
#pragma unroll 1
  for (int step = 0; step < steps.count; ++step) {
    const float4 delta = LoadFour(steps.delta + step * steps.between + column);
    const float z = steps.z[step * steps.between + row];
    AddScaled(w, steps.numbers[4 + step] * z, delta);
    AddScaled(s, steps.numbers[4 + steps.capacity + step] * z, delta);
  }
  weights = w;
  momenta = s;
}
// Adds them to a share of W and S.
template <int kHeld>
__device__ inline void AddStepsOfSlab(const StepsOfSlab& steps, const Part& part,
                                      const Share& share, float* weights,
                                      float4 (&momenta)[kHeld]) {
  const float3 factors = steps.Factors();
  ForEachFour<kHeld>(part, share, [&](int i, int at, int, int row) {
    float4 w = LoadFour(weights + at);
    AddStepsToFour(steps, factors, row, share.column, w, momenta[i]);
    SaveFour(weights + at, w);
  });
}

// What steps of one token each have, by token.
struct StepsOfTokens {
  const float *z, *delta, *x;
  int delta_pitch;
  const float *momentum, *keep;
};
// As many steps on a share, a few of its rows of W in registers between them; the share of x W
// after the n-th one becomes the n-th partial. The last W becomes an anchor, which may be null,
// too.
template <int kHeld>
__device__ inline void StepsOfShare(const StepsOfTokens& steps, int count, bool has_momentum,
                                    const Part& part, const Share& share, float* weights,
                                    float* anchors, float4 (&momenta)[kHeld], float* partial) {
  constexpr int kRows = 4;
#pragma unroll
  for (int base = 0; base < kHeld; base += kRows) {
    if (base > 0 && base >= share.count) break;
    const int first = share.first + base, at = first * part.columns + share.column;
    float4 held[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (base + i < share.count) held[i] = LoadFour(weights + at + i * part.columns);
    }
#pragma unroll 1
    for (int token = 0; token < count; ++token) {
      const float* const z = steps.z + token * part.rows + first;
      const float* const x = steps.x + token * part.rows + first;
      const float4 delta = LoadFour(steps.delta + token * steps.delta_pitch + share.column);
      const float momentum = steps.momentum[token], keep = steps.keep[token];
      float* const sums = partial + 4 * (token * kThreads + static_cast<int>(threadIdx.x));
      float4 sum = {};
      if (base > 0) sum = LoadFour(sums);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (base + i >= share.count) break;
        const float along = -z[i];
        float4 w = {along * delta.x, along * delta.y, along * delta.z, along * delta.w};
        if (has_momentum) {
          AddScaled(w, momentum, momenta[base + i]);
          momenta[base + i] = w;
        }
        AddScaled(w, keep, held[i]);
        AddScaled(sum, x[i], w);
        held[i] = w;
      }
      SaveFour(sums, sum);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (base + i >= share.count) break;
      SaveFour(weights + at + i * part.columns, held[i]);
      if (anchors != nullptr) SaveFour(anchors + at + i * part.columns, held[i]);
    }
  }
}

}  // namespace mneme::cuda::neural_memory::resident
