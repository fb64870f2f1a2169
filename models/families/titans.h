// Titans (arXiv:2501.00663): model_type "titans", of which there are two formats. The neutral one
// has `variant`; where there is `architecture_variant` instead, it is the other one.
#pragma once

#include "base/config_reader.h"
#include "models/model_config.h"

namespace mneme {

// That of NVIDIA's NeMo Automodel.
NetworkMaker ReadTitansOfAutomodel(ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
