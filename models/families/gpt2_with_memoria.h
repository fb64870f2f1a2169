// Memoria's GPT-2, as the authors' experiments save it: "gpt2_with_memoria".
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// As Architecture::read.
NetworkMaker ReadGpt2WithMemoria(absl::string_view model_type, ConfigReader& reader,
                                 ModelConfig& config);

}  // namespace mneme
