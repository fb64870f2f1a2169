// Softmax attention over what the session was fed, or over a window of it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct AttentionConfig {
  int heads = 1;
  int kv_heads = 1;  // divides `heads`
  int head_dim = 1;
  bool qkv_bias = false;
  bool output_bias = false;
  // RmsNorm of each head of q and k, before they are rotated.
  bool qk_norm = false;
  float qk_norm_eps = 1e-5f;
  double rope_theta = 10000;     // needs an even head_dim
  int window = 0;                // positions that a token sees, its own included; 0: all
  std::string prefix = "attn.";  // of tensor names, behind the layer's

  int query_channels() const { return heads * head_dim; }
  int kv_channels() const { return kv_heads * head_dim; }
};

// State: a row of keys, rotated, and one of values for each position: of the window, as a ring,
// where that is no longer than NetworkBuilder::max_context, else of the first max_context.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeAttention(const LayerBuilder& builder,
                                                             const AttentionConfig& config);

}  // namespace mneme
