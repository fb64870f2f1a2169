#pragma once

#include "kernels/kernels.h"

namespace mneme {

// A layer with matrix memories under the gated delta rule. Gated DeltaNet is the case of one memory
// that all tokens go to: memories = 0, top_k = 0, shared_memory = true.
struct GatedDeltaConfig {
  int heads = 0;
  int value_heads = 0;  // multiple of heads; each group shares one head's q and k
  int key_dim = 0;      // of a head
  int value_dim = 0;    // of a head
  int conv_width = 0;   // 0: no short convolution, only its activation
  bool output_gate = true;
  Activation gate_activation = Activation::kSilu;  // or kSigmoid
  bool allow_negative_eigenvalues = false;
  int memories = 0;  // routed
  int top_k = 0;
  bool shared_memory = false;
  bool single_kv_proj = false;  // all memories use the shared memory's projections

  int key_channels() const { return heads * key_dim; }
  int value_channels() const { return value_heads * value_dim; }
  int all_memories() const { return memories + (shared_memory ? 1 : 0); }
};

}  // namespace mneme
