#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "models/blocks/residual_block.h"
#include "models/families/families.h"
#include "models/families/stack_keys.h"
#include "models/feed_forwards/gated_mlp.h"
#include "models/mixers/attention.h"

namespace mneme {
namespace {

// The meaning of missing keys (transformers' configuration classes).
struct Defaults {
  const char* model_type;
  int mlp_dim;
  int kv_heads;        // 0: as many as heads
  int sliding_window;  // 0: the model_type has no such key
};
constexpr Defaults kLlama = {"llama", 11008, 0, 0};
constexpr Defaults kMistral = {"mistral", 14336, 8, 4096};

// All of a head is turned.
void RefusePartOfAHead(ConfigReader& reader) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (reader.IsNull(kKey) || *reader.Find(kKey) == 1) return;
  reader.Unsupported(kKey, *reader.Find(kKey), "1");
}

// rope_theta, which newer versions of transformers write into an object beside the type of the
// frequencies. Of types there is only the one whose frequencies are those of rope_theta alone.
double ReadRopeTheta(ConfigReader& reader) {
  RefusePartOfAHead(reader);
  double theta = reader.Number("rope_theta", 10000, 1, 1e30);
  bool given = reader.Has("rope_theta");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (reader.IsNull(key)) continue;
    const nlohmann::json& object = *reader.Find(key);
    if (!object.is_object()) {
      reader.Invalid(key, object, "null or an object");
      continue;
    }
    ConfigReader part(object, absl::StrCat(reader.path(), ": \"", key, "\""));
    const char* type = part.Has("rope_type") ? "rope_type" : "type";
    if (part.String(type, "default") != "default") {
      part.Unsupported(type, *part.Find(type), "\"default\"");
    }
    RefusePartOfAHead(part);
    const double own = part.Number("rope_theta", theta, 1, 1e30);
    if (given && own != theta) {
      part.Invalid("rope_theta", own,
                   absl::StrCat("the one that the file gives elsewhere, ", theta));
    }
    given = given || part.Has("rope_theta");
    theta = own;
    if (!part.Has(type)) part.RefuseUnknown();  // of a type that it does not name
    reader.Adopt(part);
  }
  return reader.Keep("rope_theta", theta);
}

AttentionConfig ReadAttention(ConfigReader& reader, int model_dim, const Defaults& defaults) {
  AttentionConfig attention;
  attention.prefix = "self_attn.";
  attention.heads = reader.Int("num_attention_heads", 32, 1, kMaxHeads);
  const int heads = attention.heads;
  attention.head_dim =
      reader.NullableInt("head_dim", 1, kMaxHeadDim).value_or(model_dim / attention.heads);
  reader.Keep("head_dim", attention.head_dim);
  if (reader.IsNull("head_dim") && model_dim % heads != 0) {
    reader.Invalid("num_attention_heads", heads,
                   absl::StrCat("a divisor of hidden_size (", model_dim, ") without head_dim"));
  }
  if (attention.head_dim < 1 || attention.head_dim % 2 != 0 || attention.head_dim > kMaxHeadDim) {
    reader.Invalid("head_dim", attention.head_dim,
                   absl::StrCat("an even width of at most ", kMaxHeadDim));
    attention.head_dim = 2;
  }
  CheckChannels(reader, int64_t{heads} * attention.head_dim, "num_attention_heads");
  attention.kv_heads = heads;
  if (const auto kv_heads = reader.NullableInt("num_key_value_heads", 1, kMaxHeads)) {
    attention.kv_heads = *kv_heads;
  } else if (!reader.Has("num_key_value_heads") && defaults.kv_heads > 0) {
    attention.kv_heads = defaults.kv_heads;
  }
  if (heads % attention.kv_heads != 0) {
    reader.Invalid("num_key_value_heads", attention.kv_heads,
                   absl::StrCat("a divisor of num_attention_heads (", heads, ")"));
    attention.kv_heads = heads;
  }
  reader.Keep("num_key_value_heads", attention.kv_heads);
  attention.rope_theta = ReadRopeTheta(reader);
  if (defaults.sliding_window > 0) {
    const auto window = reader.NullableInt("sliding_window", 1, kMaxWindow);
    const int otherwise = reader.Has("sliding_window") ? 0 : defaults.sliding_window;
    attention.window = reader.Keep("sliding_window", window.value_or(otherwise));
  } else {
    attention.qkv_bias = attention.output_bias = reader.Bool("attention_bias", false);
  }
  return attention;
}

NetworkMaker ReadLlama(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const Defaults& defaults = model_type == kMistral.model_type ? kMistral : kLlama;
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  ReadSilu(reader, "silu");
  if (reader.Bool("mlp_bias", false)) reader.Unsupported("mlp_bias", true, "false");
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", 32000, 1, kMaxVocab);
  stack.model_dim = reader.Int("hidden_size", 4096, 1, kMaxModelDim);
  stack.layers = reader.Int("num_hidden_layers", 32, 1, kMaxLayers);
  stack.mlp_dim = reader.Int("intermediate_size", defaults.mlp_dim, 1, kMaxMlpDim);
  stack.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, kLeastNumber, 1));
  stack.obeys_tied = true;
  ReadTokensAndTies(reader, stack, config);
  const AttentionConfig attention = ReadAttention(reader, stack.model_dim, defaults);
  // How long sequences were in training, and what makes no difference to a result.
  reader.Disregard({"max_position_embeddings", "pretraining_tp", "attention_dropout"});

  LanguageModelParts parts = stack.Parts();
  parts.embeddings = "model.embed_tokens.weight";
  const ResidualBlockParts block = {
      .mixer_norm = {"input_layernorm.weight"},
      .mixer =
          [attention](const LayerBuilder& builder) { return MakeAttention(builder, attention); },
      .feed_forward_norm = {"post_attention_layernorm.weight"},
      .feed_forward = [mlp_dim = stack.mlp_dim](
                          const LayerBuilder& builder) { return MakeGatedMlp(builder, mlp_dim); }};
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace

const Architecture kLlama = {.model_type = "llama", .read = ReadLlama};

const Architecture kMistral = {.model_type = "mistral", .read = ReadLlama};

}  // namespace mneme
