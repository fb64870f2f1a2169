// h = wte[token] + wpe[position];  h += Attention(LayerNorm(h; ln_1));  h += Mlp(LayerNorm(h;
// ln_2)) for each layer;  logits = wte LayerNorm(h; ln_f)

#include <algorithm>
#include <string>

#include "models/blocks/residual_block.h"
#include "models/families/families.h"
#include "models/families/gpt2_parts.h"
#include "models/gpt2_tensors.h"
#include "models/networks/language_model.h"

namespace mneme {

namespace {

NetworkMaker ReadGpt2(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  Gpt2Keys keys = ReadGpt2Keys(reader, config);
  if (!reader.Bool("scale_attn_weights", true)) keys.attention.scale = 1;
  const bool scaled_by_layer = reader.Bool("scale_attn_by_inverse_layer_idx", false);
  const ResidualBlockParts block = {
      .mixer_norm = LayerNormOf("ln_1"),
      .mixer =
          [attention = keys.attention, scaled_by_layer](const LayerBuilder& builder) {
            IgnoreMasks(builder, {"attn"});
            AttentionConfig own = attention;
            if (scaled_by_layer) {
              own.scale = own.score_scale() / static_cast<float>(builder.layer + 1);
            }
            return MakeAttention(builder, own);
          },
      .feed_forward_norm = LayerNormOf("ln_2"),
      .feed_forward =
          [mlp = keys.mlp](const LayerBuilder& builder) { return MakeMlp(builder, mlp); }};
  LanguageModelParts parts = keys.stack.Parts();
  parts.info.positions = keys.positions;
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) {
    // The first files, which have no head either, were written without it.
    const std::string prefix = builder.weights.Has("transformer.wte.weight") ? "transformer." : "";
    LanguageModelParts own = parts;
    own.embeddings = prefix + "wte.weight";
    own.positions = prefix + "wpe.weight";
    own.layer_prefix = prefix + "h.";
    own.norm = LayerNormOf(prefix + "ln_f");
    NetworkBuilder bounded = builder;
    bounded.max_context = std::min(builder.max_context, own.info.positions);
    return MakeLanguageModel(bounded, own);
  };
}

}  // namespace

const Architecture kGpt2 = {.model_type = "gpt2", .read = ReadGpt2, .ways = R"([{},
                {"n_head": 2, "n_inner": 96, "scale_attn_by_inverse_layer_idx": true}])"};

}  // namespace mneme
