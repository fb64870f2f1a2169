// Linear attention (Katharopoulos et al., arXiv:2006.16236): a matrix memory that keeps all that is
// written, addressed by features of keys and queries.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/feature_map.h"
#include "models/mixers/memory_router.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct LinearAttentionConfig {
  RoutingConfig routing;
  int heads = 0;
  int kv_heads = 0;  // divides heads; each group of heads shares keys and values
  int key_dim = 0;   // of a head, before the map
  int value_dim = 0;
  KeyMap key_map = KeyMap::kElementwiseProduct;
  bool tied_maps = false;                        // one map for keys and queries
  bool norm_queries = false, norm_keys = false;  // features that sum up to one
  bool norm_read = false;  // what is read is divided by the sum of keys; without a router only
  bool norm_affine = true;
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeLinearAttention(
    const LayerBuilder& builder, const LinearAttentionConfig& config);

}  // namespace mneme
