// RWKV-6's time mix: a matrix memory that is read before it is written, and what is mixed with the
// token before depends on the token (Peng et al., arXiv:2404.05892, as flash-linear-attention has
// it).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct Rwkv6Config {
  int heads = 1;
  int key_dim = 0;  // of a head
  int value_dim = 0;
  // Ranks where no file says them.
  int mix_rank = 32, decay_rank = 64;
};

// Weights attn.*.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRwkv6(const LayerBuilder& builder,
                                                         const Rwkv6Config& config);

}  // namespace mneme
