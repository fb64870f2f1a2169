#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/retention.h"

namespace mneme {

namespace {

NetworkMaker ReadRetNet(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  constexpr int kMostKeyDim = 256;  // upstream's
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/2, config);
  const HeadKeys heads = ReadHeads(reader, stack.model_dim, {.heads = 8, .expand_v = 2});
  if (heads.key_dim > kMostKeyDim || heads.key_dim % 2 != 0) {
    reader.Invalid("num_heads", heads.heads,
                   absl::StrCat("a number that makes keys even and at most ", kMostKeyDim,
                                " wide, not ", heads.key_dim));
  }
  const RetentionConfig mixer = {
      .heads = heads.heads,
      .kv_heads = heads.kv_heads,
      .key_dim = heads.key_dim,
      .value_dim = heads.value_dim,
      .key_map = ReadActivationMap(reader),
      .output_gate = ReadSwitch(reader, config, "use_output_gate", true, ".g_proj."),
      .norm_affine = ReadNormAffine(reader, config, ".g_norm")};
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  reader.Disregard({"use_short_conv", "conv_size"});  // upstream's layer never gets to see them
  return StackNetwork(stack, Hybrid(attention, [mixer](const LayerBuilder& builder) {
                        return MakeRetention(builder, mixer);
                      }));
}

}  // namespace

const Architecture kRetNet = {
    .model_type = "retnet",
    .read = ReadRetNet,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"hidden_ratio": 2, "num_heads": 4, "num_kv_heads": null,
                            "expand_k": 1.0, "expand_v": 2.0, "feature_map": null,
                            "use_output_gate": true})",
                .summary = "4 heads of 256 x 512"},
    .ways = R"([{},
                {"num_heads": 4, "num_kv_heads": 2},
                {"attn": {"layers": [0], "num_heads": 2, "window_size": 21}}])"};

}  // namespace mneme
