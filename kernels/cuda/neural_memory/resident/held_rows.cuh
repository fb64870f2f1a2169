// Products with a memory that holds steps back, and what writes these.
#pragma once

#include <cstdint>

#include "kernels/cuda/neural_memory/resident/held.cuh"

namespace mneme::cuda::neural_memory::resident {

// A block's part of W and S, as they were written last. Where S is zeros, `momenta` is some other
// matrix of its shape, which counts nothing.
struct Matrices {
  const float *weights, *momenta;
  bool zeros;
};
// Factors of W and S since the last fold: kept W + moved S, and slowed S.
struct Factors {
  float kept, moved, slowed;
};

template <typename Value>
__device__ inline Value LoadAs(const float* p) {
  return *reinterpret_cast<const Value*>(p);
}
__device__ inline void AddScaled(float& sum, float x, float w) { sum = fmaf(x, w, sum); }

__device__ inline float4 Mix(float a, const float4& x, float b, const float4& y) {
  return {a * x.x + b * y.x, a * x.y + b * y.y, a * x.z + b * y.z, a * x.w + b * y.w};
}

// visit(first row, four rows of W, of S) for all rows of a share.
template <typename Visit>
__device__ inline void ForEachFourRows(const Matrices& from, const Part& part, const Share& share,
                                       const Visit& visit) {
  for (int row = share.first; row < share.first + share.count; row += 4) {
    float4 w[4], s[4];
    const int at = row * part.columns + share.column;
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = LoadFour(from.weights + at + i * part.columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = LoadFour(from.momenta + at + i * part.columns);
    visit(row, w, s);
  }
}

// The share of x W and x S, of one x or two, becomes part of `partial`: of each x HeldPart::sums
// rows.
template <int kVectors>
__device__ inline void Products(const float* const (&x)[kVectors],
                                const Factors (&factors)[kVectors], const Matrices& from,
                                const HeldPart& part, const Share& share, float* partial) {
  float4 of_weights[kVectors] = {}, of_momenta[kVectors] = {};
  ForEachFourRows(from, part, share, [&](int row, const float4(&w)[4], const float4(&s)[4]) {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      const float4 four = LoadFour(x[n] + row);
      const float values[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        AddScaled(of_weights[n], values[i], w[i]);
        AddScaled(of_momenta[n], values[i], s[i]);
      }
    }
  });
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, fours = part.columns / 4;
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const float moved = from.zeros ? 0.0f : factors[n].moved;
    float4 sum = Mix(factors[n].kept, of_weights[n], moved, of_momenta[n]);
    float* const sums = partial + n * part.sums * part.columns;
    if (!part.in_warps) {
      if (share.count > 0) SaveFour(sums + 4 * threadIdx.x, sum);
      continue;
    }
    for (int offset = kWarp / 2; offset >= fours; offset /= 2) {
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, offset);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, offset);
      sum.z += __shfl_xor_sync(kAllLanes, sum.z, offset);
      sum.w += __shfl_xor_sync(kAllLanes, sum.w, offset);
    }
    if (lane < fours && warp < part.sums) SaveFour(sums + warp * part.columns + 4 * lane, sum);
  }
}
// A column of what Products() left of a vector, or four.
template <typename Value>
__device__ inline Value SumOfPartial(const float* partial, const HeldPart& part, int column) {
  Value sum = {};
  const float* at = partial + column;
#pragma unroll 4
  for (int i = 0; i < part.sums; ++i, at += part.columns) AddScaled(sum, 1.0f, LoadAs<Value>(at));
  return sum;
}

// One of z_1, delta_2, z_2 and delta_1 of steps: those held back, and the token's own.
struct StepVectors {
  const float *held, *own;
  int between, count;  // of those held back

  __device__ const float* operator[](int i) const { return i < count ? held + i * between : own; }
};
// Factors of steps' products in weights and momenta, before the token and after it. The token's own
// product counts in those after it alone.
struct StepFactors {
  const float *g, *s;
  StepGates gates;
  int count;  // of steps held back

  __device__ float Before(int i) const { return i < count ? g[i] : 0.0f; }
  __device__ float MomentaAfter(int i) const { return i < count ? gates.momentum * s[i] : -1.0f; }
  __device__ float After(int i) const {
    return i < count ? fmaf(gates.keep, g[i], MomentaAfter(i)) : -1.0f;
  }
};

// Warps that do the following, from number kWarps on.
constexpr int kDotWarps = 2;

// dots[i] = by(number of x, i) x y_i of the first `count` vectors y, half a warp each; of one x or
// two.
template <int kVectors, typename By>
__device__ inline void Dots(const float* const (&x)[kVectors], const StepVectors& y, int width,
                            int count, const By& by, float* const (&dots)[kVectors]) {
  constexpr int kHalf = kWarp / 2;
  const int lane = threadIdx.x % kHalf;
  const int number = static_cast<int>(threadIdx.x) / kHalf - 2 * kWarps;
  // A warp's lanes stay together.
  for (int i = number; i / 2 * 2 < count; i += 2 * kDotWarps) {
    float sums[kVectors] = {};
    if (i < count) {
      const float* const of_step = y[i];
      for (int j = 4 * lane; j < width; j += 4 * kHalf) {
        const float4 value = LoadFour(of_step + j);
#pragma unroll
        for (int n = 0; n < kVectors; ++n) {
          const float4 four = LoadFour(x[n] + j);
          sums[n] += (four.x * value.x + four.y * value.y) + (four.z * value.z + four.w * value.w);
        }
      }
    }
#pragma unroll
    for (int offset = kHalf / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        sums[n] += __shfl_xor_sync(kAllLanes, sums[n], offset);
      }
    }
    if (lane != 0 || i >= count) continue;
#pragma unroll
    for (int n = 0; n < kVectors; ++n) dots[n][i] = by(n, i) * sums[n];
  }
}
// sum_i dots[i] y_i of the first `count` vectors, element j, or four from there on.
template <typename Value>
__device__ inline Value SumOfSteps(const float* dots, const StepVectors& y, int count, int j) {
  Value sum = {};
  const int held = min(count, y.count);
  const float* at = y.held + j;
  for (int first = 0; first < held; first += 4) {
    const float4 four = LoadFour(dots + first);
    const float values[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i, at += y.between) {
      if (first + i < held) AddScaled(sum, values[i], LoadAs<Value>(at));
    }
  }
  if (count > held) AddScaled(sum, dots[held], LoadAs<Value>(y.own + j));
  return sum;
}

// y_i = sum_o (kept W + moved S)_io x_o of all rows i, by all threads: eight lanes to a row, four
// rows at once. Rows are a multiple of a warp's four.
__device__ inline void ProductsOfRows(const Matrices& from, const Factors& factors,
                                      const Part& part, const float* x, float* y) {
  constexpr int kLanes = 8, kAtOnce = 4, kBetween = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const float moved = from.zeros ? 0.0f : factors.moved;
  for (int first = thread / kLanes; first < part.rows; first += kAtOnce * kBetween) {
    float of_weights[kAtOnce] = {}, of_momenta[kAtOnce] = {};
    for (int o = thread % kLanes * 4; o < part.columns; o += 4 * kLanes) {
      const float4 four = LoadFour(x + o);
      const auto add = [&](const float* row, float& sum) {
        const float4 w = LoadFour(row + o);
        sum = fmaf(w.w, four.w, fmaf(w.z, four.z, fmaf(w.y, four.y, fmaf(w.x, four.x, sum))));
      };
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * kBetween;
        if (row >= part.rows) continue;
        add(from.weights + row * part.columns, of_weights[i]);
        add(from.momenta + row * part.columns, of_momenta[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float sum = factors.kept * of_weights[i] + moved * of_momenta[i];
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      }
      const int row = first + i * kBetween;
      if (thread % kLanes == 0 && row < part.rows) y[row] = sum;
    }
  }
}

// Adds steps, the token's own too, to a share of W and S, which go to the slab.
__device__ inline void Fold(const Matrices& from, const Factors& factors, const StepVectors& z,
                            const StepVectors& delta, const StepFactors& by, const Part& part,
                            const Share& share, float* weights, float* momenta) {
  const float moved = from.zeros ? 0.0f : factors.moved;
  const float slowed = from.zeros ? 0.0f : factors.slowed;
  ForEachFourRows(from, part, share, [&](int row, float4(&w)[4], float4(&m)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = Mix(factors.kept, w[i], moved, m[i]);
      m[i] = Mix(slowed, m[i], 0, m[i]);
    }
#pragma unroll 2
    for (int step = 0; step <= z.count; ++step) {
      const float4 of_step = LoadFour(delta[step] + share.column);
      const float4 four = LoadFour(z[step] + row);
      const float values[] = {four.x, four.y, four.z, four.w};
      const float of_weights = by.After(step), of_momenta = by.MomentaAfter(step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        AddScaled(w[i], of_weights * values[i], of_step);
        AddScaled(m[i], of_momenta * values[i], of_step);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t to = static_cast<int64_t>(row + i) * part.pitch + share.column;
      __stcs(reinterpret_cast<float4*>(weights + to), w[i]);
      __stcs(reinterpret_cast<float4*>(momenta + to), m[i]);
    }
  });
}

}  // namespace mneme::cuda::neural_memory::resident
