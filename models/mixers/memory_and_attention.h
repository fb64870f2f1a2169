// Titans with a long-term memory beside attention, or in front of it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/neural_memory.h"
#include "models/mixers/prefix_attention.h"
#include "models/sequence_mixer.h"

namespace mneme {

// Memory as a gate, both from the same x = hidden:
//   hidden += phi(Norm(NeuralMemory(Norm(x)); memory_output_norm))
//             * psi(Norm(PrefixAttention(Norm(x; attention_layernorm)); attention_output_norm))
struct MemoryAsGateConfig {
  NeuralMemoryConfig memory;
  PrefixAttentionConfig attention;
  Activation activation = Activation::kSilu;  // phi
  bool activates_both = true;                 // psi is phi; else the identity
};
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMemoryAsGate(const LayerBuilder& builder,
                                                                const MemoryAsGateConfig& config);

// Memory as a layer:
//   m = NeuralMemory(Norm(hidden)), plus hidden with `inner_residual`
//   hidden = PrefixAttention(Norm(m; attention_layernorm)) + m with `inner_residual`, else + hidden
struct MemoryAsLayerConfig {
  NeuralMemoryConfig memory;
  PrefixAttentionConfig attention;
  bool inner_residual = true;
};
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMemoryAsLayer(const LayerBuilder& builder,
                                                                 const MemoryAsLayerConfig& config);

}  // namespace mneme
