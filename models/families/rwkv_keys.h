// Keys that RWKV-6 and RWKV-7 of flash-linear-attention share, and the network around their mixers.
#pragma once

#include "base/config_reader.h"
#include "models/families/fla_keys.h"
#include "models/families/stack_keys.h"
#include "models/feed_forwards/channel_mix.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

struct RwkvKeys {
  StackKeys stack;
  AttentionLayers attention;
  bool norm_first = true;  // a norm in front of the first layer
  bool norm_bias = true;
};

// The feed-forward is `default_ratio` times as wide as the model, rounded up to a multiple of 32,
// unless intermediate_size or hidden_ratio says otherwise.
RwkvKeys ReadRwkvKeys(ConfigReader& reader, double default_ratio, ModelConfig& config);

// Attention in its layers, `memory` in the others. `first_values`: channels of
// ForwardContext::first_values.
NetworkMaker RwkvNetwork(const RwkvKeys& keys, MixerMaker memory, ChannelMix mix,
                         int first_values = 0);

}  // namespace mneme
