// Several tokens at once through a network whose hidden units are divided among the blocks of a
// cluster.
#pragma once

#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/head.cuh"

namespace mneme::cuda::neural_memory::resident {

template <int kDepth, int kHeld, Outputs kOutputs = Outputs::kToAll>
class NetworkOfTokens {
 public:
  __device__ NetworkOfTokens(const Params& p, const Team& team, float* shared)
      : p_(p), team_(team), shared_(shared), between_(p.division.owned * p.dim) {}

  // All in shared memory; null: none.
  struct Options {
    float* slopes;             // of the hidden units, [tokens, units]
    const float* unit_biases;  // of this block's hidden units
    // Those of the outputs, or of this block's; of two products, for one of the blocks.
    const float* output_biases;
  };

  // The outputs of `count` vectors x at the blocks that see them, as parts for Norm(); z becomes
  // those of the hidden units. Begins behind a barrier and ends with one. The outputs are there
  // until the call after next.
  __device__ float* Run(const float* x, int count, const int (&weights)[2],
                        const Options& options) {
    float* const outputs = NextOutputs();
    Products(x, count, shared_ + p_.division.at.z, weights, options, outputs, 0);
    team_.Sync();
    return outputs;
  }
  // The same of tokens from `first` on, whose x and z these are; ends with none.
  __device__ void Products(const float* x, int count, float* z, const int (&weights)[2],
                           const Options& options, float* outputs, int first) {
    const Part &part_1 = p_.division.parts[0], &part_2 = p_.division.parts[kDepth - 1];
    const auto activate = [&](int token, int unit, float a) {
      if (options.unit_biases != nullptr) a += options.unit_biases[unit];
      float slope;
      z[token * part_1.columns + unit] = Activate(p_.network.activation, a, &slope);
      if (options.slopes != nullptr) options.slopes[token * part_1.columns + unit] = slope;
    };
    if (count == 1) {
      float* const partial = shared_ + p_.division.at.partial;
      ProductOfShare<kHeld>(x, shared_ + weights[0], part_1, Share(part_1), partial);
      __syncthreads();
      if constexpr (kDepth > 1) {
        for (int i = static_cast<int>(threadIdx.x); i < part_1.columns; i += kThreads) {
          activate(0, i, SumOfGroups(partial, part_1, i));
        }
        __syncthreads();
        ProductOfShare<kHeld>(z, shared_ + weights[1], part_2, Share(part_2), partial);
        __syncthreads();
      }
      for (int i = static_cast<int>(threadIdx.x); i < part_2.columns; i += kThreads) {
        float y = SumOfGroups(partial, part_2, i);
        if (options.output_biases != nullptr) y += options.output_biases[i];
        Send(outputs, first, i, y);
      }
    } else {
      if constexpr (kDepth > 1) {
        ProductsOfTokens(x, count, shared_ + weights[0], part_1,
                         [&](int token, int column, const float4& a) {
                           activate(token, column, a.x);
                           activate(token, column + 1, a.y);
                           activate(token, column + 2, a.z);
                           activate(token, column + 3, a.w);
                         });
        __syncthreads();
      }
      ProductsOfTokens(kDepth > 1 ? z : x, count, shared_ + weights[kDepth - 1], part_2,
                       [&](int token, int column, float4 y) {
                         if (options.output_biases != nullptr) {
                           AddScaled(y, 1.0f, LoadFour(options.output_biases + column));
                         }
                         Send(outputs, first + token, column, y);
                       });
    }
  }

  // Where the next outputs go.
  __device__ float* NextOutputs() {
    float* const outputs = shared_ + p_.division.at.outputs[turn_];
    turn_ ^= 1;
    return outputs;
  }
  // Columns of this block, or its part of their sums, to the blocks that see them.
  template <typename T>
  __device__ void Send(float* outputs, int token, int column, const T& y) const {
    const int own =
        kDepth > 1 ? team_.rank() * between_ : team_.rank() * p_.division.parts[0].columns;
    if constexpr (kOutputs == Outputs::kToOwner) {
      float* const here = outputs + own + token / p_.blocks * p_.dim + column;
      *reinterpret_cast<T*>(team_.Of(token % p_.blocks, here)) = y;
    } else {
      float* const here = outputs + own + token * p_.dim + column;
#pragma unroll 1
      for (int to = 0; to < p_.blocks; ++to) *reinterpret_cast<T*>(team_.Of(to, here)) = y;
    }
  }
  // ErrorOfWarp() of a token's outputs.
  __device__ float Error(float* outputs, const float* k, float* v, const float* gain, float rate,
                         float* error) const {
    return ErrorOfWarp(p_, outputs, kDepth > 1 ? p_.blocks : 1, between_, k, v, gain,
                       shared_ + p_.division.at.shift, rate, error);
  }
  // NormOfWarp() of a token's outputs, in place of the first of their parts.
  __device__ float Norm(float* outputs) const {
    return NormOfWarp(p_.network, p_.dim, outputs, kDepth > 1 ? p_.blocks : 1, between_, outputs);
  }

 private:
  const Params& p_;
  const Team& team_;
  float* const shared_;
  const int between_;  // of the blocks' parts
  int turn_ = 0;
};

}  // namespace mneme::cuda::neural_memory::resident
