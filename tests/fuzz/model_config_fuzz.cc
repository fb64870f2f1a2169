// config.json and generation_config.json from a stranger.

#include <cstdint>
#include <cstdlib>

#include "base/config_reader.h"
#include "base/json_text.h"
#include "models/families/gated_delta.h"
#include "models/model_config.h"

namespace mneme {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// Ranges that the rest of the program builds on.
void CheckConfig(const ModelConfig& config) {
  Require(config.vocab >= 1);
  for (const int32_t token : config.eos_tokens) Require(token >= 0 && token < config.vocab);
  Require(config.make_network != nullptr);
}

void CheckGatedDelta(const GatedDeltaKeys& keys) {
  const StackKeys& stack = keys.stack;
  const GatedDeltaConfig& delta = keys.mixer;
  Require(stack.vocab >= 1 && stack.model_dim >= 1 && stack.layers >= 1 && stack.mlp_dim >= 1);
  Require(stack.norm_eps > 0 && stack.norm_eps <= 1);
  Require(delta.heads >= 1 && delta.key_dim >= 1 && delta.value_dim >= 1);
  Require(delta.value_heads >= delta.heads && delta.value_heads % delta.heads == 0);
  Require(delta.conv_width >= 0 && delta.all_memories() >= 1);
  Require(delta.top_k >= 0 && delta.top_k <= delta.memories);
  Require(int64_t{delta.heads} * delta.key_dim <= 1 << 20);
  Require(int64_t{delta.value_heads} * delta.value_dim <= 1 << 20);
}

// A family's own reading of an object that may be anything.
void TryGatedDelta(const nlohmann::json& object, const char* model_type) {
  ConfigReader reader(object, "config.json");
  ModelConfig config;
  const GatedDeltaKeys keys = ReadGatedDeltaKeys(model_type, reader, config);
  if (reader.status().ok()) CheckGatedDelta(keys);
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = mneme::ParseModelConfig(text, "config.json");
  if (config.ok()) mneme::CheckConfig(*config);
  if (const auto object = mneme::ParseJsonObject(text, "config.json"); object.ok()) {
    for (const char* type : {"mom", "mom_gated_deltanet", "gated_deltanet"}) {
      mneme::TryGatedDelta(*object, type);
    }
  }
  const mneme::ModelConfig known{.vocab = 100};
  const auto defaults = mneme::ParseGenerationDefaults(text, "generation_config.json", known);
  if (defaults.ok()) {
    for (const int32_t token : defaults->eos_tokens) mneme::Require(token >= 0 && token < 100);
    mneme::Require(!defaults->top_p.has_value() || (*defaults->top_p > 0 && *defaults->top_p <= 1));
  }
  return 0;
}
