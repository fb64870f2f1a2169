// Kimi Delta Attention (arXiv:2510.26692): the delta rule, with keys that decay each at its own
// rate, which the token sets.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct KimiDeltaAttentionConfig {
  int heads = 0;        // of keys and queries
  int value_heads = 0;  // multiple of heads; each group shares one head's q and k
  int key_dim = 0;      // of a head
  int value_dim = 0;
  int conv_width = 0;                       // 0: no short convolutions, only their activation
  std::optional<float> least_log_decay;     // the bound that decays approach, if there is one
  bool allow_negative_eigenvalues = false;  // strengths up to 2
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeKimiDeltaAttention(
    const LayerBuilder& builder, const KimiDeltaAttentionConfig& config);

}  // namespace mneme
