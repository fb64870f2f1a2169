// The matrix memories of flash-linear-attention, and those of the Mixture-of-Memories repository
// under the same rules: readers of their keys, each in a file of its own, as Architecture::read.
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// linear_attn.cc: "linear_attn", "mom_linear_attn"
NetworkMaker ReadLinearAttn(absl::string_view model_type, ConfigReader& reader,
                            ModelConfig& config);
// retnet.cc: "retnet"
NetworkMaker ReadRetNet(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// gla.cc: "gla", "mom_gla"
NetworkMaker ReadGla(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// delta_net.cc: "delta_net"
NetworkMaker ReadDeltaNet(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

// kda.cc: "kda"
NetworkMaker ReadKda(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// hgrn2.cc: "hgrn2"
NetworkMaker ReadHgrn2(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// gsa.cc: "gsa", "mom_gsa"
NetworkMaker ReadGsa(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

// rwkv6.cc: "rwkv6"
NetworkMaker ReadRwkv6(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);
// rwkv7.cc: "rwkv7"
NetworkMaker ReadRwkv7(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
