#include "models/families/rwkv_keys.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

int ReadChannelMixDim(ConfigReader& reader, int model_dim, double default_ratio) {
  reader.Disregard({"hidden_ratio"});  // the width follows, and counts
  const double ratio = reader.IsNull("hidden_ratio")
                           ? default_ratio
                           : reader.Number("hidden_ratio", default_ratio, 0, 64);
  if (const auto dim = reader.NullableInt("intermediate_size", 1, kMaxMlpDim)) return *dim;
  constexpr int64_t kMultiple = 32;
  const int64_t rounded =
      (static_cast<int64_t>(model_dim * ratio) + kMultiple - 1) / kMultiple * kMultiple;
  if (rounded < 1 || rounded > kMaxMlpDim) {
    reader.Invalid("hidden_ratio", ratio,
                   absl::StrCat("a factor that makes the feed-forward width of ", rounded,
                                " at least 1 and at most ", kMaxMlpDim));
    return 1;
  }
  return reader.Keep("intermediate_size", static_cast<int>(rounded));
}

}  // namespace

RwkvKeys ReadRwkvKeys(ConfigReader& reader, double default_ratio, ModelConfig& config) {
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  if (reader.String("hidden_act", "sqrelu") != "sqrelu") {
    reader.Unsupported("hidden_act", *reader.Find("hidden_act"), "\"sqrelu\"");
  }
  RwkvKeys keys;
  keys.stack.vocab = reader.Int("vocab_size", 32000, 1, kMaxVocab);
  keys.stack.model_dim = reader.Int("hidden_size", 2048, 1, kMaxModelDim);
  keys.stack.layers = reader.Int("num_hidden_layers", 24, 1, kMaxLayers);
  keys.stack.norm_eps = static_cast<float>(reader.Number("norm_eps", 1e-5, kLeastNumber, 1));
  keys.stack.mlp_dim = ReadChannelMixDim(reader, keys.stack.model_dim, default_ratio);
  keys.norm_first = ReadSwitch(reader, config, "norm_first", true, ".pre_norm.");
  keys.norm_bias = ReadSwitch(reader, config, "norm_bias", true, "norm.bias");
  ReadTokensAndTies(reader, keys.stack, config);
  keys.attention = ReadAttentionLayers(reader, keys.stack, config);
  // Which kernel runs, and what makes no difference to a result.
  reader.Disregard({"attn_mode", "max_position_embeddings"});
  return keys;
}

NetworkMaker RwkvNetwork(const RwkvKeys& keys, MixerMaker memory, ChannelMix mix,
                         int first_values) {
  const auto norm = [&keys](absl::string_view name) {
    return NormTensor{.weight = absl::StrCat(name, ".weight"),
                      .kind = NormKind::kLayer,
                      .bias = keys.norm_bias ? absl::StrCat(name, ".bias") : ""};
  };
  ResidualBlockParts block;
  if (keys.norm_first) block.first_norm = norm("pre_norm");
  block.mixer_norm = norm("attn_norm");
  block.mixer = Hybrid(keys.attention, std::move(memory));
  block.feed_forward_norm = norm("ffn_norm");
  block.feed_forward = [mix, mlp_dim = keys.stack.mlp_dim](const LayerBuilder& builder) {
    return MakeChannelMix(builder, mix, mlp_dim);
  };
  LanguageModelParts parts = keys.stack.Parts();
  parts.norm = norm("model.norm");
  parts.first_values = first_values;
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace mneme
