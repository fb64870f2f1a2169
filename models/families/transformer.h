// flash-linear-attention's Transformer: model_type "transformer".
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// As Architecture::read.
NetworkMaker ReadTransformer(absl::string_view model_type, ConfigReader& reader,
                             ModelConfig& config);

}  // namespace mneme
