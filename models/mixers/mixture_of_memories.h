// Mixture-of-Memories (Du et al., arXiv:2502.13685) under the gated delta rule.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/gated_delta_config.h"
#include "models/sequence_mixer.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixtureOfMemories(
    const LayerBuilder& builder, const GatedDeltaConfig& config);

}  // namespace mneme
