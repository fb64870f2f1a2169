#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/fla_keys.h"
#include "models/mixers/gated_slot_attention.h"

namespace mneme {
namespace {

// Upstream reads one spelling and writes the other one, which counts where both are there.
const char* SpellingOf(ConfigReader& reader, const char* right, const char* wrong) {
  return reader.Has(right) || !reader.Has(wrong) ? right : wrong;
}

NetworkMaker ReadGsa(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  // Upstream's MoM has as many whatever its configuration says.
  constexpr int kMomMemories = 8;
  constexpr float kNormEps = 1e-5f;  // and of some norms, the same whatever norm_eps is
  const bool mom = model_type == "mom_gsa";
  const StackKeys stack =
      ReadStackKeys(reader, /*default_layers=*/24, /*default_hidden_ratio=*/4, config);
  const HeadKeys heads = ReadHeads(reader, stack.model_dim,
                                   {.heads = 4,
                                    .expand_k_key = SpellingOf(reader, "expand_k", "exapnd_k"),
                                    .expand_v_key = SpellingOf(reader, "expand_v", "exapnd_v")});
  reader.Keep("expand_k", heads.heads * heads.key_dim);
  if (heads.heads * heads.value_dim != stack.model_dim) {
    reader.Invalid("expand_v", heads.heads * heads.value_dim / static_cast<double>(stack.model_dim),
                   "1: the output norm is as wide as the model");
  }
  GatedSlotAttentionConfig mixer = {
      .heads = heads.heads,
      .kv_heads = heads.kv_heads,
      .key_dim = heads.key_dim,
      .value_dim = heads.value_dim,
      .conv_width = ReadConvWidth(reader, config, /*used_by_default=*/false),
      .key_map = ReadKeyMap(
          reader,
          {{"swish", KeyMap::kSilu}, {"relu", KeyMap::kRelu}, {"t2r", KeyMap::kTransformerToRnn}},
          "swish"),
      .gate_normalizer =
          static_cast<float>(reader.Number("gate_logit_normalizer", 8, kLeastNumber, 1e6)),
      .norm_affine = ReadNormAffine(reader, config, ".g_norm."),
      .norm_eps = kNormEps};
  // Null is as many slots as a key has numbers.
  mixer.slots = reader.Has("num_slots")
                    ? reader.NullableInt("num_slots", 1, kMaxHeadDim).value_or(heads.key_dim)
                    : 64;
  reader.Keep("num_slots", mixer.slots);
  const AttentionLayers attention = ReadHybridKeys(model_type, reader, stack, config);
  ResidualBlockParts block;
  if (mom) {
    mixer.routing = ReadRouting(reader, config, kMomMemories);
    if (mixer.conv_width > 0) {
      reader.Unsupported("use_short_conv", true, "false: upstream cannot run it");
    }
    if (reader.Bool("norm_first", true)) {
      block.mixer_norm = {"attn.norm.weight"};
      block.feed_forward_norm = {"mlp.norm.weight", kNormEps};
      if (!attention.empty()) {
        reader.Unsupported("attn", *reader.Find("attn"),
                           "null where norm_first is true: attention has no norm in front of it");
      }
    }
  }
  // What upstream does not read.
  reader.Disregard({"exapnd_k", "exapnd_v", "use_output_gate", "use_norm", "clamp_min", "clamp_max",
                    "num_memories", "num_experts"});
  return StackNetwork(stack,
                      Hybrid(attention,
                             [mixer](const LayerBuilder& builder) {
                               return MakeGatedSlotAttention(builder, mixer);
                             }),
                      mixer.routing, block);
}

}  // namespace

const Architecture kGsa = {
    .model_type = "gsa",
    .read = ReadGsa,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 4, "num_kv_heads": null, "expand_k": 1.0,
                            "expand_v": 1.0, "num_slots": 64, "feature_map": "swish",
                            "gate_logit_normalizer": 8, "use_short_conv": false,
                            "conv_size": 4})",
                .tiny = R"({"num_slots": 16})",
                .summary = "4 heads of 64 slots, 256 x 256"},
    .ways = R"([{},
                {"num_kv_heads": 1, "use_short_conv": true, "num_slots": 24},
                {"attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 1}}])"};

const Architecture kMomGsa = {
    .model_type = "mom_gsa",
    .read = ReadGsa,
    .coarsest_state = DType::kF16,
    .example = {.keys = R"({"num_heads": 4, "num_kv_heads": null, "expand_k": 1.0,
                            "expand_v": 1.0, "num_slots": 64, "feature_map": "swish",
                            "gate_logit_normalizer": 8, "use_short_conv": false,
                            "conv_size": 4, "topk": 2, "shared_mem": true})",
                .tiny = R"({"num_slots": 16})",
                .summary = "the same behind a router, 8 + 1 memories, top 2"},
    .ways = R"([{},
                {"shared_mem": false, "norm_first": false, "num_kv_heads": 1},
                {"norm_first": false, "attn": {"layers": [1], "num_heads": 4}}])"};

}  // namespace mneme
