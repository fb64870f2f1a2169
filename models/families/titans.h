// Titans (arXiv:2501.00663) in the neutral format: model_type "titans", with `variant`.
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"

namespace mneme {

NetworkMaker ReadTitans(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
