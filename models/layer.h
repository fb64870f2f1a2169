// A residual block.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/decode_step.h"
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

  // The same as arguments of a fused operation, in a step of one token for every row; temporaries
  // are of the caller's workspace scope. Empty: the mixer has none.
  std::optional<DecodeLayerArgs> StepArgs(ForwardContext& ctx, TensorView hidden) const;

  const SequenceMixer& mixer() const { return *mixer_; }

 private:
  // Forward() as one operation, where the device has it. False: nothing was done.
  bool Step(ForwardContext& ctx, TensorView hidden) const;

  int index_ = 0;
  Norm mixer_norm_, feed_forward_norm_;
  std::unique_ptr<SequenceMixer> mixer_;
  FeedForward feed_forward_;
};

}  // namespace mneme
