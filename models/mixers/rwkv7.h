// RWKV-7's time mix: a matrix memory that erases along one key and writes along another (Peng et
// al., arXiv:2503.14456, as flash-linear-attention has it).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct Rwkv7Config {
  int heads = 1;
  int key_dim = 0;  // of a head; heads of them are the model's width
  int value_dim = 0;
  // The erased key's norm is max(sqrt(sum + eps), least).
  float key_norm_eps = 1e-6f, key_norm_least = 0.0f;
  // Ranks where no file says them.
  int decay_rank = 64, rate_rank = 64, value_rank = 16, gate_rank = 128;
};

// Weights attn.*. Reads ForwardContext::first_values, which the first layer writes, of
// heads * value_dim channels.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRwkv7(const LayerBuilder& builder,
                                                         const Rwkv7Config& config);

}  // namespace mneme
