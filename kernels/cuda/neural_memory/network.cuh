// The network of a head of a neural memory, forth and back, by a block of threads. Vectors are in
// shared memory, weights wherever they are. Threads share a product's columns and, where those are
// fewer than the threads, the rows, whose parts are then summed in order.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/ops/neural_memory.h"

namespace mneme::cuda::neural_memory {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct HeadTensors {
  float* at[kMaxMemoryTensors];
};

// Columns [c0, c0 + columns) of a product, and which rows of them are the thread's.
struct Share {
  int column, group, groups;
  __device__ Share(int columns)
      : column(static_cast<int>(threadIdx.x) % columns),
        group(static_cast<int>(threadIdx.x) / columns),
        groups(kThreads / columns) {}
};

// What a pair is trained on: rate_scale is in `rate`, and `loss` may be null.
struct TrainedPair {
  const float *k, *v;
  float rate;
  float* loss;
};

class HeadNetwork {
 public:
  // `gain` and `shift` are the head's, or null.
  __device__ HeadNetwork(const MemoryNetwork& network, int dim, const float* gain,
                         const float* shift, float* shared)
      : net_(network), dim_(dim), static_gain_(gain), shift_(shift) {
    const auto take = [&](int n) {
      float* taken = shared;
      shared += n;
      return taken;
    };
    const int wide = max(dim, net_.hidden);
    partial_ = take(kThreads);
    for (int l = 0; l < net_.depth; ++l) {
      z_[l] = take(l == 0 ? dim : net_.hidden);
      slope_[l] = l == 0 ? nullptr : take(net_.hidden);
      delta_[l] = take(wide);
    }
    y_ = take(dim);
    gain_ = take(dim);
    gain_gradient_ = take(dim);
    read_[0] = take(wide);
    read_[1] = take(wide);
  }

  static int64_t SharedFloats(const MemoryNetwork& network, int64_t dim) {
    const int64_t wide = dim > network.hidden ? dim : network.hidden;
    return kThreads + (3 * network.depth + 5) * wide;
  }

  __device__ int in(int l) const { return static_cast<int>(net_.in(l, dim_)); }
  __device__ int out(int l) const { return static_cast<int>(net_.out(l, dim_)); }
  __device__ int Elements(int t) const { return static_cast<int>(net_.shape(t, dim_).elements()); }
  // The factors of the gradient of weights l, after Train.
  __device__ float* z(int l) const { return z_[l - 1]; }
  __device__ float* delta(int l) const { return delta_[l - 1]; }
  // The gain's gradient, after Train.
  __device__ float* gain_gradient() const { return gain_gradient_; }

  // In every thread. Ends with a barrier.
  __device__ float Sum(float x) const {
    const float sum = BlockSum<kThreads>(x, partial_);
    __syncthreads();  // partial_ is free
    return sum;
  }

  // The loss of a pair and, with `gradients`, what its gradient is made of. Ends with a barrier.
  __device__ void Train(const HeadTensors& from, const TrainedPair& pair, bool gradients) {
    for (int i = threadIdx.x; i < dim_; i += kThreads) z_[0][i] = pair.k[i];
    __syncthreads();
    for (int l = 1; l <= net_.depth; ++l) {
      float* a = l == net_.depth ? y_ : z_[l];
      Multiply(z_[l - 1], l, Bias(from, l), a, Plain{from.at[l - 1]});
      if (l < net_.depth) ActivateLayer(a, slope_[l]);
    }
    FindGain(from);
    Error(pair);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    for (int l = net_.depth; gradients && l > 1; --l) {
      for (int i = warp; i < net_.hidden; i += kWarps) {
        const float* row = from.at[l - 1] + int64_t{i} * out(l);
        float sum = 0;
        for (int o = lane; o < out(l); o += kWarp) sum = fmaf(row[o], delta_[l - 1][o], sum);
        sum = WarpSum(sum);
        if (lane == 0) delta_[l - 2][i] = sum * slope_[l - 1][i];
      }
      __syncthreads();
    }
  }

  // out = M(q). Ends with a barrier.
  __device__ void Read(const HeadTensors& from, const float* q, float* out) {
    ReadBy(from, q, out, [&](int l) { return Plain{from.at[l - 1]}; });
  }
  // The same, where weights(l)(row, column, index) are the weights l, which it may change first;
  // out may be null.
  template <typename Weights>
  __device__ void ReadBy(const HeadTensors& from, const float* q, float* out, Weights weights) {
    float* y = Pass(from, q, weights);
    if (out == nullptr) return;
    FindGain(from);
    Emit(q, y, out);
  }
  // From `from` - ahead sums.
  __device__ void ReadAhead(const HeadTensors& from, const HeadTensors& sums, float ahead,
                            const float* q, float* to) {
    const float* x = q;
    for (int l = 1; l <= net_.depth; ++l) {
      float* y = read_[l % 2];
      const float *weights = from.at[l - 1], *less = sums.at[l - 1];
      Multiply(x, l, nullptr, y,
               [=](int, int, int64_t at) { return fmaf(-ahead, less[at], weights[at]); });
      for (int i = threadIdx.x; net_.biases && i < out(l); i += kThreads) {
        y[i] += fmaf(-ahead, Bias(sums, l)[i], Bias(from, l)[i]);
      }
      __syncthreads();
      if (l < net_.depth) ActivateLayer(y, nullptr);
      x = y;
    }
    FindGain(from);
    for (int i = threadIdx.x; net_.trains_gain && i < dim_; i += kThreads) {
      gain_[i] -= ahead * sums.at[net_.gain()][i];
    }
    __syncthreads();
    Emit(q, read_[net_.depth % 2], to);
  }

 private:
  struct Plain {
    const float* weights;
    __device__ float operator()(int, int, int64_t at) const { return weights[at]; }
  };

  __device__ const float* Bias(const HeadTensors& from, int l) const {
    return net_.biases ? from.at[net_.depth + l - 1] : nullptr;
  }

  // y = bias + x W, W element by element from weight(row, column, index); bias may be null. `y` is
  // in shared memory, and so is `x` but for the first. Ends with a barrier.
  template <typename Weight>
  __device__ void Multiply(const float* x, int l, const float* bias, float* y, Weight weight) {
    const int rows = in(l), all = out(l);
    for (int c0 = 0; c0 < all; c0 += kThreads) {
      const int columns = min(all - c0, kThreads);
      const Share share(columns);
      const int c = c0 + share.column;
      float sum = 0;
      if (share.group < share.groups) {
#pragma unroll 4
        for (int i = share.group; i < rows; i += share.groups) {
          sum = fmaf(x[i], weight(i, c, int64_t{i} * all + c), sum);
        }
      }
      partial_[threadIdx.x] = sum;
      __syncthreads();
      if (share.group == 0) {
        for (int g = 1; g < share.groups; ++g) sum += partial_[g * columns + share.column];
        y[c] = bias == nullptr ? sum : sum + bias[c];
      }
      __syncthreads();
    }
  }
  // Returns y.
  template <typename Weights>
  __device__ float* Pass(const HeadTensors& from, const float* x, Weights weights) {
    for (int l = 1; l <= net_.depth; ++l) {
      float* y = read_[l % 2];
      Multiply(x, l, Bias(from, l), y, weights(l));
      if (l < net_.depth) ActivateLayer(y, nullptr);
      x = y;
    }
    return read_[net_.depth % 2];
  }

  __device__ void ActivateLayer(float* a, float* slope) const {
    for (int i = threadIdx.x; i < net_.hidden; i += kThreads) {
      float derivative;
      a[i] = Activate(net_.activation, a[i], &derivative);
      if (slope != nullptr) slope[i] = derivative;
    }
    __syncthreads();
  }
  __device__ void FindGain(const HeadTensors& from) {
    if (net_.norm == MemoryNetwork::Norm::kNone) return;
    for (int i = threadIdx.x; i < dim_; i += kThreads) {
      gain_[i] = net_.trains_gain ? net_.gain_offset + from.at[net_.gain()][i] : static_gain_[i];
    }
    __syncthreads();
  }
  // y becomes n; returns what y was divided by.
  __device__ float NormInPlace(float* y) const {
    const auto width = static_cast<float>(dim_);
    float mean = 0, squares = 0;
    if (net_.norm == MemoryNetwork::Norm::kLayer) {
      for (int i = threadIdx.x; i < dim_; i += kThreads) mean += y[i];
      mean = Sum(mean) / width;
    }
    for (int i = threadIdx.x; i < dim_; i += kThreads) squares += (y[i] - mean) * (y[i] - mean);
    const float spread = sqrtf(Sum(squares) / width + net_.eps);
    for (int i = threadIdx.x; i < dim_; i += kThreads) y[i] = (y[i] - mean) / spread;
    __syncthreads();
    return spread;
  }
  __device__ float Output(const float* x, const float* n, int i) const {
    return x[i] + (n[i] * gain_[i] + (shift_ == nullptr ? 0.0f : shift_[i]));
  }

  // From y to delta of the last layer.
  __device__ void Error(const TrainedPair& pair) {
    float* delta = delta_[net_.depth - 1];
    const bool normed = net_.norm != MemoryNetwork::Norm::kNone;
    const float spread = normed ? NormInPlace(y_) : 1.0f;
    const auto width = static_cast<float>(dim_);
    float mean = 0, along = 0, loss = 0;
    for (int i = threadIdx.x; i < dim_; i += kThreads) {
      const float off = (normed ? Output(z_[0], y_, i) : y_[i]) - pair.v[i];
      loss = fmaf(off, off, loss);
      const float error = pair.rate * off;
      gain_gradient_[i] = error * y_[i];
      delta[i] = normed ? error * gain_[i] : error;
      mean += delta[i];
      along = fmaf(delta[i], y_[i], along);
    }
    if (pair.loss != nullptr) {
      loss = Sum(loss);
      if (threadIdx.x == 0) *pair.loss = loss;
    }
    if (normed) {
      mean = net_.norm == MemoryNetwork::Norm::kLayer ? Sum(mean) / width : 0.0f;
      along = Sum(along) / width;
      for (int i = threadIdx.x; i < dim_; i += kThreads) {
        delta[i] = (delta[i] - mean - y_[i] * along) / spread;
      }
    }
    __syncthreads();
  }

  __device__ void Emit(const float* q, float* y, float* out) {
    const bool normed = net_.norm != MemoryNetwork::Norm::kNone;
    if (normed) NormInPlace(y);
    for (int i = threadIdx.x; i < dim_; i += kThreads) out[i] = normed ? Output(q, y, i) : y[i];
    __syncthreads();  // vectors are free
  }

  const MemoryNetwork& net_;
  const int dim_;
  const float *static_gain_, *shift_;
  float *z_[kMaxMemoryDepth], *slope_[kMaxMemoryDepth], *delta_[kMaxMemoryDepth];  // by layer
  float *partial_, *y_, *gain_, *gain_gradient_, *read_[2];
};

}  // namespace mneme::cuda::neural_memory
