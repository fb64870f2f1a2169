// A feed-forward network without a gate.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops/dense.h"
#include "models/feed_forward.h"
#include "models/layer_builder.h"
#include "models/projection.h"

namespace mneme {

//   hidden += down( activation( up x ) ), x = Norm(hidden), each with its bias
struct MlpConfig {
  int dim = 1;  // between the two
  Activation activation = Activation::kRelu;
  std::string up, down;  // names of tensors, behind the layer's, without ".weight" and ".bias"
  Bias bias = Bias::kAdded;
  MatrixOrder order = MatrixOrder::kOutIn;
};

absl::StatusOr<std::unique_ptr<FeedForward>> MakeMlp(const LayerBuilder& builder,
                                                     const MlpConfig& config);

}  // namespace mneme
