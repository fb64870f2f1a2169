#include "models/mixers/hgrn2.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/families/families.h"
#include "models/families/fla_keys.h"

namespace mneme {
namespace {

using LowerBounds = std::vector<std::vector<float>>;  // of each layer

// The bounds of all layers at once: the first has none, and later ones have more and more of what a
// softmax over the layers makes of the tensor `bounds`, [layers, channels].
LowerBounds LowerBoundsOf(const std::vector<float>& bounds, int layers, int channels) {
  LowerBounds lower(static_cast<size_t>(layers), std::vector<float>(static_cast<size_t>(channels)));
  for (int c = 0; c < channels; ++c) {
    double largest = bounds[c], sum = 0;
    for (int i = 0; i < layers; ++i) {
      largest = std::max<double>(largest, bounds[static_cast<size_t>(i) * channels + c]);
    }
    const auto term = [&](int i) {
      return std::exp(bounds[static_cast<size_t>(i) * channels + c] - largest);
    };
    for (int i = 0; i < layers; ++i) sum += term(i);
    double before = 0;
    for (int i = 1; i < layers; ++i) {
      before += term(i);
      lower[i][c] = static_cast<float>(before / sum);
    }
  }
  return lower;
}

void ReadHeadsOf(ConfigReader& reader, int model_dim, ModelConfig& config, Hgrn2Config& mixer) {
  const std::optional<int> heads = reader.NullableInt("num_heads", 1, kMaxHeads);
  const std::optional<int> ratio = reader.Has("expand_ratio")
                                       ? reader.NullableInt("expand_ratio", 1, kMaxHeadDim)
                                       : std::optional<int>(128);
  if (!ratio.has_value() && !heads.has_value()) {
    reader.Invalid("expand_ratio", nullptr, "an integer, or one for num_heads");
    return;
  }
  const char* key = ratio.has_value() ? "expand_ratio" : "num_heads";
  mixer.heads = ratio.has_value() ? model_dim / *ratio : *heads;
  if (mixer.heads < 1 || model_dim % mixer.heads != 0 || model_dim / mixer.heads > kMaxHeadDim) {
    reader.Invalid(key, ratio.has_value() ? *ratio : *heads,
                   absl::StrCat("one that cuts hidden_size (", model_dim,
                                ") into equal heads of at most ", kMaxHeadDim));
    mixer.heads = 1;
  }
  mixer.value_dim = model_dim / mixer.heads;
  mixer.key_dim = ratio.value_or(mixer.value_dim);
  if (ratio.has_value() && heads.has_value() && *heads != mixer.heads) {
    config.warnings.push_back(absl::StrCat("key \"num_heads\" is ", *heads,
                                           " and ignored: expand_ratio makes ", mixer.heads,
                                           " heads"));
  }
  reader.Keep("num_heads", mixer.heads);
  reader.Keep("expand_ratio", mixer.key_dim);
}

NetworkMaker ReadHgrn2(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  Hgrn2Config mixer;
  ReadHeadsOf(reader, stack.model_dim, config, mixer);
  mixer.conv_width = ReadConvWidth(reader, config, /*used_by_default=*/false);
  mixer.norm_affine = ReadNormAffine(reader, config, ".g_norm.");
  const bool bounded = ReadSwitch(reader, config, "use_lower_bound", true, "lower_bounds");
  const int channels = mixer.heads * mixer.key_dim;
  if (bounded && channels != stack.model_dim) {
    reader.Invalid("use_lower_bound", true,
                   absl::StrCat("false where the heads' forget gates, ", channels,
                                ", are not as many as hidden_size (", stack.model_dim, ")"));
  }
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  return [=](const NetworkBuilder& builder) -> absl::StatusOr<std::unique_ptr<Network>> {
    LowerBounds lower(static_cast<size_t>(stack.layers));
    if (bounded) {
      MNEME_ASSIGN_OR_RETURN(const std::vector<float> bounds,
                             builder.weights.Values("model.lower_bounds", {stack.layers, channels},
                                                    WeightInit::kNormal));
      lower = LowerBoundsOf(bounds, stack.layers, channels);
      lower.front().clear();
    }
    const auto memory = [mixer, lower](const LayerBuilder& layer) {
      Hgrn2Config own = mixer;
      own.lower_bounds = lower[static_cast<size_t>(layer.layer)];
      return MakeHgrn2(layer, own);
    };
    return StackNetwork(stack, Hybrid(attention, memory))(builder);
  };
}

}  // namespace

const Architecture kHgrn2 = {
    .model_type = "hgrn2",
    .read = ReadHgrn2,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": null, "expand_ratio": 128, "use_lower_bound": true,
                            "use_short_conv": false, "conv_size": 4})",
                .tiny = R"({"num_heads": null, "expand_ratio": 32})",
                .summary = "8 heads of 128 x 128"},
    .ways = R"([{},
                {"use_short_conv": true},
                {"attn": {"layers": [0], "num_heads": 4, "rope_theta": 500}}])"};

}  // namespace mneme
