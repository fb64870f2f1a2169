#include "models/mixers/rwkv7.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/rwkv_keys.h"

namespace mneme {
namespace {

using nlohmann::json;

void ReadHeadsOf(ConfigReader& reader, int model_dim, ModelConfig& config, Rwkv7Config& mixer) {
  const auto heads = reader.NullableInt("num_heads", 1, kMaxHeads);
  reader.Disregard({"num_heads"});  // the width of a head follows, and counts
  if (reader.Has("head_dim") && reader.IsNull("head_dim")) {
    if (!heads.has_value()) {
      reader.Invalid("head_dim", nullptr, "an integer, or one for num_heads");
      return;
    }
    if (model_dim % *heads != 0 || model_dim / *heads > kMaxHeadDim) {
      reader.Invalid("num_heads", *heads,
                     absl::StrCat("a divisor of hidden_size (", model_dim,
                                  ") that makes heads of at most ", kMaxHeadDim));
      return;
    }
    mixer.key_dim = reader.Keep("head_dim", model_dim / *heads);
  } else {
    mixer.key_dim = reader.Int("head_dim", 64, 1, kMaxHeadDim);
    if (model_dim % mixer.key_dim != 0 || model_dim / mixer.key_dim > kMaxHeads) {
      reader.Invalid("head_dim", mixer.key_dim,
                     absl::StrCat("a divisor of hidden_size (", model_dim, ") that makes at most ",
                                  kMaxHeads, " heads"));
      return;
    }
  }
  mixer.heads = model_dim / mixer.key_dim;
  if (heads.has_value() && *heads != mixer.heads) {
    WarnOfUnused(reader, config, {"num_heads"},
                 absl::StrCat("head_dim makes ", mixer.heads, " heads"));
  }
}

// value_dim: of all heads, one number or one for each layer, null for the model's width. Values are
// mixed with the first layer's, and so are as wide.
void ReadValueDimOf(ConfigReader& reader, int model_dim, int layers, Rwkv7Config& mixer) {
  int64_t width = model_dim;
  if (!reader.IsNull("value_dim")) {
    const json& value = *reader.Find("value_dim");
    const json list = value.is_array() ? value : json::array({value});
    const bool as_many = !value.is_array() || list.size() == static_cast<size_t>(layers);
    const bool equal =
        !list.empty() &&
        std::all_of(list.begin(), list.end(), [&](const json& each) { return each == list[0]; });
    if (!as_many || !equal || !list[0].is_number_unsigned() ||
        list[0].get<uint64_t>() > static_cast<uint64_t>(kMaxChannels) ||
        list[0].get<int64_t>() < 1 || list[0].get<int64_t>() % mixer.heads != 0) {
      reader.Invalid(
          "value_dim", value,
          absl::StrCat("a multiple of the ", mixer.heads, " heads of at most ", kMaxChannels,
                       ", or one and the same for each of the ", layers, " layers"));
      return;
    }
    width = list[0].get<int64_t>();
  }
  mixer.value_dim = static_cast<int>(width / mixer.heads);
  reader.Keep("value_dim", static_cast<int>(width));
}

// The rank of a low-rank map; `if_null` is upstream's default where the key is null.
int ReadRank(ConfigReader& reader, const char* key, int otherwise, double if_null) {
  constexpr int kMostRank = 1 << 14;
  reader.Disregard({key});  // the tensors say it
  if (reader.Has(key) && reader.IsNull(key)) {
    return std::max(32, static_cast<int>(std::nearbyint(if_null / 32)) * 32);
  }
  return reader.Int(key, otherwise, 1, kMostRank);
}

NetworkMaker ReadRwkv7(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  const RwkvKeys keys = ReadRwkvKeys(reader, /*default_ratio=*/4, config);
  const int model_dim = keys.stack.model_dim;
  Rwkv7Config mixer;
  ReadHeadsOf(reader, model_dim, config, mixer);
  ReadValueDimOf(reader, model_dim, keys.stack.layers, mixer);
  const double root = std::sqrt(model_dim), factor = mixer.key_dim / 64.0;
  mixer.decay_rank = ReadRank(reader, "decay_low_rank_dim", 64, 2.5 * root * factor);
  mixer.rate_rank = ReadRank(reader, "a_low_rank_dim", 64, 2.5 * root * factor);
  mixer.value_rank = ReadRank(reader, "v_low_rank_dim", 16, 1.7 * root * factor);
  mixer.gate_rank = ReadRank(reader, "gate_low_rank_dim", 128, 5 * root);
  // Upstream's fused norm of keys has its epsilon inside the root, the other one is a bound.
  if (!reader.Bool("fuse_norm", true)) {
    mixer.key_norm_eps = 0;
    mixer.key_norm_least = 1e-12f;
  }
  if (keys.attention.contains(0)) {
    reader.Unsupported("attn", *reader.Find("attn"),
                       "layers from 1 on: the values of the first go into those of the others");
  }
  return RwkvNetwork(
      keys, [mixer](const LayerBuilder& builder) { return MakeRwkv7(builder, mixer); },
      ChannelMix::kPlain, /*first_values=*/mixer.heads * mixer.value_dim);
}

}  // namespace

const Architecture kRwkv7 = {
    .model_type = "rwkv7", .read = ReadRwkv7, .coarsest_state = DType::kF16, .ways = R"([{},
                {"head_dim": 16, "value_dim": 128, "norm_bias": false},
                {"attn": {"layers": [1], "num_heads": 2, "qkv_bias": true}}])"};

}  // namespace mneme
