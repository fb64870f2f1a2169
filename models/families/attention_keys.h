// Keys of attention as flash-linear-attention spells them, and the layers of a hybrid that have it
// in place of a memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "models/families/stack_keys.h"
#include "models/layer_builder.h"
#include "models/mixers/attention.h"
#include "models/model_config.h"
#include "models/sequence_mixer.h"

namespace mneme {

// num_heads (`default_heads` where it is missing), num_kv_heads, qkv_bias, window_size, rope_theta.
// Heads are cut from the model's width.
AttentionConfig ReadAttentionConfig(ConfigReader& reader, int model_dim, int default_heads);

// Layers with attention by their number; none where a model has no such layer.
using AttentionLayers = std::map<int, AttentionConfig>;

// The ways in which upstream's models read `attn`.
struct HybridOptions {
  const char* prefix = "attn.";  // of the tensors' names
  bool lists = true;             // it may be a list of objects
  // qkv_bias and rope_theta reach the layers. Else they have their defaults whatever is written,
  // and the configuration warns of it.
  bool bias_and_theta = true;
  bool cuts_layers = false;       // numbers of layers that there are not are left out
  nlohmann::json otherwise = {};  // where the key is missing
};

// attn: null, or an object of `layers`, num_heads and the other keys above, or a list of such
// objects, each for other layers.
AttentionLayers ReadAttentionLayers(ConfigReader& reader, const StackKeys& stack,
                                    ModelConfig& config, const HybridOptions& options = {});

using MixerMaker =
    std::function<absl::StatusOr<std::unique_ptr<SequenceMixer>>(const LayerBuilder&)>;
// Attention in its layers, `memory` in the others.
MixerMaker Hybrid(AttentionLayers attention, MixerMaker memory);

}  // namespace mneme
