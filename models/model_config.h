// config.json of a model folder, checked field by field, as plain data.
//
// Missing keys are resolved per model_type, never by one common table. Keys without effect on
// inference are ignored; keys whose value asks for something that is not implemented are refused by
// name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// A layer with matrix memories under the gated delta rule. Gated DeltaNet is the case of one memory
// that all tokens go to: memories = 0, top_k = 0, shared_memory = true.
struct DeltaMixerConfig {
  int heads = 0;
  int value_heads = 0;  // multiple of heads; each group shares one head's q and k
  int key_dim = 0;      // of a head
  int value_dim = 0;    // of a head
  int conv_width = 0;   // 0: no short convolution, only its activation
  bool output_gate = true;
  bool allow_negative_eigenvalues = false;
  int memories = 0;  // routed
  int top_k = 0;
  bool shared_memory = false;
  bool single_kv_proj = false;  // all memories use the shared memory's projections

  int key_channels() const { return heads * key_dim; }
  int value_channels() const { return value_heads * value_dim; }
  int all_memories() const { return memories + (shared_memory ? 1 : 0); }
};

struct ModelConfig {
  std::string model_type;  // of config.json
  std::string mixer;       // name in mixer_registry.cc
  int vocab = 0;
  int model_dim = 0;
  int layers = 0;
  int mlp_dim = 0;
  float norm_eps = 1e-6f;
  DeltaMixerConfig delta;
  std::optional<int32_t> bos_token;
  std::vector<int32_t> eos_tokens;
  // Whether the configuration says that head and embedding are one; the checkpoint decides
  // (model.cc).
  bool tie_word_embeddings = false;
  std::vector<std::string> warnings;  // for the log: values that are accepted but not followed
};

// INVALID_ARGUMENT for a value out of range, UNIMPLEMENTED for one that is not supported; both name
// the file, the key, the value and what was expected.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view path);

// Reads <folder>/config.json. NOT_FOUND if folder or file are missing.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder);

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
