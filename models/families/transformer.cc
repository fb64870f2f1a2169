#include <nlohmann/json.hpp>

#include "models/families/attention_keys.h"
#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/attention.h"

namespace mneme {

namespace {

NetworkMaker ReadTransformer(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  AttentionConfig attention = ReadAttentionConfig(reader, stack.model_dim, /*default_heads=*/32);
  attention.qk_norm = ReadSwitch(reader, config, "qk_norm", false, ".q_norm.");
  RefuseUnlessNull(reader, "attn", "null: every layer has the attention that num_heads describes");
  // How long a table is that upstream computes at the start, which kernel it runs, and what it
  // stores without reading it: norms always have weights.
  reader.Disregard({"max_position_embeddings", "fuse_norm", "elementwise_affine"});
  return StackNetwork(stack, [attention](const LayerBuilder& builder) {
    return MakeAttention(builder, attention);
  });
}

}  // namespace

const Architecture kTransformer = {
    .model_type = "transformer",
    .read = ReadTransformer,
    .example = {.keys = R"({"num_heads": 16, "num_kv_heads": null, "qkv_bias": false,
                            "qk_norm": false, "window_size": null, "rope_theta": 10000.0})",
                .tiny = R"({"num_heads": 4, "num_kv_heads": 2})",
                .summary = "attention alone, 16 heads of 64"}};

}  // namespace mneme
