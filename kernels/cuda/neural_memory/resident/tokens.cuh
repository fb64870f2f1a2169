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
  // The same of tokens from `first` on, whose x and z these are; ends with none. Where it is called
  // in several places it is a function of its own: all copies of its code would not fit the
  // instruction cache. What it is given then is told by places in the memory that the block shares.
  __device__ void Products(const float* x, int count, float* z, const int (&weights)[2],
                           const Options& options, float* outputs, int first) {
    if constexpr (kOutputs == Outputs::kToOwner) {
      ProductsApart(p_, static_cast<int>(x - shared_), count, static_cast<int>(z - shared_),
                    weights,
                    options.slopes == nullptr ? -1 : static_cast<int>(options.slopes - shared_),
                    static_cast<int>(outputs - shared_), first);
    } else {
      ProductsHere(x, count, z, weights, options, outputs, first);
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
  __device__ void ProductsHere(const float* x, int count, float* z, const int (&weights)[2],
                               const Options& options, float* outputs, int first) const {
    const Part &part_1 = p_.division.parts[0], &part_2 = p_.division.parts[kDepth - 1];
    // Behind the sums, of which there are many copies in the code: an activation takes so much of
    // it that those of all sums would not fit the instruction cache.
    const auto activate = [&] {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < count * part_1.columns; i += kThreads) {
        float a = z[i], slope;
        if (options.unit_biases != nullptr) a += options.unit_biases[i % part_1.columns];
        z[i] = Activate(p_.network.activation, a, &slope);
        if (options.slopes != nullptr) options.slopes[i] = slope;
      }
      __syncthreads();
    };
    if (count == 1) {
      float* const partial = shared_ + p_.division.at.partial;
      ProductOfShare<kHeld>(x, shared_ + weights[0], part_1, Share(part_1), partial);
      __syncthreads();
      if constexpr (kDepth > 1) {
        for (int i = static_cast<int>(threadIdx.x); i < part_1.columns; i += kThreads) {
          z[i] = SumOfGroups(partial, part_1, i);
        }
        activate();
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
                           SaveFour(z + token * part_1.columns + column, a);
                         });
        activate();
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
  // Without biases. `slopes` below 0: none.
  __device__ __noinline__ static void ProductsApart(const Params& p, int x, int count, int z,
                                                    const int (&weights)[2], int slopes,
                                                    int outputs, int first) {
    extern __shared__ float4 shared_fours[];
    float* const shared = reinterpret_cast<float*>(shared_fours);
    const Team team;
    NetworkOfTokens(p, team, shared)
        .ProductsHere(shared + x, count, shared + z, weights,
                      {.slopes = slopes < 0 ? nullptr : shared + slopes}, shared + outputs, first);
  }

  const Params& p_;
  const Team& team_;
  float* const shared_;
  const int between_;  // of the blocks' parts
  int turn_ = 0;
};

}  // namespace mneme::cuda::neural_memory::resident
