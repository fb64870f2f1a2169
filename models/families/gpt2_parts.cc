#include "models/families/gpt2_parts.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

constexpr int kMaxPositions = 1 << 24;

AttentionConfig ReadAttention(ConfigReader& reader, int model_dim) {
  AttentionConfig attention = {.qkv_bias = true,
                               .output_bias = true,
                               .rotary = false,
                               .tensors = AttentionConfig::Tensors::kConv1d};
  attention.heads = reader.Int("n_head", 12, 1, kMaxHeads);
  if (model_dim % attention.heads != 0 || model_dim / attention.heads > kMaxHeadDim) {
    reader.Invalid("n_head", attention.heads,
                   absl::StrCat("a number that divides n_embd (", model_dim,
                                ") into heads of a width of at most ", kMaxHeadDim));
    attention.heads = 1;
  }
  attention.kv_heads = attention.heads;
  attention.head_dim = model_dim / attention.heads;
  return attention;
}

}  // namespace

Gpt2Keys ReadGpt2Keys(ConfigReader& reader, ModelConfig& config) {
  constexpr TokenDefaults kTokens = {.bos = 50256, .eos = 50256, .tied = true};
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  if (reader.Bool("add_cross_attention", false)) {
    reader.Unsupported("add_cross_attention", true, "false");
  }
  Gpt2Keys keys;
  StackKeys& stack = keys.stack;
  stack.vocab = reader.Int("vocab_size", 50257, 1, kMaxVocab);
  stack.model_dim = reader.Int("n_embd", 768, 1, kMaxModelDim);
  stack.layers = reader.Int("n_layer", 12, 1, kMaxLayers);
  stack.mlp_dim = reader.NullableInt("n_inner", 1, kMaxMlpDim).value_or(4 * stack.model_dim);
  reader.Keep("n_inner", stack.mlp_dim);
  stack.norm_eps = static_cast<float>(reader.Number("layer_norm_epsilon", 1e-5, kLeastNumber, 1));
  stack.obeys_tied = true;
  keys.positions = reader.Int("n_positions", 1024, 1, kMaxPositions);
  ReadTokensAndTies(reader, stack, config, kTokens);
  keys.attention = ReadAttention(reader, stack.model_dim);
  keys.mlp = {.dim = stack.mlp_dim,
              .activation = ReadActivation(reader, "activation_function", "gelu_new"),
              .up = "mlp.c_fc",
              .down = "mlp.c_proj",
              .order = MatrixOrder::kInOut};
  // An older name of n_positions, the order in which upstream scales, and training.
  reader.Disregard({"n_ctx", "reorder_and_upcast_attn", "attn_pdrop", "embd_pdrop", "resid_pdrop"});
  return keys;
}

}  // namespace mneme
