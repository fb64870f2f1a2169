// The architectures that are served, by the model_type of config.json.
#pragma once

#include <span>

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

struct Architecture {
  const char* model_type;
  // Reads the keys that the family knows, once each, through `reader`, which keeps the first error;
  // ParseModelConfig asks for it. Sets what ModelConfig has of them: vocab, tokens, warnings.
  NetworkMaker (*read)(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
  bool classifies = false;  // NetworkInfo::classes exist
};

// Explicit rather than self-registering: the list is one screen, and a static library keeps every
// entry.
std::span<const Architecture> Architectures();

}  // namespace mneme
