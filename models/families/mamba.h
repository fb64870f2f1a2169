// Mamba and what came of it: readers of their keys, each in a file of its own, as
// Architecture::read. "mamba" and "mamba2" are written by transformers and by
// flash-linear-attention, with other keys and other meanings (mamba_keys.h).
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// mamba.cc: "mamba", "falcon_mamba"
NetworkMaker ReadMamba(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// mamba2.cc: "mamba2"
NetworkMaker ReadMamba2(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// samba.cc: "samba", which flash-linear-attention alone has
NetworkMaker ReadSamba(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
