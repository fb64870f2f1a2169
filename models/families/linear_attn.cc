#include "models/families/fla.h"
#include "models/families/fla_keys.h"
#include "models/mixers/linear_attention.h"

namespace mneme {

NetworkMaker ReadLinearAttn(absl::string_view model_type, ConfigReader& reader,
                            ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  const HeadKeys heads = ReadHeads(reader, stack.model_dim, {.heads = 4});
  LinearAttentionConfig mixer = {
      .heads = heads.heads,
      .kv_heads = heads.kv_heads,
      .key_dim = heads.key_dim,
      .value_dim = heads.value_dim,
      .key_map = ReadKeyMap(reader,
                            {{"elementwise_product", KeyMap::kElementwiseProduct},
                             {"hedgehog", KeyMap::kHedgehog},
                             {"t2r", KeyMap::kTransformerToRnn},
                             {"dpfp", KeyMap::kDpfp},
                             {"elu", KeyMap::kEluPlusOne},
                             {"relu", KeyMap::kRelu},
                             {"identity", KeyMap::kIdentity}},
                            "elementwise_product"),
      .tied_maps = reader.Bool("tie_feature_map_qk", false),
      .norm_queries = reader.Bool("norm_q", false),
      .norm_keys = reader.Bool("norm_k", false),
      .norm_read = reader.Bool("norm_feature_map", false),
      .norm_affine = ReadFlag(reader, "elementwise_affine", true)};
  // Only what is learned can be shared.
  if (!IsLearned(mixer.key_map)) mixer.tied_maps = reader.Keep("tie_feature_map_qk", false);
  if (model_type == "mom_linear_attn") {
    mixer.routing = ReadRouting(reader);
    if (mixer.norm_read) {
      reader.Unsupported("norm_feature_map", true,
                         "false: with it, upstream adds the padding of a batch to the sum of keys");
    }
  }
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  return StackNetwork(
      stack,
      Hybrid(attention,
             [mixer](const LayerBuilder& builder) { return MakeLinearAttention(builder, mixer); }),
      mixer.routing);
}

}  // namespace mneme
