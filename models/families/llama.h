// Llama and Mistral, as transformers has them: model_type "llama" and "mistral".
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// As Architecture::read.
NetworkMaker ReadLlama(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
