#include "models/families/titans_parts.h"

#include "models/blocks/residual_block.h"
#include "models/feed_forwards/gated_mlp.h"

namespace mneme {

NetworkMaker TitansNetwork(const StackKeys& stack, int prefix, const MixerMaker& mixer) {
  LanguageModelParts parts = stack.Parts();
  parts.embeddings = "model.embed_tokens.weight";
  parts.prefix = prefix;
  const ResidualBlockParts block = {
      .mixer_norm = {"input_layernorm.weight"},
      .mixer = mixer,
      .feed_forward_norm = {"post_attention_layernorm.weight"},
      .feed_forward = [mlp_dim = stack.mlp_dim](const LayerBuilder& builder) {
        return MakeGatedMlp(builder, mlp_dim);
      }};
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace mneme
