// Parts of networks with a norm in them as one operation, for steps in which every row feeds one
// token. As in decode_step.h, what they compute is defined by the operations of kernels.h that they
// stand for, in the order named, and a device that has no fused form, for these arguments or at
// all, says so.
//
// What feeds a product of such a step is best left as it takes it (LinearArgs::x): the `out` of
// Attention and of EngramAttention may be so where every row feeds one token, and the x of
// GatherEngrams always.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/tensor_view.h"

namespace mneme {

// A norm as part of an operation.
struct StepNorm {
  TensorView weight;  // [model_dim] f32
  TensorView bias;    // [model_dim] f32, or empty: 0
  float eps = 1e-5f;
  bool centred = true;  // else it is RmsNorm, without a bias
};

// One matrix for all rows, and its bias.
struct StepProduct {
  PackedMatrix weights;  // [out_features, in_features]
  TensorView bias;       // [1, out_features] f32, or empty: 0
};

// y_i = activation(W_i LayerNorm(hidden) + b_i): LayerNorm, Linear, Activate.
struct NormedProductsStepArgs {
  StepNorm norm;
  TensorView hidden;  // [rows, model_dim] act
  struct Product {
    StepProduct product;  // in_features: model_dim
    TensorView y;         // [rows, out_features] act, or as LinearArgs::x
  };
  std::span<const Product> products;  // one at least
  Activation activation = Activation::kIdentity;
};

// hidden += W x + b, of the rows at positions from `first` on: Linear, AddFrom.
struct ResidualProductStepArgs {
  TensorView x;          // [rows, in_features] as LinearArgs::x
  StepProduct product;   // out_features: model_dim
  TensorView positions;  // [rows] i64, or empty: all rows
  int64_t first = 0;
  TensorView hidden;  // [rows, model_dim] act, updated in place
};

// EngramAttention(W_q x + b_q), x = LayerNorm(hidden): LayerNorm, Linear, EngramAttention.
struct EngramReadStepArgs {
  StepNorm norm;
  TensorView hidden;  // [rows, model_dim] act
  StepProduct q;      // in_features: model_dim
  // Rows have one token each. Its q is room for the product, which may stay as it is.
  EngramAttentionArgs engrams;
};

// hidden += convolution(RmsNorm(hidden)), whose x and y are room: RmsNorm, ShortConv, AddScaled.
struct NormedConvolutionStepArgs {
  StepNorm norm;      // not centred
  TensorView hidden;  // [rows, model_dim] act, updated in place
  ShortConvArgs convolution;
  // Whether whatever writes segments and windows was launched before an operation that no other one
  // overlaps: then they may be read while the one ahead still runs.
  bool settled = false;
};

// hidden += activation_0(RmsNorm_0(x_0)) * activation_1(RmsNorm_1(x_1)): RmsNorm, Activate,
// Multiply. What x hold afterwards is unspecified.
struct NormedGateStepArgs {
  struct Factor {
    TensorView x;   // [rows, model_dim] act
    StepNorm norm;  // not centred
    Activation activation = Activation::kIdentity;
  };
  Factor factors[2];
  TensorView hidden;  // [rows, model_dim] act, updated in place
};

// A backend's kernels have this beside Kernels, if they can fuse such steps. False: nothing was
// done, the caller goes operation by operation.
class LayerNormSteps {
 public:
  virtual ~LayerNormSteps() = default;

  virtual bool NormedProductsStep(const NormedProductsStepArgs& args) = 0;
  virtual bool ResidualProductStep(const ResidualProductStepArgs& args) = 0;
  virtual bool EngramReadStep(const EngramReadStepArgs& args) = 0;
  virtual bool NormedConvolutionStep(const NormedConvolutionStepArgs& args) = 0;
  virtual bool NormedGateStep(const NormedGateStepArgs& args) = 0;
};

// Those of a backend, or null.
inline LayerNormSteps* LayerNormStepsOf(Kernels& kernels) {
  return dynamic_cast<LayerNormSteps*>(&kernels);
}

}  // namespace mneme
