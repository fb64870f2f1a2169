// TTT-Linear and TTT-MLP (arXiv:2407.04620): model_type "ttt", of ttt-lm-pytorch.
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"

namespace mneme {

NetworkMaker ReadTtt(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
