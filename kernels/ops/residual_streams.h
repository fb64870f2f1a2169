// Residual connections of several streams: hyper-connections (Zhu et al., arXiv:2409.19606) and
// manifold-constrained ones (Xie et al., arXiv:2512.24880). kernels/kernels.h has the conventions.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme {

constexpr int kMaxResidualStreams = 16;

// How a branch reads the streams X_s of a token, and what they are mixed to beneath it:
//   z_s    = X_s / max(|X_s|, 1e-12) sqrt(dim) (1 + gain)
//   t_s    = alpha_weight z_s;   u_s = beta_weight . z_s
//   input  = sum_s pre_s X_s;    X'_t = sum_s R_s,t X_s;    and X_t = X'_t + post_t output
// kDynamic      pre_s = A_s,0;  R_s,t = A_s,1+t;  post_s = post_scale tanh(u_s) + beta_s
//               A_s,j = scale_j tanh(t_s,j) + alpha_s,j
// kConstrained  pre_s = sigmoid(A_s,0);  R = S(A_s,1+t);  post_s = 2 sigmoid(post_scale u_s +
// beta_s)
//               A_s,j = scale_j t_s,j + alpha_s,j
// kSum          the same, but R_s,t = 1
// scale_0 is pre_scale, the others are residual_scale. S makes a matrix doubly stochastic: exp(A
// less the largest of its column), then 20 times columns and rows divided by their sums, which are
// not taken below 1e-12.
struct StreamMixing {
  enum class Kind : uint8_t { kDynamic, kConstrained, kSum };

  Kind kind = Kind::kConstrained;
  TensorView gain;          // [dim] f32
  TensorView alpha;         // [streams, 1 + streams] f32
  TensorView alpha_weight;  // [1 + streams, dim] f32
  TensorView beta;          // [streams] f32, or empty: see ReadStreamsArgs
  TensorView beta_weight;   // [dim] f32, where there is a beta
  TensorView scales;        // [3] f32: pre_scale, residual_scale, post_scale
};

// A branch reads the streams as this says. Without a beta nothing is written back to them, and they
// stay as they are.
struct ReadStreamsArgs {
  StreamMixing mixing;
  TensorView x;     // [tokens, streams, dim] act; becomes X'
  TensorView y;     // [tokens, dim] act: the branch's input
  TensorView post;  // [tokens, streams] act, or empty without a beta
};

// y_t += post_t x
struct WriteStreamsArgs {
  TensorView x;     // [tokens, dim] act: the branch's output
  TensorView post;  // [tokens, streams] act
  TensorView y;     // [tokens, streams, dim] act, updated in place
};

// y_s = x + embedding_s
struct ExpandStreamsArgs {
  TensorView x;          // [tokens, dim] act
  TensorView embedding;  // [streams, dim] f32
  TensorView y;          // [tokens, streams, dim] act
};

// y = sum_s x_s
struct SumStreamsArgs {
  TensorView x;  // [tokens, streams, dim] act
  TensorView y;  // [tokens, dim] act
};

// Sums of what is at hand of every token, such as the inputs and outputs of the layers below:
//   y[v, t] = sum_j weights[t, v, j] x[j, t]
struct MixViewsArgs {
  TensorView x;        // [count, tokens, dim] act
  TensorView weights;  // [tokens, views, count] act
  TensorView y;        // [views, tokens, dim] act
};

class ResidualStreamKernels {
 public:
  virtual ~ResidualStreamKernels() = default;

  virtual void ExpandStreams(const ExpandStreamsArgs& args) = 0;
  virtual void ReadStreams(const ReadStreamsArgs& args) = 0;
  virtual void WriteStreams(const WriteStreamsArgs& args) = 0;
  virtual void SumStreams(const SumStreamsArgs& args) = 0;
  virtual void MixViews(const MixViewsArgs& args) = 0;
};

}  // namespace mneme
