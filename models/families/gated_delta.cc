#include "models/families/gated_delta.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "models/blocks/residual_block.h"
#include "models/feed_forwards/gated_mlp.h"
#include "models/mixers/gated_delta_net.h"
#include "models/mixers/mixture_of_memories.h"

namespace mneme {
namespace {

using nlohmann::json;

// The meaning of missing keys to one model_type (upstream's configuration classes).
struct Defaults {
  const char* model_type;
  int layers;
  int heads;
  double expand_v;
  int memories;
  bool shared_memory;
  const char* output_gate_key;
};
constexpr Defaults kDefaults[] = {
    {"mom", 24, 4, 1.0, 4, true, "use_output_gate"},
    {"mom_gated_deltanet", 21, 6, 2.0, 8, false, "use_gate"},
    {"gated_deltanet", 21, 6, 2.0, 0, true, "use_gate"},
};

const Defaults& DefaultsOf(absl::string_view model_type) {
  for (const Defaults& defaults : kDefaults) {
    if (model_type == defaults.model_type) return defaults;
  }
  LOG(FATAL) << model_type << " is of another family";
}

// Options of upstream's MoM that change the network and are not implemented.
void RefuseUnsupportedMom(ConfigReader& reader) {
  if (reader.String("mom_backend", "gated_deltanet") != "gated_deltanet") {
    reader.Unsupported("mom_backend", *reader.Find("mom_backend"), "\"gated_deltanet\"");
  }
  if (!reader.Bool("use_short_conv", true)) {
    reader.Unsupported("use_short_conv", *reader.Find("use_short_conv"),
                       "true: MoM layers exist only with it");
  }
  if (reader.Bool("norm_first", false)) {
    reader.Unsupported("norm_first", *reader.Find("norm_first"), "false");
  }
}

void ReadMixer(ConfigReader& reader, const Defaults& defaults, GatedDeltaConfig& mixer) {
  const bool routed = defaults.memories > 0;
  mixer.heads = reader.Int("num_heads", defaults.heads, 1, kMaxHeads);
  mixer.value_heads = mixer.heads;
  mixer.key_dim = reader.Int("head_dim", 256, 1, kMaxHeadDim);
  const double expand_v = reader.Number("expand_v", defaults.expand_v, 0, 64);
  const double value_dim = mixer.key_dim * expand_v;
  mixer.value_dim = static_cast<int>(std::lround(value_dim));
  if (mixer.value_dim < 1 || mixer.value_dim > kMaxHeadDim ||
      std::abs(value_dim - mixer.value_dim) > 1e-5 * value_dim) {
    reader.Invalid("expand_v", expand_v,
                   absl::StrCat("a factor that makes head_dim (", mixer.key_dim,
                                ") times it an integer from 1 to ", kMaxHeadDim));
  }
  if (!routed) {
    if (const auto value_heads = reader.NullableInt("num_v_heads", 1, kMaxHeads)) {
      mixer.value_heads = *value_heads;
      if (mixer.value_heads % mixer.heads != 0) {
        reader.Invalid("num_v_heads", mixer.value_heads,
                       absl::StrCat("a multiple of num_heads (", mixer.heads, ")"));
      }
    }
    reader.Keep("num_v_heads", mixer.value_heads);
    mixer.allow_negative_eigenvalues = reader.Bool("allow_neg_eigval", false);
  }
  for (const auto& [key, channels] :
       {std::pair("num_heads", int64_t{mixer.heads} * mixer.key_dim),
        std::pair("expand_v", int64_t{mixer.value_heads} * mixer.value_dim)}) {
    if (channels > kMaxChannels) {
      reader.Invalid(
          key, reader.Has(key) ? *reader.Find(key) : json(nullptr),
          absl::StrCat("at most ", kMaxChannels, " channels over all heads, not ", channels));
    }
  }
  mixer.conv_width = reader.Int("conv_size", 4, 1, kMaxConvWidth);
  if (!reader.Bool("use_short_conv", true)) mixer.conv_width = reader.Keep("conv_size", 0);
  mixer.output_gate = reader.Bool(defaults.output_gate_key, true);
  mixer.shared_memory = defaults.shared_memory;
  if (!routed) return;
  mixer.memories = reader.Int("num_memories", defaults.memories, 1, kMaxMemories);
  mixer.top_k = reader.Int("topk", 2, 1, mixer.memories);
  mixer.shared_memory = reader.Bool("shared_mem", defaults.shared_memory);
  mixer.single_kv_proj = reader.Bool("single_kv_proj", false);
}

}  // namespace

GatedDeltaKeys ReadGatedDeltaKeys(absl::string_view model_type, ConfigReader& reader,
                                  ModelConfig& config) {
  const Defaults& defaults = DefaultsOf(model_type);
  RefuseUnlessNull(reader, "attn", "null: layers with attention are not implemented");
  if (defaults.memories > 0) RefuseUnsupportedMom(reader);
  GatedDeltaKeys keys;
  keys.stack = ReadStackKeys(reader, defaults.layers, /*default_hidden_ratio=*/4, config);
  ReadMixer(reader, defaults, keys.mixer);
  // Upstream's old format dropped tokens of a prompt beyond this share, but not while decoding.
  if (reader.Number("capacity", 1.0, 0, 1e9) < 1.0 && defaults.memories > 0) {
    config.warnings.push_back(absl::StrCat("key \"capacity\" is ", Shown(*reader.Find("capacity")),
                                           " and ignored: no token is ever dropped"));
  }
  // Without effect here, and near to keys that are read.
  reader.Disregard({"capacity", "norm_first", "expand_k", "num_kv_heads", "head_k_dim",
                    "head_v_dim", "v_head_dim"});
  return keys;
}

NetworkMaker ReadGatedDelta(absl::string_view model_type, ConfigReader& reader,
                            ModelConfig& config) {
  const GatedDeltaKeys keys = ReadGatedDeltaKeys(model_type, reader, config);
  const bool routed = keys.mixer.memories > 0;
  LanguageModelParts parts = keys.stack.Parts();
  parts.info.memories = keys.mixer.memories;
  parts.info.top_k = keys.mixer.top_k;
  const ResidualBlockParts block = {
      .mixer =
          [mixer = keys.mixer, routed](const LayerBuilder& builder) {
            return routed ? MakeMixtureOfMemories(builder, mixer)
                          : MakeGatedDeltaNet(builder, mixer);
          },
      .feed_forward = [mlp_dim = keys.stack.mlp_dim](
                          const LayerBuilder& builder) { return MakeGatedMlp(builder, mlp_dim); }};
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace mneme
