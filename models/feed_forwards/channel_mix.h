// RWKV's feed-forwards, channel mixes, which see the token before as well. Squared relu inside.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/feed_forward.h"
#include "models/layer_builder.h"

namespace mneme {

enum class ChannelMix : bool {
  // residual += sigmoid(receptance x_r) * value( relu(key x_k)^2 )
  // Weights ffn.{key,receptance}.{linear.weight,mu}, ffn.value.weight.        RWKV-6
  kReceptance,
  // residual += value( relu(key x_k)^2 )
  // Weights ffn.x_k, ffn.{key,value}.weight.                                  RWKV-7
  kPlain,
};

// `mlp_dim` wide. x_k and x_r are token shifts of the normed residual; the state is its last token.
absl::StatusOr<std::unique_ptr<FeedForward>> MakeChannelMix(const LayerBuilder& builder,
                                                            ChannelMix mix, int mlp_dim);

}  // namespace mneme
