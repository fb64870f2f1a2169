// Products of some rows with the weights of a neural memory. Included by neural_memory.cc only.
//
// Every number is summed in one order, whatever the number of rows.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd_arrays.h"

namespace mneme::MNEME_ISA {

// Rows that go through a network together.
constexpr int kMemoryRows = 16;

// Vectors of outputs that are summed together, in registers: of one row, of four. With more of one
// row, twice as many streams are read and written at once, and memory is slower.
#if defined(__AVX512F__)
constexpr int kColumns = 4, kColumnsOfFour = 4;
#else
constexpr int kColumns = 4, kColumnsOfFour = 1;
#endif

// Floats of a vector of `n`, as a multiple of lanes.
constexpr int64_t PaddedFloats(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Some rows of floats.
struct Rows {
  float* data = nullptr;
  int64_t pitch = 0;

  MNEME_INLINE float* operator[](int64_t r) const { return data + r * pitch; }
};

// Calls f.template operator()<N>(column, lanes) for all columns, of as many vectors as fit.
template <int N, typename F>
MNEME_INLINE void ForColumns(int64_t out, F f) {
  int64_t c = 0;
  for (; c + N * kLanes <= out; c += N * kLanes) f.template operator()<N>(c, kLanes);
  for (; c < out; c += kLanes) {
    f.template operator()<1>(c, static_cast<int>(out - c < kLanes ? out - c : kLanes));
  }
}

// Vector v of N, of which the last may be partial.
template <int N>
MNEME_INLINE Vec LoadOf(const float* p, int v, int lanes) {
  return v == N - 1 ? LoadUpTo(p + v * kLanes, lanes) : Load(p + v * kLanes);
}
template <int N>
MNEME_INLINE void StoreOf(float* p, int v, Vec value, int lanes) {
  if (v == N - 1) {
    StoreUpTo(p + v * kLanes, value, lanes);
  } else {
    Store(p + v * kLanes, value);
  }
}

template <int R>
MNEME_INLINE void ProductOf(Rows x, const float* weights, int64_t in, int64_t out,
                            const float* bias, Rows y) {
  ForColumns<R == 1 ? kColumns : kColumnsOfFour>(out, [&]<int N>(int64_t c, int lanes) {
    Vec sums[R][N];
    MNEME_UNROLL
    for (int v = 0; v < N; ++v) {
      const Vec start = bias == nullptr ? Zero() : LoadOf<N>(bias + c, v, lanes);
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) sums[r][v] = start;
    }
    for (int64_t i = 0; i < in; ++i) {
      const float* row = weights + i * out + c;
      Vec w[N];
      MNEME_UNROLL
      for (int v = 0; v < N; ++v) w[v] = LoadOf<N>(row, v, lanes);
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec by = Set1(x[r][i]);
        MNEME_UNROLL
        for (int v = 0; v < N; ++v) sums[r][v] = MulAdd(by, w[v], sums[r][v]);
      }
    }
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      MNEME_UNROLL
      for (int v = 0; v < N; ++v) StoreOf<N>(y[r] + c, v, sums[r][v], lanes);
    }
  });
}

// y[r] = bias + x[r] W, W [in, out]; bias may be null.
inline void Products(Rows x, int rows, const float* weights, int64_t in, int64_t out,
                     const float* bias, Rows y) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    ProductOf<4>({x[r], x.pitch}, weights, in, out, bias, {y[r], y.pitch});
  }
  for (; r < rows; ++r) ProductOf<1>({x[r], x.pitch}, weights, in, out, bias, {y[r], y.pitch});
}

template <int R, int I>
MNEME_INLINE void ProductOfRowsOf(const float* weights, int64_t out, Rows x, int64_t i, Rows y) {
  Vec sums[R][I];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int j = 0; j < I; ++j) sums[r][j] = Zero();
  }
  ForVectors(out, [&](int64_t o, int lanes) {
    Vec by[R];
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) by[r] = LoadUpTo(x[r] + o, lanes);
    MNEME_UNROLL
    for (int j = 0; j < I; ++j) {
      const Vec w = LoadUpTo(weights + (i + j) * out + o, lanes);
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) sums[r][j] = MulAdd(w, by[r], sums[r][j]);
    }
  });
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int j = 0; j < I; ++j) y[r][i + j] = Sum(sums[r][j]);
  }
}

// y[r][i] = row i of W . x[r], W [in, out]
inline void ProductsOfRows(const float* weights, int64_t in, int64_t out, Rows x, int rows,
                           Rows y) {
  const auto all = [&]<int R>(Rows own, Rows to) {
    int64_t i = 0;
    for (; i + 4 <= in; i += 4) ProductOfRowsOf<R, 4>(weights, out, own, i, to);
    for (; i < in; ++i) ProductOfRowsOf<R, 1>(weights, out, own, i, to);
  };
  int r = 0;
  for (; r + 2 <= rows; r += 2) all.template operator()<2>({x[r], x.pitch}, {y[r], y.pitch});
  for (; r < rows; ++r) all.template operator()<1>({x[r], x.pitch}, {y[r], y.pitch});
}

}  // namespace mneme::MNEME_ISA
