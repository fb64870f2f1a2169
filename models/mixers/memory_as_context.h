// Titans whose long-term memory is context of attention, and is written by what attention finds.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/neural_memory.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct MemoryAsContextConfig {
  NeuralMemoryConfig memory;  // without a prefix
  int heads = 1;              // of attention
  int head_dim = 2;           // even
  double rope_theta = 10000;
  bool rope_interleaved = true;
  int segment = 1;                            // positions of one
  int persistent = 0;                         // rows that are seen from everywhere
  Activation activation = Activation::kSilu;  // phi
  bool activates_both = true;                 // psi is phi; else the identity
};

// The i-th token of a segment, x = Norm(hidden), P the persistent rows:
//   h_i = the memory as it was at the segment's start, asked by x
//   y   = attention of x over P, h_0 to h_i and x_0 to x_i, all but P rotated by their index
//   r   = NeuralMemory(Norm(y; memory_layernorm))
//   hidden += phi(Norm(r; memory_output_norm)) * psi(Norm(y; attention_output_norm))
// State: the memory's, what its query's convolution has seen of x, and rings of a segment's keys
// and values, two of each for a position.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMemoryAsContext(
    const LayerBuilder& builder, const MemoryAsContextConfig& config);

}  // namespace mneme
