// Retention (Sun et al., arXiv:2307.08621): a matrix memory that decays at a rate of its head, with
// keys and queries that are turned by their position.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/feature_map.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct RetentionConfig {
  int heads = 0;
  int kv_heads = 0;  // divides heads; each group of heads shares keys and values
  int key_dim = 0;   // of a head, even
  int value_dim = 0;
  KeyMap key_map = KeyMap::kIdentity;  // one that is ActivationOf
  bool output_gate = true;
  bool norm_affine = true;
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRetention(const LayerBuilder& builder,
                                                             const RetentionConfig& config);

}  // namespace mneme
