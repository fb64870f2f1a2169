#include "models/mixers/delta_net.h"

#include <string>

#include "models/families/families.h"
#include "models/families/fla_keys.h"

namespace mneme {
namespace {

KeyMap ReadQueryKeyActivation(ConfigReader& reader) {
  const std::string name = reader.String("qk_activation", "silu");
  if (name == "silu") return KeyMap::kSilu;
  if (name == "relu") return KeyMap::kRelu;
  if (name == "elu") return KeyMap::kEluPlusOne;
  if (name != "identity") {
    reader.Invalid("qk_activation", name, "\"silu\", \"relu\", \"elu\" or \"identity\"");
  }
  return KeyMap::kIdentity;
}

KeyNorm ReadQueryKeyNorm(ConfigReader& reader) {
  const std::string name = reader.String("qk_norm", "l2");
  if (name != "l2" && name != "sum") reader.Invalid("qk_norm", name, "\"l2\" or \"sum\"");
  return name == "sum" ? KeyNorm::kSum : KeyNorm::kL2;
}

NetworkMaker ReadDeltaNet(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  const HeadKeys heads = ReadHeads(reader, stack.model_dim, {.heads = 16, .grouped = false});
  const DeltaNetConfig mixer = {
      .heads = heads.heads,
      .key_dim = heads.key_dim,
      .value_dim = heads.value_dim,
      .conv_width = ReadConvWidth(reader, config, /*used_by_default=*/true),
      .key_map = ReadQueryKeyActivation(reader),
      .key_norm = ReadQueryKeyNorm(reader),
      .learned_strength = ReadSwitch(reader, config, "use_beta", true, ".b_proj."),
      .allow_negative_eigenvalues = reader.Bool("allow_neg_eigval", false),
      .output_gate = ReadSwitch(reader, config, "use_gate", false, ".g_proj.")};
  const bool signed_keys = mixer.key_map == KeyMap::kSilu || mixer.key_map == KeyMap::kIdentity;
  if (mixer.key_norm == KeyNorm::kSum && signed_keys) {
    config.warnings.push_back(
        "key \"qk_norm\" is \"sum\": keys of either sign are divided by their sum, as "
        "flash-linear-attention before 0.6 divides them; 0.6 takes the sum of absolute values");
  }
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  reader.Disregard({"use_output_norm"});  // upstream does not read it
  return StackNetwork(stack, Hybrid(attention, [mixer](const LayerBuilder& builder) {
                        return MakeDeltaNet(builder, mixer);
                      }));
}

}  // namespace

const Architecture kDeltaNet = {
    .model_type = "delta_net",
    .read = ReadDeltaNet,
    .coarsest_state = DType::kI8,
    .example = {.keys = R"({"num_heads": 8, "expand_k": 1.0, "expand_v": 1.0,
                            "use_short_conv": true, "conv_size": 4, "use_beta": true,
                            "use_gate": false, "qk_norm": "l2", "qk_activation": "silu",
                            "allow_neg_eigval": false})",
                .summary = "8 heads of 128 x 128"},
    .ways = R"([{},
                {"use_short_conv": false, "use_beta": false, "use_gate": true},
                {"attn": [{"layers": [0], "num_heads": 4}, {"layers": [1], "num_heads": 2}]}])"};

}  // namespace mneme
