#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/linear_attention.h"

namespace mneme {

namespace {

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
      .norm_affine = ReadNormAffine(reader, config, ".attn.norm.")};
  // Only what is learned can be shared.
  if (!IsLearned(mixer.key_map)) mixer.tied_maps = reader.Keep("tie_feature_map_qk", false);
  if (mixer.key_map == KeyMap::kDpfp) {
    config.warnings.push_back(
        "key \"feature_map\" is \"dpfp\": half of the features are of -relu(u), as in "
        "flash-linear-attention before 0.6, and not of relu(-u) as in 0.6");
  }
  if (model_type == "mom_linear_attn") {
    mixer.routing = ReadRouting(reader, config);
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

}  // namespace

const Architecture kLinearAttn = {
    .model_type = "linear_attn",
    .read = ReadLinearAttn,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 4, "num_kv_heads": null, "expand_k": 1.0,
                            "expand_v": 1.0, "feature_map": "elementwise_product",
                            "tie_feature_map_qk": false, "norm_q": false, "norm_k": false,
                            "norm_feature_map": false})",
                .summary = "4 heads of 256 x 256"},
    .ways = R"([{},
                {"feature_map": "hedgehog", "norm_feature_map": true},
                {"feature_map": "elu", "num_kv_heads": 1, "norm_feature_map": true},
                {"attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2}}])"};

const Architecture kMomLinearAttn = {
    .model_type = "mom_linear_attn",
    .read = ReadLinearAttn,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 4, "num_kv_heads": null, "expand_k": 1.0,
                            "expand_v": 1.0, "feature_map": "elementwise_product",
                            "tie_feature_map_qk": false, "norm_q": false, "norm_k": false,
                            "norm_feature_map": false, "num_memories": 4, "topk": 2,
                            "shared_mem": true})",
                .summary = "the same behind a router, 4 + 1 memories, top 2"},
    .ways = R"([{},
                {"shared_mem": false, "feature_map": "t2r"},
                {"attn": {"layers": [0], "num_heads": 4}}])"};

}  // namespace mneme
