// Gated linear attention (Yang et al., arXiv:2312.06635): a matrix memory whose keys decay each at
// its own rate, which the token sets.
#pragma once

#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/feature_map.h"
#include "models/mixers/memory_router.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct GatedLinearAttentionConfig {
  RoutingConfig routing;
  int heads = 0;
  int kv_heads = 0;  // divides heads; each group of heads shares keys, values and decays
  int key_dim = 0;   // of a head
  int value_dim = 0;
  int conv_width = 0;                  // 0: no short convolutions
  KeyMap key_map = KeyMap::kIdentity;  // one that is ActivationOf
  float least_log_decay = -std::numeric_limits<float>::infinity();
  bool output_gate = true;
  bool norm_affine = true;
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedLinearAttention(
    const LayerBuilder& builder, const GatedLinearAttentionConfig& config);

}  // namespace mneme
