#include "models/families/fla_keys.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/feed_forwards/gated_mlp.h"

namespace mneme {
namespace {

using nlohmann::json;

json ValueOf(const ConfigReader& reader, const char* key) {
  const json* value = reader.Find(key);
  return value == nullptr ? json(nullptr) : *value;
}

// The width of a head, of a tensor that is `expand` times as wide as the model.
int ReadHeadDim(ConfigReader& reader, const char* key, double otherwise, int model_dim, int heads) {
  const double expand = reader.Number(key, otherwise, 0, 64);
  // A product that is whole but for its rounding, as 150 times 0.82, is that whole number. Of any
  // other upstream cuts off the rest, or refuses it where it is newer.
  const double product = model_dim * expand;
  const double nearest = std::round(product);
  const bool is_whole = std::abs(product - nearest) <= 1e-9 * nearest;
  const auto width = static_cast<int64_t>(is_whole ? nearest : product);
  if (width % heads != 0 || width / heads < 1 || width / heads > kMaxHeadDim ||
      width > kMaxChannels) {
    reader.Invalid(key, ValueOf(reader, key),
                   absl::StrCat("a factor that makes hidden_size (", model_dim, ") times it, ",
                                width, ", a multiple of num_heads (", heads, ") of at most ",
                                kMaxHeadDim, " for a head and ", kMaxChannels, " for all"));
    return 1;
  }
  return static_cast<int>(width / heads);
}

}  // namespace

HeadKeys ReadHeads(ConfigReader& reader, int model_dim, const HeadDefaults& defaults) {
  HeadKeys keys;
  keys.heads = reader.Int("num_heads", defaults.heads, 1, kMaxHeads);
  keys.kv_heads = keys.heads;
  if (defaults.grouped) {
    if (const auto kv_heads = reader.NullableInt("num_kv_heads", 1, kMaxHeads)) {
      keys.kv_heads = *kv_heads;
      if (keys.heads % keys.kv_heads != 0) {
        reader.Invalid("num_kv_heads", keys.kv_heads,
                       absl::StrCat("a divisor of num_heads (", keys.heads, ")"));
        keys.kv_heads = keys.heads;
      }
    }
    reader.Keep("num_kv_heads", keys.kv_heads);
  }
  keys.key_dim =
      ReadHeadDim(reader, defaults.expand_k_key, defaults.expand_k, model_dim, keys.heads);
  keys.value_dim =
      ReadHeadDim(reader, defaults.expand_v_key, defaults.expand_v, model_dim, keys.heads);
  return keys;
}

int ReadConvWidth(ConfigReader& reader, ModelConfig& config, bool used_by_default) {
  const int width = reader.Int("conv_size", 4, 1, kMaxConvWidth);
  const bool used = ReadSwitch(reader, config, "use_short_conv", used_by_default, "_conv1d.");
  return used ? width : reader.Keep("conv_size", 0);
}

bool ReadNormAffine(ConfigReader& reader, ModelConfig& config, const char* norm) {
  const char* key = "elementwise_affine";
  if (!reader.Has(key) || !reader.IsNull(key)) return ReadSwitch(reader, config, key, true, norm);
  NoteLeftOut(config, key, nullptr, norm);
  return reader.Keep(key, false);
}

std::optional<float> ReadNullableNumber(ConfigReader& reader, const char* key, double low,
                                        double high) {
  if (reader.IsNull(key)) {
    reader.Keep(key, nullptr);
    return std::nullopt;
  }
  return static_cast<float>(reader.Number(key, high, low, high, /*low_included=*/true));
}

KeyMap ReadKeyMap(ConfigReader& reader, KeyMapNames names, absl::string_view otherwise) {
  const bool may_be_null = otherwise.empty();
  const std::string name = may_be_null && reader.IsNull("feature_map")
                               ? reader.Keep("feature_map", std::string())
                               : reader.String("feature_map", otherwise);
  if (name.empty() && may_be_null) return KeyMap::kIdentity;
  std::string known = may_be_null ? "null" : "";
  for (const auto& [known_name, map] : names) {
    if (name == known_name) return map;
    absl::StrAppend(&known, known.empty() ? "\"" : ", \"", known_name, "\"");
  }
  reader.Unsupported("feature_map", name, absl::StrCat("one of ", known));
  return KeyMap::kIdentity;
}

KeyMap ReadActivationMap(ConfigReader& reader) {
  return ReadKeyMap(reader,
                    {{"relu", KeyMap::kRelu},
                     {"sigmoid", KeyMap::kSigmoid},
                     {"silu", KeyMap::kSilu},
                     {"swish", KeyMap::kSilu}},
                    /*otherwise=*/"");
}

RoutingConfig ReadRouting(ConfigReader& reader, ModelConfig& config, int fixed_memories) {
  RoutingConfig routing;
  routing.memories =
      fixed_memories > 0 ? fixed_memories : reader.Int("num_memories", 8, 1, kMaxMemories);
  routing.top_k = reader.Int("topk", 2, 1, routing.memories);
  routing.shared = ReadSwitch(reader, config, "shared_mem", false, ".shared_");
  // Upstream then leaves out a memory's oldest tokens, and which those are depends on later ones.
  if (reader.Number("capacity", 1.0, 0, 1e9) < 1.0) {
    reader.Unsupported("capacity", *reader.Find("capacity"), "1: no token is ever dropped");
  }
  reader.Disregard({"capacity"});
  return routing;
}

bool ReadSingleProjection(ConfigReader& reader, ModelConfig& config) {
  const bool single = reader.Bool("single_kv_proj", false);
  if (single) NoteLeftOut(config, "single_kv_proj", true, ".k_proj.0.");
  return single;
}

AttentionLayers ReadHybridKeys(absl::string_view model_type, ConfigReader& reader,
                               const StackKeys& stack, ModelConfig& config) {
  // Which kernel runs, what a tensor is called, and how long a table is at first.
  reader.Disregard({"attn_mode", "fuse_norm", "max_position_embeddings"});
  const bool mom = absl::StartsWith(model_type, "mom");
  return ReadAttentionLayers(reader, stack, config,
                             {.lists = model_type == "mom" || !mom, .bias_and_theta = !mom});
}

NetworkMaker StackNetwork(const StackKeys& stack, MixerMaker mixer, const RoutingConfig& routing,
                          ResidualBlockParts block) {
  LanguageModelParts parts = stack.Parts();
  parts.info.memories = routing.memories;
  parts.info.top_k = routing.top_k;
  block.mixer = std::move(mixer);
  block.feed_forward = [mlp_dim = stack.mlp_dim](const LayerBuilder& builder) {
    return MakeGatedMlp(builder, mlp_dim);
  };
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace mneme
