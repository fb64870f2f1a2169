#include <cmath>

#include "models/families/fla.h"
#include "models/families/fla_keys.h"
#include "models/mixers/gated_linear_attention.h"

namespace mneme {

NetworkMaker ReadGla(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  const HeadKeys heads = ReadHeads(reader, stack.model_dim, {.heads = 4, .expand_k = 0.5});
  GatedLinearAttentionConfig mixer = {
      .heads = heads.heads,
      .kv_heads = heads.kv_heads,
      .key_dim = heads.key_dim,
      .value_dim = heads.value_dim,
      .conv_width = ReadConvWidth(reader, /*used_by_default=*/false),
      .key_map = ReadActivationMap(reader),
      .output_gate = reader.Bool("use_output_gate", true),
      .norm_affine = ReadFlag(reader, "elementwise_affine", true)};
  if (const auto least = ReadNullableNumber(reader, "clamp_min", -kMostDecay, 0)) {
    mixer.least_log_decay = *least;
  }
  if (model_type == "mom_gla") {
    mixer.routing = ReadRouting(reader);
    mixer.routing.single_projection = reader.Bool("single_kv_proj", false);
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

}  // namespace mneme
