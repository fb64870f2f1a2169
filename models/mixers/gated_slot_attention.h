// Gated slot attention (Zhang et al., arXiv:2409.07146): a fixed number of slots, each with a key
// and a value that are means over what was written, weighted by how lately; a token reads them by
// attention.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/feature_map.h"
#include "models/mixers/memory_router.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct GatedSlotAttentionConfig {
  RoutingConfig routing;
  int heads = 0;
  int kv_heads = 0;  // divides heads; each group of heads shares keys, values and gates
  int key_dim = 0;   // of a head
  int value_dim = 0;
  int slots = 0;       // of a head
  int conv_width = 0;  // 0: no short convolutions
  KeyMap key_map = KeyMap::kSilu;
  float gate_normalizer = 8;
  bool norm_affine = true;
  float norm_eps = 1e-5f;  // of the output norm
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedSlotAttention(
    const LayerBuilder& builder, const GatedSlotAttentionConfig& config);

}  // namespace mneme
