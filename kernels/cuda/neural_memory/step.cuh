// What a step of a neural memory makes of a gradient, by a block of threads.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/neural_memory/network.cuh"
#include "kernels/ops/neural_memory.h"

namespace mneme::cuda::neural_memory {

// The numbers of one step of one head.
struct StepGates {
  float keep = 1;
  float momentum[kMaxMomentumOrders] = {};
  float mix[kMaxMomentumOrders + 1] = {};  // of S_0, S_1, ..
  int orders = 0;
};

// U of an element of S_0, whose S_1 is at `momentum` and the next order `pitch` behind; momenta go
// one step on.
__device__ inline float UpdateOf(const StepGates& gates, float s, float* momentum, int64_t pitch) {
  float update = gates.mix[0] * s;
#pragma unroll
  for (int order = 0; order < kMaxMomentumOrders; ++order) {
    if (order >= gates.orders) break;
    float* own = momentum + order * pitch;
    *own = s = fmaf(gates.momentum[order], *own, s);
    update = fmaf(gates.mix[order + 1], s, update);
  }
  return update;
}

// element(i, j) of a product x y, x [rows, n] and y [n, cols], each as value(row, column).
template <typename X, typename Y, typename Store>
__device__ inline void MatrixProduct(int rows, int n, int cols, X x, Y y, Store store) {
  for (int at = threadIdx.x; at < rows * cols; at += kThreads) {
    const int i = at / cols, j = at % cols;
    float sum = 0;
    for (int l = 0; l < n; ++l) sum = fmaf(x(i, l), y(l, j), sum);
    store(at, sum);
  }
  __syncthreads();
}

inline int64_t OrthogonalFloats(int64_t rows, int64_t cols) {
  const int64_t least = rows < cols ? rows : cols;
  return 2 * rows * cols + 2 * least * least;
}

// u = Orthogonal(u), [rows, cols], in memory that the block shares. Ends with a barrier.
__device__ inline void Orthogonalise(const HeadNetwork& network, float* u, int rows, int cols,
                                     float* scratch) {
  const int least = min(rows, cols), most = max(rows, cols), n = rows * cols;
  // Element (i, j) of what has no more rows than columns.
  const auto place = [=](int at) { return rows > cols ? at % most * cols + at / most : at; };
  float *x = scratch, *next = x + n, *y = next + n, *polynomial = y + least * least;
  float squares = 0;
  for (int at = threadIdx.x; at < n; at += kThreads) squares = fmaf(u[at], u[at], squares);
  const float by = 1.0f / fmaxf(sqrtf(network.Sum(squares)), 1e-7f);
  for (int at = threadIdx.x; at < n; at += kThreads) x[at] = by * u[place(at)];
  __syncthreads();
  for (int step = 0; step < 5; ++step) {
    MatrixProduct(
        least, most, least, [=](int i, int l) { return x[i * most + l]; },
        [=](int l, int j) { return x[j * most + l]; }, [=](int at, float sum) { y[at] = sum; });
    MatrixProduct(
        least, least, least, [=](int i, int l) { return y[i * least + l]; },
        [=](int l, int j) { return y[l * least + j]; },
        [=](int at, float sum) { polynomial[at] = fmaf(2.0315f, sum, -4.7750f * y[at]); });
    MatrixProduct(
        least, least, most, [=](int i, int l) { return polynomial[i * least + l]; },
        [=](int l, int j) { return x[l * most + j]; },
        [=](int at, float sum) { next[at] = fmaf(3.4445f, x[at], sum); });
    float* former = x;
    x = next;
    next = former;
  }
  for (int at = threadIdx.x; at < n; at += kThreads) u[place(at)] = x[at];
  __syncthreads();
}

}  // namespace mneme::cuda::neural_memory
