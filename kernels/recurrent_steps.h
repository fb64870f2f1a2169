// Parts of layers of RWKV and of Mamba-2 as one operation. As in decode_step.h, what they compute
// is defined by the operations of kernels.h that they stand for, in the order named, and a device
// that has no fused form, for these arguments or at all, says so.
#pragma once

#include <span>

#include "kernels/kernels.h"

namespace mneme {

// y = activation(x W^T + bias): Linear, Activate.
struct ActivatedProduct {
  LinearArgs product;  // y act, or as LinearArgs::x; does not accumulate
  Activation activation = Activation::kIdentity;
};

// A step and the products in front of it that make what its gates and its output take: Linear,
// Rwkv7Step.
struct Rwkv7LayerStepArgs {
  std::span<const LinearArgs> low_rank;
  const Rwkv7StepArgs& step;
};

// A step with what is around it: ShortConv, Mamba2Step, GatedRmsNorm.
struct Mamba2LayerStepArgs {
  std::span<const ShortConvArgs> convolutions;
  const Mamba2StepArgs& step;    // where writes are held back, too
  const GatedRmsNormArgs* norm;  // null: none
};

// What a backend's kernels have beside Kernels, if they can fuse such steps. False: nothing was
// done, the caller goes operation by operation.
class RecurrentSteps {
 public:
  virtual ~RecurrentSteps() = default;

  // Independent products, as those of Linear.
  virtual bool ActivatedProducts(std::span<const ActivatedProduct> products) = 0;
  virtual bool Rwkv7LayerStep(const Rwkv7LayerStepArgs& args) = 0;
  virtual bool Mamba2LayerStep(const Mamba2LayerStepArgs& args) = 0;
};

// Those of a backend, or null.
inline RecurrentSteps* RecurrentStepsOf(Kernels& kernels) {
  return dynamic_cast<RecurrentSteps*>(&kernels);
}

}  // namespace mneme
