#include <nlohmann/json.hpp>

#include "models/families/attention_keys.h"
#include "models/families/families.h"
#include "models/families/mamba_keys.h"
#include "models/feed_forwards/gated_mlp.h"

namespace mneme {
namespace {

// Attention to a window in every second layer.
nlohmann::json DefaultAttention() {
  constexpr unsigned kLayers = 18;
  nlohmann::json attn = {{"num_heads", 18}, {"window_size", 2048}};
  for (unsigned layer = 1; layer < kLayers; layer += 2) attn["layers"].push_back(layer);
  return attn;
}

NetworkMaker ReadSamba(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  StackKeys stack = ReadMambaStack(
      reader, {.vocab = 32000, .model_dim = 2304, .layers = 18, .norm_eps_key = "norm_eps"},
      config);
  // intermediate_size is the scan's; the MLP's width always follows from the ratio.
  MambaConfig scan = ReadMambaMixer(reader, config, stack.model_dim, "time_step_rank");
  stack.mlp_dim = ReadRatioMlpDim(reader, stack.model_dim, /*default_ratio=*/4);
  reader.Keep("hidden_ratio", stack.mlp_dim);  // the width counts, whatever makes it
  // Files of fewer layers keep what upstream writes for eighteen.
  const AttentionLayers attention = ReadAttentionLayers(
      reader, stack, config,
      {.prefix = "mixer.", .cuts_layers = true, .otherwise = DefaultAttention()});
  // Upstream's layers never get to see the first.
  reader.Disregard({"use_conv_bias", "max_position_embeddings"});
  const auto memory = [scan](const LayerBuilder& builder) { return MakeMamba(builder, scan); };
  return MambaNetwork(stack,
                      {.mixer_norm = {"mixer_norm.weight"},
                       .mixer = Hybrid(attention, memory),
                       .feed_forward = [mlp_dim = stack.mlp_dim](const LayerBuilder& builder) {
                         return MakeGatedMlp(builder, mlp_dim);
                       }});
}

}  // namespace

const Architecture kSamba = {
    .model_type = "samba", .read = ReadSamba, .ways = R"([{}, {"attn": null}])"};

}  // namespace mneme
