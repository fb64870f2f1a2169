// DeltaNet (Yang et al., arXiv:2406.06484; Schlag et al., arXiv:2102.11174): a matrix memory that
// does not decay, in which a token replaces what is stored under its key.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/feature_map.h"
#include "models/sequence_mixer.h"

namespace mneme {

enum class KeyNorm : uint8_t {
  kL2,   // u / sqrt(sum u^2 + 1e-6)
  kSum,  // u / sum u
};

struct DeltaNetConfig {
  int heads = 0;
  int key_dim = 0;  // of a head
  int value_dim = 0;
  int conv_width = 0;              // 0: no short convolutions
  KeyMap key_map = KeyMap::kSilu;  // one that is ActivationOf
  KeyNorm key_norm = KeyNorm::kL2;
  bool learned_strength = true;             // false: 1
  bool allow_negative_eigenvalues = false;  // strengths up to 2
  bool output_gate = false;
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeDeltaNet(const LayerBuilder& builder,
                                                            const DeltaNetConfig& config);

}  // namespace mneme
