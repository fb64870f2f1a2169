// Small networks of the gated-delta family, whose options tests set by field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor_view.h"
#include "models/mixers/gated_delta_config.h"
#include "tools/model_maker.h"

namespace mneme {

struct GatedDeltaSpecConfig {
  std::string model_type = "mom";
  int vocab = 259;
  int model_dim = 64;
  int layers = 2;
  int mlp_dim = 128;
  float norm_eps = 1e-6f;
  std::optional<int32_t> bos_token = 1;
  std::vector<int32_t> eos_tokens = {2};
  GatedDeltaConfig delta;
};

struct GatedDeltaSpec {
  GatedDeltaSpecConfig config;
  bool tied = false;
  DType dtype = DType::kF32;
  // Weights large enough for every part to matter.
  double initializer_range = 0.15;
  double convolution_range = 0.5;
  uint64_t seed = 0;
  int shards = 1;
  nlohmann::ordered_json attn = {};  // of layers with attention; null: there are none

  // The folder to be made.
  ModelSpec ToModelSpec() const;
};
// What the config.json of a folder of this family says. Aborts where there is none.
GatedDeltaSpecConfig ReadSpecConfig(const std::string& folder);
// The same of a text.
GatedDeltaSpecConfig ParseSpecConfig(const std::string& json);

// Mixture-of-Memories ("mom-tiny") or Gated DeltaNet ("gdn-tiny").
GatedDeltaSpec TinySpec(const std::string& shape = "mom-tiny");

}  // namespace mneme
