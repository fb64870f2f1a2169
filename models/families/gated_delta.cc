#include "models/families/gated_delta.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/gated_delta_net.h"
#include "models/mixers/mixture_of_memories.h"

namespace mneme {
namespace {

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

// Refuses options of upstream's MoM that change the network and are not served.
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

Activation ReadGateActivation(ConfigReader& reader) {
  constexpr const char* kKey = "output_gate_activation";
  if (ReadChoice(reader, kKey, {"swish", "silu", "sigmoid"}) == 2) return Activation::kSigmoid;
  reader.Keep(kKey, "swish");
  return Activation::kSilu;
}

void ReadMixer(ConfigReader& reader, const Defaults& defaults, ModelConfig& config,
               GatedDeltaConfig& mixer) {
  const bool routed = defaults.memories > 0;
  mixer.heads = reader.Int("num_heads", defaults.heads, 1, kMaxHeads);
  mixer.value_heads = mixer.heads;
  mixer.key_dim = reader.Int("head_dim", 256, 1, kMaxHeadDim);
  mixer.value_dim = ReadValueDim(reader, mixer.key_dim, defaults.expand_v);
  if (!routed) {
    mixer.value_heads = ReadValueHeads(reader, mixer.heads);
    mixer.allow_negative_eigenvalues = reader.Bool("allow_neg_eigval", false);
    mixer.gate_activation = ReadGateActivation(reader);
  }
  CheckChannels(reader, int64_t{mixer.heads} * mixer.key_dim, "num_heads");
  CheckChannels(reader, int64_t{mixer.value_heads} * mixer.value_dim, "expand_v");
  mixer.conv_width = ReadConvWidth(reader, config, /*used_by_default=*/true);
  mixer.output_gate = ReadSwitch(reader, config, defaults.output_gate_key, true, ".g_proj.");
  mixer.shared_memory = defaults.shared_memory;
  if (!routed) return;
  mixer.memories = reader.Int("num_memories", defaults.memories, 1, kMaxMemories);
  mixer.top_k = reader.Int("topk", 2, 1, mixer.memories);
  mixer.shared_memory =
      ReadSwitch(reader, config, "shared_mem", defaults.shared_memory, ".shared_");
  mixer.single_kv_proj = ReadSingleProjection(reader, config);
}

}  // namespace

GatedDeltaKeys ReadGatedDeltaKeys(absl::string_view model_type, ConfigReader& reader,
                                  ModelConfig& config) {
  const Defaults& defaults = DefaultsOf(model_type);
  if (defaults.memories > 0) RefuseUnsupportedMom(reader);
  GatedDeltaKeys keys;
  keys.stack = ReadStackKeys(reader, defaults.layers, /*default_hidden_ratio=*/4, config);
  ReadMixer(reader, defaults, config, keys.mixer);
  keys.attention = ReadHybridKeys(model_type, reader, keys.stack, config);
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

namespace {

NetworkMaker ReadGatedDelta(absl::string_view model_type, ConfigReader& reader,
                            ModelConfig& config) {
  const GatedDeltaKeys keys = ReadGatedDeltaKeys(model_type, reader, config);
  const bool routed = keys.mixer.memories > 0;
  const auto memory = [mixer = keys.mixer, routed](const LayerBuilder& builder) {
    return routed ? MakeMixtureOfMemories(builder, mixer) : MakeGatedDeltaNet(builder, mixer);
  };
  return StackNetwork(keys.stack, Hybrid(keys.attention, memory),
                      {.memories = keys.mixer.memories, .top_k = keys.mixer.top_k});
}

}  // namespace

const Architecture kMom = {
    .model_type = "mom", .read = ReadGatedDelta, .coarsest_state = DType::kI8};

const Architecture kMomGatedDeltaNet = {
    .model_type = "mom_gated_deltanet", .read = ReadGatedDelta, .coarsest_state = DType::kI8};

const Architecture kGatedDeltaNet = {
    .model_type = "gated_deltanet", .read = ReadGatedDelta, .coarsest_state = DType::kI8};

}  // namespace mneme
