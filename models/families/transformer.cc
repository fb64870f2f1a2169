#include "models/families/transformer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "models/families/fla_keys.h"
#include "models/mixers/attention.h"

namespace mneme {
namespace {

AttentionConfig ReadAttention(ConfigReader& reader, int model_dim) {
  AttentionConfig attention;
  attention.heads = reader.Int("num_heads", 32, 1, kMaxHeads);
  const int heads = attention.heads;
  if (model_dim % heads != 0 || model_dim / heads % 2 != 0 || model_dim / heads > kMaxHeadDim) {
    reader.Invalid("num_heads", heads,
                   absl::StrCat("a number that divides hidden_size (", model_dim,
                                ") into heads of an even width of at most ", kMaxHeadDim));
    return attention;
  }
  attention.head_dim = model_dim / heads;
  attention.kv_heads = reader.NullableInt("num_kv_heads", 1, kMaxHeads).value_or(heads);
  if (heads % attention.kv_heads != 0) {
    reader.Invalid("num_kv_heads", attention.kv_heads,
                   absl::StrCat("a number that divides num_heads (", heads, ")"));
    attention.kv_heads = heads;
  }
  reader.Keep("num_kv_heads", attention.kv_heads);
  attention.qkv_bias = reader.Bool("qkv_bias", false);
  attention.qk_norm = reader.Bool("qk_norm", false);
  attention.window = reader.NullableInt("window_size", 1, kMaxWindow).value_or(0);
  attention.rope_theta = reader.Number("rope_theta", 10000, 1, 1e30);
  return attention;
}

}  // namespace

NetworkMaker ReadTransformer(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  const AttentionConfig attention = ReadAttention(reader, stack.model_dim);
  RefuseUnlessNull(reader, "attn", "null: every layer has the attention that num_heads describes");
  if (!reader.Bool("elementwise_affine", true)) {
    reader.Unsupported("elementwise_affine", false, "true");
  }
  // Only how long a table is that upstream computes at the start, and which kernel it runs.
  reader.Disregard({"max_position_embeddings", "fuse_norm"});
  return StackNetwork(stack, [attention](const LayerBuilder& builder) {
    return MakeAttention(builder, attention);
  });
}

}  // namespace mneme
