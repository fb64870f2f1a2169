// Gated DeltaNet (Yang, Kautz, Hatamizadeh, arXiv:2412.06464): one memory under the gated delta
// rule, which all tokens go to.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/gated_delta_config.h"
#include "models/sequence_mixer.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedDeltaNet(const LayerBuilder& builder,
                                                                 const GatedDeltaConfig& config);

}  // namespace mneme
