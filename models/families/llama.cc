#include <nlohmann/json.hpp>
#include <string>

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

// How fast heads turn.
struct RopeKeys {
  double theta = 10000;
  RopeScaling scaling;
};

// The type of the frequencies that an object names by `type`, and its numbers.
RopeScaling ReadScaling(ConfigReader& part, const char* type) {
  RopeScaling scaling;
  const std::string name = part.String(type, "default");
  if (name == "default") return scaling;
  if (name != "linear" && name != "llama3") {
    part.Unsupported(type, name, "one of \"default\", \"linear\", \"llama3\"");
    return scaling;
  }
  part.Require({"factor"});
  scaling.kind = RopeScaling::Kind::kLinear;
  scaling.factor = part.Number("factor", 1, 1, 1e6, /*low_included=*/true);
  if (name == "linear") return scaling;
  part.Require({"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.low_freq_factor = part.Number("low_freq_factor", 1, kLeastNumber, 1e6);
  scaling.high_freq_factor = part.Number("high_freq_factor", 4, kLeastNumber, 1e6);
  scaling.original_length = part.Int("original_max_position_embeddings", 8192, 1, 1 << 30);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    part.Invalid("high_freq_factor", scaling.high_freq_factor,
                 absl::StrCat("a number above low_freq_factor (", scaling.low_freq_factor, ")"));
  }
  return scaling;
}

// The part of a scaling that counts, whichever object has it and however its type is spelled.
nlohmann::json Canonical(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kLinear) return {"linear", scaling.factor};
  return {"llama3", scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor,
          scaling.original_length};
}

// rope_theta, which newer versions of transformers write into an object beside the type of the
// frequencies, and the scaling of that type.
RopeKeys ReadRope(ConfigReader& reader) {
  RefusePartOfAHead(reader);
  RopeKeys rope = {.theta = reader.Number("rope_theta", 10000, 1, 1e30), .scaling = {}};
  bool has_theta = reader.Has("rope_theta"), has_type = false;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (reader.IsNull(key)) continue;
    const nlohmann::json& object = *reader.Find(key);
    if (!object.is_object()) {
      reader.Invalid(key, object, "null or an object");
      continue;
    }
    ConfigReader part(object, absl::StrCat(reader.path(), ": \"", key, "\""));
    const char* type = part.Has("rope_type") ? "rope_type" : "type";
    const RopeScaling scaling = ReadScaling(part, type);
    RefusePartOfAHead(part);
    const double own = part.Number("rope_theta", rope.theta, 1, 1e30);
    if (has_theta && own != rope.theta) {
      part.Invalid("rope_theta", own,
                   absl::StrCat("the one that the file gives elsewhere, ", rope.theta));
    }
    has_theta = has_theta || part.Has("rope_theta");
    rope.theta = own;
    if (!part.Has(type)) {
      part.RefuseUnknown();  // of a type that it does not name
    } else {
      if (has_type && scaling != rope.scaling) {
        part.Invalid(type, *part.Find(type), "the type and the numbers of \"rope_parameters\"");
      }
      has_type = true;
      rope.scaling = scaling;
    }
    reader.Adopt(part);
  }
  reader.Keep("rope_theta", rope.theta);
  if (rope.scaling.kind != RopeScaling::Kind::kNone) {
    reader.Keep("rope_scaling", Canonical(rope.scaling));
  }
  return rope;
}

AttentionConfig ReadAttention(ConfigReader& reader, int model_dim, const Defaults& defaults,
                              ModelConfig& config) {
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
  const RopeKeys rope = ReadRope(reader);
  attention.rope_theta = rope.theta;
  attention.rope_scaling = rope.scaling;
  if (defaults.sliding_window > 0) {
    const auto window = reader.NullableInt("sliding_window", 1, kMaxWindow);
    const int otherwise = reader.Has("sliding_window") ? 0 : defaults.sliding_window;
    attention.window = reader.Keep("sliding_window", window.value_or(otherwise));
  } else {
    attention.qkv_bias = attention.output_bias =
        ReadSwitch(reader, config, "attention_bias", false, ".q_proj.bias");
  }
  return attention;
}

NetworkMaker ReadLlama(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const Defaults& defaults = model_type == kMistral.model_type ? kMistral : kLlama;
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  ReadSilu(reader, "silu");
  const bool mlp_bias = ReadSwitch(reader, config, "mlp_bias", false, ".down_proj.bias");
  if (mlp_bias && &defaults == &kMistral) {
    reader.Unsupported("mlp_bias", true, "false: such networks have no biases");
  }
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", 32000, 1, kMaxVocab);
  stack.model_dim = reader.Int("hidden_size", 4096, 1, kMaxModelDim);
  stack.layers = reader.Int("num_hidden_layers", 32, 1, kMaxLayers);
  stack.mlp_dim = reader.Int("intermediate_size", defaults.mlp_dim, 1, kMaxMlpDim);
  stack.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, kLeastNumber, 1));
  stack.obeys_tied = true;
  ReadTokensAndTies(reader, stack, config);
  const AttentionConfig attention = ReadAttention(reader, stack.model_dim, defaults, config);
  // How long sequences were in training, and what makes no difference to a result.
  reader.Disregard({"max_position_embeddings", "pretraining_tp", "attention_dropout"});

  LanguageModelParts parts = stack.Parts();
  parts.embeddings = "model.embed_tokens.weight";
  const ResidualBlockParts block = {
      .mixer_norm = {"input_layernorm.weight"},
      .mixer =
          [attention](const LayerBuilder& builder) { return MakeAttention(builder, attention); },
      .feed_forward_norm = {"post_attention_layernorm.weight"},
      .feed_forward =
          [mlp_dim = stack.mlp_dim, bias = mlp_bias ? Bias::kAdded : Bias::kNone](
              const LayerBuilder& builder) { return MakeGatedMlp(builder, mlp_dim, bias); }};
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace

const Architecture kLlama = {.model_type = "llama", .read = ReadLlama};

const Architecture kMistral = {.model_type = "mistral", .read = ReadLlama};

}  // namespace mneme
