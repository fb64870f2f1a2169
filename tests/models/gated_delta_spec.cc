#include "tests/models/gated_delta_spec.h"

#include <string>

#include "absl/strings/str_format.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "models/families/gated_delta.h"

namespace mneme {

GatedDeltaSpecConfig ParseSpecConfig(const std::string& json) {
  const auto object = ParseJsonObject(json, "config.json");
  CHECK_OK(object.status());
  ConfigReader reader(*object, "config.json");
  ModelConfig common;
  const std::string model_type = reader.String("model_type", "");
  const GatedDeltaKeys keys = ReadGatedDeltaKeys(model_type, reader, common);
  CHECK_OK(reader.status());
  return {.model_type = model_type,
          .vocab = keys.stack.vocab,
          .model_dim = keys.stack.model_dim,
          .layers = keys.stack.layers,
          .mlp_dim = keys.stack.mlp_dim,
          .norm_eps = keys.stack.norm_eps,
          .bos_token = common.bos_token,
          .eos_tokens = common.eos_tokens,
          .delta = keys.mixer};
}

GatedDeltaSpecConfig ReadSpecConfig(const std::string& folder) {
  const auto file = MappedFile::Open(folder + "/config.json");
  CHECK_OK(file.status());
  return ParseSpecConfig(std::string(file->text()));
}

GatedDeltaSpec TinySpec(const std::string& shape) {
  GatedDeltaSpec spec;
  GatedDeltaConfig& delta = spec.config.delta;
  delta = {.heads = 2,
           .value_heads = 2,
           .key_dim = 32,
           .value_dim = 32,
           .conv_width = 4,
           .shared_memory = true};
  if (shape == "gdn-tiny") {
    spec.config.model_type = "gated_deltanet";
    return spec;
  }
  CHECK_EQ(shape, "mom-tiny");
  delta.memories = 4;
  delta.top_k = 2;
  return spec;
}

ModelSpec GatedDeltaSpec::ToModelSpec() const {
  const GatedDeltaConfig& delta = config.delta;
  const bool old_format = config.model_type == "mom_gated_deltanet";
  ModelSpec spec{.tied = tied,
                 .dtype = dtype,
                 .initializer_range = initializer_range,
                 .convolution_range = convolution_range,
                 .seed = seed,
                 .shards = shards};
  if (old_format) spec.absent.push_back("mlp.up_proj.weight");
  nlohmann::ordered_json& json = spec.config;
  json = {{"model_type", config.model_type},
          {"vocab_size", config.vocab},
          {"hidden_size", config.model_dim},
          {"num_hidden_layers", config.layers},
          {"intermediate_size", config.mlp_dim},
          {"norm_eps", std::stod(absl::StrFormat("%.7g", config.norm_eps))},
          {"num_heads", delta.heads},
          {"head_dim", delta.key_dim},
          {"expand_v", static_cast<double>(delta.value_dim) / delta.key_dim},
          {"use_short_conv", delta.conv_width > 0},
          {"conv_size", delta.conv_width > 0 ? delta.conv_width : 4},
          {"bos_token_id", nullptr},
          {"eos_token_id", config.eos_tokens}};
  if (config.bos_token.has_value()) json["bos_token_id"] = *config.bos_token;
  if (config.eos_tokens.size() == 1) json["eos_token_id"] = config.eos_tokens.front();
  if (!attn.is_null()) json["attn"] = attn;
  if (config.model_type == "gated_deltanet") {
    json["num_v_heads"] = delta.value_heads;
    json["allow_neg_eigval"] = delta.allow_negative_eigenvalues;
    json["use_gate"] = delta.output_gate;
  } else {
    json["num_memories"] = delta.memories;
    json["topk"] = delta.top_k;
    json["shared_mem"] = delta.shared_memory;
    json["single_kv_proj"] = delta.single_kv_proj;
    json[old_format ? "use_gate" : "use_output_gate"] = delta.output_gate;
  }
  return spec;
}

}  // namespace mneme
