// The residual block of most models: a mixer along time, then a network for each token.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "models/block.h"
#include "models/feed_forward.h"
#include "models/layer_builder.h"
#include "models/norm.h"
#include "models/sequence_mixer.h"

namespace mneme {

//   h = Norm(h; first_norm)                              in the first layer, where there is one
//   h += Mixer(Norm(h; mixer_norm));  h += FeedForward(Norm(h; feed_forward_norm))
// Without a maker of one there is no feed-forward network, nor its norm.
struct ResidualBlockParts {
  std::optional<NormTensor> first_norm = std::nullopt;
  NormTensor mixer_norm = {"attn_norm.weight"};
  std::function<absl::StatusOr<std::unique_ptr<SequenceMixer>>(const LayerBuilder&)> mixer;
  NormTensor feed_forward_norm = {"mlp_norm.weight"};
  std::function<absl::StatusOr<std::unique_ptr<FeedForward>>(const LayerBuilder&)> feed_forward;
};

// Takes weights in the order of the parts.
absl::StatusOr<std::unique_ptr<Block>> MakeResidualBlock(const LayerBuilder& builder,
                                                         const ResidualBlockParts& parts);

}  // namespace mneme
