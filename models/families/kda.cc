#include <cmath>

#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/kimi_delta_attention.h"

namespace mneme {

namespace {

NetworkMaker ReadKda(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  KimiDeltaAttentionConfig mixer;
  mixer.heads = reader.Int("num_heads", 16, 1, kMaxHeads);
  mixer.value_heads = ReadValueHeads(reader, mixer.heads);
  mixer.key_dim = reader.Int("head_dim", 128, 1, kMaxHeadDim);
  mixer.value_dim = ReadValueDim(reader, mixer.key_dim, /*default_expand_v=*/1);
  CheckChannels(reader, mixer.heads * int64_t{mixer.key_dim}, "num_heads");
  CheckChannels(reader, mixer.value_heads * int64_t{mixer.value_dim}, "expand_v");
  mixer.conv_width = ReadConvWidth(reader, config, /*used_by_default=*/true);
  mixer.least_log_decay = ReadNullableNumber(reader, "lower_bound", -kMostDecay, 0);
  mixer.allow_negative_eigenvalues = reader.Bool("allow_neg_eigval", false);
  // Which kernel upstream takes, and what it demands of the configuration.
  if (reader.Bool("safe_gate", false) && !mixer.least_log_decay.has_value()) {
    reader.Invalid("safe_gate", true, "false where lower_bound is null");
  }
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  reader.Disregard({"safe_gate"});
  return StackNetwork(stack, Hybrid(attention, [mixer](const LayerBuilder& builder) {
                        return MakeKimiDeltaAttention(builder, mixer);
                      }));
}

}  // namespace

const Architecture kKda = {
    .model_type = "kda",
    .read = ReadKda,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 8, "num_v_heads": null, "head_dim": 128,
                            "expand_v": 1.0, "use_short_conv": true, "conv_size": 4,
                            "lower_bound": null, "allow_neg_eigval": false})",
                .tiny = R"({"head_dim": 32})",
                .summary = "8 heads of 128 x 128"},
    .ways = R"([{},
                {"num_v_heads": 4, "use_short_conv": false, "lower_bound": -5},
                {"attn": {"layers": [1], "num_heads": 2, "window_size": 30}}])"};

}  // namespace mneme
