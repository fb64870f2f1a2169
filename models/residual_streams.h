// Residual connections of several streams (kernels/ops/residual_streams.h), as layers hold them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"

namespace mneme {

struct ResidualStreamsConfig {
  int streams = 1;  // 1: a residual stream as elsewhere, without tensors
  StreamMixing::Kind mixing = StreamMixing::Kind::kConstrained;
};

// The connection of one branch, such as attention, to the streams of a layer.
class StreamBranch {
 public:
  // Tensors behind "<prefix>": static_alpha, dynamic_alpha_fn, norm.gamma and the scales, with
  // `writes` static_beta and dynamic_beta_fn, too.
  static absl::StatusOr<StreamBranch> Take(const LayerBuilder& builder, absl::string_view prefix,
                                           const ResidualStreamsConfig& config, bool writes);

  // The branch's input. Where it writes, the streams become what the output is added to, and the
  // result is what Write() wants, in the caller's workspace scope.
  //   streams  [tokens, streams, model_dim] act;   input  [tokens, model_dim] act
  TensorView Read(ForwardContext& ctx, const TensorView& streams, const TensorView& input) const;
  // Adds the branch's output, [tokens, model_dim] act.
  void Write(ForwardContext& ctx, const TensorView& post, const TensorView& output,
             const TensorView& streams) const;

 private:
  bool single_ = false, writes_ = true;
  StreamMixing mixing_;  // without tensors of one stream
  TensorView ones_;      // [model_dim] f32, of one stream
};

}  // namespace mneme
