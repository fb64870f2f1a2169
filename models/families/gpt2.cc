// h = wte[token] + wpe[position];  h += Attention(LayerNorm(h; ln_1));  h += Mlp(LayerNorm(h;
// ln_2)) for each layer;  logits = wte LayerNorm(h; ln_f)
#include "models/families/gpt2.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/blocks/residual_block.h"
#include "models/families/stack_keys.h"
#include "models/feed_forwards/mlp.h"
#include "models/mixers/attention.h"

namespace mneme {
namespace {

constexpr int kMaxPositions = 1 << 24;

Activation ReadActivation(ConfigReader& reader) {
  const std::string name = reader.String("activation_function", "gelu_new");
  if (name == "relu") return Activation::kRelu;
  if (name == "tanh") return Activation::kTanh;
  if (name == "silu" || name == "swish") {
    reader.Keep("activation_function", std::string("silu"));
    return Activation::kSilu;
  }
  if (name != "gelu_new" && name != "gelu_pytorch_tanh") {
    reader.Unsupported("activation_function", name,
                       "\"gelu_new\", \"gelu_pytorch_tanh\", which is the same, \"relu\", "
                       "\"silu\", \"swish\" or \"tanh\"");
  }
  reader.Keep("activation_function", std::string("gelu_new"));
  return Activation::kGeluTanh;
}

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
  if (!reader.Bool("scale_attn_weights", true)) attention.scale = 1;
  return attention;
}

NormTensor LayerNormOf(const std::string& name) {
  return {.weight = name + ".weight", .kind = NormKind::kLayer, .bias = name + ".bias"};
}

// Buffers of old files, which hold masks.
void IgnoreMasks(const LayerBuilder& builder) {
  for (const char* mask : {"attn.bias", "attn.masked_bias"}) {
    builder.weights().Ignore(builder.Weight(mask));
  }
}

}  // namespace

NetworkMaker ReadGpt2(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  constexpr TokenDefaults kTokens = {.bos = 50256, .eos = 50256, .tied = true};
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  if (reader.Bool("add_cross_attention", false)) {
    reader.Unsupported("add_cross_attention", true, "false");
  }
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", 50257, 1, kMaxVocab);
  stack.model_dim = reader.Int("n_embd", 768, 1, kMaxModelDim);
  stack.layers = reader.Int("n_layer", 12, 1, kMaxLayers);
  stack.mlp_dim = reader.NullableInt("n_inner", 1, kMaxMlpDim).value_or(4 * stack.model_dim);
  reader.Keep("n_inner", stack.mlp_dim);
  stack.norm_eps = static_cast<float>(reader.Number("layer_norm_epsilon", 1e-5, kLeastNumber, 1));
  stack.obeys_tied = true;
  const int positions = reader.Int("n_positions", 1024, 1, kMaxPositions);
  ReadTokensAndTies(reader, stack, config, kTokens);
  const AttentionConfig attention = ReadAttention(reader, stack.model_dim);
  const bool scaled_by_layer = reader.Bool("scale_attn_by_inverse_layer_idx", false);
  const MlpConfig mlp = {.dim = stack.mlp_dim,
                         .activation = ReadActivation(reader),
                         .up = "mlp.c_fc",
                         .down = "mlp.c_proj",
                         .order = MatrixOrder::kInOut};
  // An older name of n_positions, the order in which upstream scales, and training.
  reader.Disregard({"n_ctx", "reorder_and_upcast_attn", "attn_pdrop", "embd_pdrop", "resid_pdrop"});

  const ResidualBlockParts block = {
      .mixer_norm = LayerNormOf("ln_1"),
      .mixer =
          [attention, scaled_by_layer](const LayerBuilder& builder) {
            IgnoreMasks(builder);
            AttentionConfig own = attention;
            if (scaled_by_layer) {
              own.scale = own.score_scale() / static_cast<float>(builder.layer + 1);
            }
            return MakeAttention(builder, own);
          },
      .feed_forward_norm = LayerNormOf("ln_2"),
      .feed_forward = [mlp](const LayerBuilder& builder) { return MakeMlp(builder, mlp); }};
  LanguageModelParts parts = stack.Parts();
  parts.info.positions = positions;
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) {
    // The first files, which have no head either, were written without it.
    const std::string prefix = builder.weights.Has("transformer.wte.weight") ? "transformer." : "";
    LanguageModelParts own = parts;
    own.embeddings = prefix + "wte.weight";
    own.positions = prefix + "wpe.weight";
    own.layer_prefix = prefix + "h.";
    own.norm = LayerNormOf(prefix + "ln_f");
    NetworkBuilder bounded = builder;
    bounded.max_context = std::min(builder.max_context, own.info.positions);
    return MakeLanguageModel(bounded, own);
  };
}

}  // namespace mneme
