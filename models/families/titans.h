// Titans (arXiv:2501.00663): model_type "titans", of which there are two formats.
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"

namespace mneme {

// The neutral one, with `variant`; where there is `architecture_variant` instead, the other one.
NetworkMaker ReadTitans(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// That of NVIDIA's NeMo Automodel.
NetworkMaker ReadTitansOfAutomodel(ConfigReader& reader, ModelConfig& config);

// The format "titans_mac_lucidrains": titans-pytorch's own tensors, and its constructor's
// arguments.
NetworkMaker ReadTitansPytorch(absl::string_view model_type, ConfigReader& reader,
                               ModelConfig& config);

}  // namespace mneme
