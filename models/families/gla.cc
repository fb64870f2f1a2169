#include <cmath>

#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/gated_linear_attention.h"

namespace mneme {

namespace {

NetworkMaker ReadGla(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  const HeadKeys heads = ReadHeads(reader, stack.model_dim, {.heads = 4, .expand_k = 0.5});
  GatedLinearAttentionConfig mixer = {
      .heads = heads.heads,
      .kv_heads = heads.kv_heads,
      .key_dim = heads.key_dim,
      .value_dim = heads.value_dim,
      .conv_width = ReadConvWidth(reader, config, /*used_by_default=*/false),
      .key_map = ReadActivationMap(reader),
      .output_gate = ReadSwitch(reader, config, "use_output_gate", true, ".g_proj."),
      .norm_affine = ReadNormAffine(reader, config, ".g_norm")};
  if (const auto least = ReadNullableNumber(reader, "clamp_min", -kMostDecay, 0)) {
    mixer.least_log_decay = *least;
  }
  if (model_type == "mom_gla") {
    mixer.routing = ReadRouting(reader, config);
    mixer.routing.single_projection = ReadSingleProjection(reader, config);
    if (mixer.routing.shared && mixer.conv_width > 0) {
      reader.Unsupported("use_short_conv", true, "false where shared_mem is true");
    }
  }
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  reader.Disregard({"use_gk", "use_gv"});  // upstream does not read them
  return StackNetwork(stack,
                      Hybrid(attention,
                             [mixer](const LayerBuilder& builder) {
                               return MakeGatedLinearAttention(builder, mixer);
                             }),
                      mixer.routing);
}

}  // namespace

const Architecture kGla = {
    .model_type = "gla",
    .read = ReadGla,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 4, "num_kv_heads": null, "expand_k": 0.5,
                            "expand_v": 1.0, "feature_map": null, "clamp_min": null,
                            "use_output_gate": true, "use_short_conv": false,
                            "conv_size": 4})",
                .summary = "4 heads of 128 x 256"},
    .ways = R"([{},
                {"num_kv_heads": 1, "use_short_conv": true},
                {"attn": {"layers": [1], "num_heads": 4, "qkv_bias": true}}])"};

const Architecture kMomGla = {
    .model_type = "mom_gla",
    .read = ReadGla,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 4, "num_kv_heads": null, "expand_k": 0.5,
                            "expand_v": 1.0, "feature_map": null, "clamp_min": null,
                            "use_output_gate": true, "use_short_conv": false,
                            "conv_size": 4, "num_memories": 4, "topk": 2,
                            "shared_mem": true})",
                .summary = "the same behind a router, 4 + 1 memories, top 2"},
    .ways = R"([{},
                {"single_kv_proj": true},
                {"shared_mem": false, "use_short_conv": true},
                {"attn": {"layers": [1], "num_heads": 4, "window_size": 30}}])"};

}  // namespace mneme
