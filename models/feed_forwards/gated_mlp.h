// The gated MLP: residual += down( silu(gate x) * (up x) ), of products with biases or without.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/feed_forward.h"
#include "models/layer_builder.h"
#include "models/projection.h"

namespace mneme {

// Weights mlp.{gate,up,down}_proj, `mlp_dim` wide. Old files have no up_proj: there gate_proj is
// [2 mlp_dim, model_dim], the gate's rows first.
absl::StatusOr<std::unique_ptr<FeedForward>> MakeGatedMlp(const LayerBuilder& builder, int mlp_dim,
                                                          Bias bias = Bias::kNone);

}  // namespace mneme
