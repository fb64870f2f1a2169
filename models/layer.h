// A residual block.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"
#include "models/feed_forward.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

//   h += Mixer(RmsNorm(h; attn_norm));  h += FeedForward(RmsNorm(h; mlp_norm))
class Layer {
 public:
  static absl::StatusOr<Layer> Make(const LayerBuilder& builder);

  //   hidden  [tokens, model_dim] act, updated in place
  void Forward(ForwardContext& ctx, TensorView hidden) const;

  const SequenceMixer& mixer() const { return *mixer_; }

 private:
  Norm mixer_norm_, feed_forward_norm_;
  std::unique_ptr<SequenceMixer> mixer_;
  FeedForward feed_forward_;
};

}  // namespace mneme
