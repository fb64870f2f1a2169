// The way out of a layer with memories: what was read of them is mixed, normed, gated, projected.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {

struct MemoryOutputOptions {
  std::string norm;  // "attn.o_norm"; its weight is [dim], or, with `affine` false, ones
  bool affine = true;
  float eps = 1e-6f;
  int heads = 1, dim = 0;  // each of `heads` parts of `dim` channels is normed by itself
  Activation before = Activation::kIdentity;  // of what was read, before it is normed
  Activation gate = Activation::kSilu;        // of the output gate, if there is one
};

class MemoryOutput {
 public:
  // Takes the norm and attn.o_proj.
  static absl::StatusOr<MemoryOutput> Make(const LayerBuilder& builder,
                                           const MemoryOutputOptions& options);

  //   y = sum_j weights_j read_j        over the memories of a token, behind a router
  //   residual += o_proj( RmsNorm_head(before(y)) * gate_activation(gate) )
  //   read      [entries, heads * dim] act; overwritten
  //   gate      [tokens, heads * dim] as LinearArgs::y; overwritten; or empty
  //   residual  [tokens, model_dim] act
  void Emit(ForwardContext& ctx, const StepEntries& entries, TensorView read, TensorView gate,
            TensorView residual) const;

  const TensorView& norm() const { return norm_; }
  float eps() const { return options_.eps; }
  const PackedMatrix& projection() const { return projection_; }

 private:
  MemoryOutputOptions options_;
  TensorView norm_;          // [dim] f32
  PackedMatrix projection_;  // [model_dim, heads * dim]
};

// The name of an output norm that a family calls one way where its gate is fused with it and
// another way where it is not: whichever of the two the layer has, `fused` if neither.
std::string EitherNorm(const LayerBuilder& builder, const char* fused, const char* plain);

}  // namespace mneme
