#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/families/mamba.h"
#include "models/families/mamba_keys.h"
#include "models/feed_forwards/gated_mlp.h"
#include "models/mixers/attention.h"

namespace mneme {
namespace {

// The layers that have attention in place of a scan, and what it is like.
struct SambaAttention {
  std::vector<int> layers;
  AttentionConfig mixer;
};

// `layers` of attn; upstream cuts those that a default has too many.
std::vector<int> ReadAttentionLayers(ConfigReader& reader, int all) {
  const nlohmann::json* list = reader.Find("layers");
  std::vector<int> layers;
  bool valid = list != nullptr && list->is_array();
  for (size_t i = 0; valid && i < list->size(); ++i) {
    const nlohmann::json& layer = (*list)[i];
    valid = layer.is_number_unsigned() && layer.get<uint64_t>() < uint64_t{kMaxLayers};
    if (valid && layer.get<int>() < all) layers.push_back(layer.get<int>());
  }
  if (!valid) {
    reader.Invalid("layers", list == nullptr ? nlohmann::json() : *list,
                   "the numbers of the layers with attention, from 0 on");
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return reader.Keep("layers", layers);
}

std::optional<SambaAttention> ReadSambaAttention(ConfigReader& reader, const StackKeys& stack) {
  constexpr int kDefaultHeads = 18, kDefaultWindow = 2048;
  constexpr unsigned kDefaultLayers = 18;
  nlohmann::json object = {{"num_heads", kDefaultHeads}, {"window_size", kDefaultWindow}};
  for (unsigned layer = 1; layer < kDefaultLayers; layer += 2) object["layers"].push_back(layer);
  if (reader.Has("attn")) {
    if (reader.IsNull("attn")) {
      reader.Keep("attn", nullptr);
      return std::nullopt;
    }
    object = *reader.Find("attn");
    if (!object.is_object()) {
      reader.Unsupported("attn", object, "one object, which all layers with attention share");
      return std::nullopt;
    }
  }
  ConfigReader part(object, absl::StrCat(reader.path(), ": \"attn\""));
  SambaAttention attention;
  AttentionConfig& mixer = attention.mixer;
  mixer.prefix = "mixer.";
  attention.layers = ReadAttentionLayers(part, stack.layers);
  if (!part.Has("num_heads")) {
    part.Invalid("num_heads", nullptr, "the number of heads of the layers with attention");
  }
  mixer.heads = part.Int("num_heads", 1, 1, kMaxHeads);
  if (stack.model_dim % mixer.heads != 0 || stack.model_dim / mixer.heads % 2 != 0 ||
      stack.model_dim / mixer.heads > kMaxHeadDim) {
    part.Invalid("num_heads", mixer.heads,
                 absl::StrCat("a number that divides hidden_size (", stack.model_dim,
                              ") into heads of an even width of at most ", kMaxHeadDim));
    mixer.heads = 1;
  }
  mixer.head_dim = stack.model_dim / mixer.heads;
  mixer.kv_heads = part.NullableInt("num_kv_heads", 1, kMaxHeads).value_or(mixer.heads);
  if (mixer.heads % mixer.kv_heads != 0) {
    part.Invalid("num_kv_heads", mixer.kv_heads,
                 absl::StrCat("a number that divides num_heads (", mixer.heads, ")"));
    mixer.kv_heads = mixer.heads;
  }
  part.Keep("num_kv_heads", mixer.kv_heads);
  mixer.qkv_bias = part.Bool("qkv_bias", false);
  mixer.window = part.NullableInt("window_size", 1, kMaxWindow).value_or(0);
  mixer.rope_theta = part.Number("rope_theta", 10000, 1, 1e30);
  reader.Adopt("attn", part);
  return attention;
}

}  // namespace

NetworkMaker ReadSamba(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  StackKeys stack = ReadMambaStack(
      reader, {.vocab = 32000, .model_dim = 2304, .layers = 18, .norm_eps_key = "norm_eps"},
      config);
  // intermediate_size is the scan's; the MLP's width always follows from the ratio.
  MambaConfig scan = ReadMambaMixer(reader, stack.model_dim, "time_step_rank");
  stack.mlp_dim = ReadRatioMlpDim(reader, stack.model_dim, /*default_ratio=*/4);
  const std::optional<SambaAttention> attention = ReadSambaAttention(reader, stack);
  // Upstream's layers never get to see the first.
  reader.Disregard({"use_conv_bias", "max_position_embeddings"});
  const auto has_attention = [attention](int layer) {
    return attention.has_value() &&
           std::binary_search(attention->layers.begin(), attention->layers.end(), layer);
  };
  return MambaNetwork(stack, {.mixer_norm = {"mixer_norm.weight"},
                              .mixer =
                                  [scan, attention, has_attention](const LayerBuilder& builder) {
                                    return has_attention(builder.layer)
                                               ? MakeAttention(builder, attention->mixer)
                                               : MakeMamba(builder, scan);
                                  },
                              .feed_forward =
                                  [mlp_dim = stack.mlp_dim](const LayerBuilder& builder) {
                                    return MakeGatedMlp(builder, mlp_dim);
                                  }});
}

}  // namespace mneme
