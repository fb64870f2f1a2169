// config.json of a model folder, checked field by field, as plain data.
//
// Missing keys are resolved by the model's family (models/families/), never by one common table.
// Keys without effect on inference are ignored; keys whose value asks for something that is not
// implemented are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/network.h"

namespace mneme {

// A key of config.json whose value leaves some tensors out of the network.
struct LeavesOut {
  std::string key, value;  // the value as JSON
  std::string tensors;     // part of their names
};

// The server and its tools know this of a configuration. All else is inside make_network.
struct ModelConfig {
  std::string model_type;  // of config.json
  int vocab = 0;
  std::optional<int32_t> bos_token;
  std::vector<int32_t> eos_tokens;
  std::vector<std::string> warnings;  // for the log: values that are accepted but not followed
  std::vector<LeavesOut> leaves_out;  // why a file may have tensors that nobody takes
  // A hash of model_type and of the values in force of all keys that the family read and that move
  // logits or state, whether the file spells out a default or not.
  uint64_t fingerprint = 0;
  NetworkMaker make_network;
};

// INVALID_ARGUMENT for a value out of range, UNIMPLEMENTED for one that is not supported; both name
// the file, the key, the value and what was expected.
// `segment_tokens`: of --segment-tokens, as if the file had that key; it may say the same. 0: not
// given. INVALID_ARGUMENT, too, for a model that is not cut into segments.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view path,
                                             int segment_tokens = 0);

// Reads <folder>/config.json. NOT_FOUND if folder or file are missing.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder, int segment_tokens = 0);

// Values that generation_config.json suggests where clients name none; unset where it is silent.
// End tokens fall back to config.json's.
struct GenerationDefaults {
  std::optional<int32_t> bos_token;
  std::vector<int32_t> eos_tokens;
  std::optional<float> temperature;         // [0, 100]
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<int> top_k;                 // >= 0; 0: off
  std::optional<float> repetition_penalty;  // (0, 10]
  std::optional<int> max_new_tokens;        // >= 1
};

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view json,
                                                           absl::string_view path,
                                                           const ModelConfig& config);

// Reads <folder>/generation_config.json; without one, the defaults are those of `config`.
absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& folder,
                                                          const ModelConfig& config);

}  // namespace mneme
