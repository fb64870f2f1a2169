// Keys that several models of flash-linear-attention have.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/blocks/residual_block.h"
#include "models/families/attention_keys.h"
#include "models/families/stack_keys.h"
#include "models/mixers/feature_map.h"
#include "models/mixers/memory_router.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// Log decays of a configuration reach from minus this to 0: exp() of it is zero in any format.
inline constexpr double kMostDecay = 1e4;

// Heads that are cut from widths that are multiples of the model's.
struct HeadKeys {
  int heads = 0;
  int kv_heads = 0;
  int key_dim = 0;  // of a head
  int value_dim = 0;
};
// What the keys are called, and mean where they are missing.
struct HeadDefaults {
  int heads = 4;
  double expand_k = 1, expand_v = 1;
  const char* expand_k_key = "expand_k";
  const char* expand_v_key = "expand_v";
  bool grouped = true;  // there is num_kv_heads
};
HeadKeys ReadHeads(ConfigReader& reader, int model_dim, const HeadDefaults& defaults);

// Reads use_short_conv and conv_size. Returns 0 without convolutions.
int ReadConvWidth(ConfigReader& reader, ModelConfig& config, bool used_by_default);

// elementwise_affine, for which null is false. `norm`: part of the name of the norm's gain.
bool ReadNormAffine(ConfigReader& reader, ModelConfig& config, const char* norm);
// Null and missing are nothing. Else in [low, high].
std::optional<float> ReadNullableNumber(ConfigReader& reader, const char* key, double low,
                                        double high);

// feature_map, by one of `names`; refuses others, null included, for which there is `otherwise` if
// the key may be null.
using KeyMapNames = std::initializer_list<std::pair<absl::string_view, KeyMap>>;
KeyMap ReadKeyMap(ConfigReader& reader, KeyMapNames names, absl::string_view otherwise);
// The same by upstream's names of activations; missing or null: none.
KeyMap ReadActivationMap(ConfigReader& reader);

// num_memories (or `fixed_memories`, if that is not 0), topk, shared_mem, capacity.
RoutingConfig ReadRouting(ConfigReader& reader, ModelConfig& config, int fixed_memories = 0);
// single_kv_proj: all memories of a router use the shared one's projections of keys and values.
bool ReadSingleProjection(ConfigReader& reader, ModelConfig& config);

// The layers of `attn`, as the models of `model_type` understand it; and declares keys that only
// look like some that are read.
AttentionLayers ReadHybridKeys(absl::string_view model_type, ConfigReader& reader,
                               const StackKeys& stack, ModelConfig& config);

// The network of a stack of such mixers and gated MLPs. `block`: the norms, where they are called
// otherwise.
NetworkMaker StackNetwork(const StackKeys& stack, MixerMaker mixer,
                          const RoutingConfig& routing = {}, ResidualBlockParts block = {});

}  // namespace mneme
