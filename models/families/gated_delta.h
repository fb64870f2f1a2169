// Mixture-of-Memories and Gated DeltaNet: model_type "mom", its forerunner "mom_gated_deltanet",
// and "gated_deltanet".
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/families/attention_keys.h"
#include "models/families/stack_keys.h"
#include "models/mixers/gated_delta_config.h"
#include "models/model_config.h"

namespace mneme {

struct GatedDeltaKeys {
  StackKeys stack;
  GatedDeltaConfig mixer;
  AttentionLayers attention;
};

// The keys of one of the three model types, with its own defaults.
GatedDeltaKeys ReadGatedDeltaKeys(absl::string_view model_type, ConfigReader& reader,
                                  ModelConfig& config);

}  // namespace mneme
