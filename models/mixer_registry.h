// Memory architectures by name.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

// The mixer that builder.config.mixer names, with its weights taken and its state fields added.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixer(const LayerBuilder& builder);

// One per file of mixers/.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixtureOfMemories(const LayerBuilder& builder);
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedDeltaNet(const LayerBuilder& builder);

}  // namespace mneme
