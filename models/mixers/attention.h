// Softmax attention over what the session was fed, or over a window of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/rope_frequencies.h"
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
  bool rotary = true;         // queries and keys are turned by their positions
  double rope_theta = 10000;  // needs an even head_dim
  RopeScaling rope_scaling;
  float scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  int window = 0;   // positions that a token sees, its own included; 0: all
  // Positions are cut into segments of so many that see nothing of each other, and no row of a step
  // has tokens of two; 0: they are not. Without a window.
  int segment = 0;
  std::string prefix = "attn.";  // of tensor names, behind the layer's

  enum class Tensors : uint8_t {
    kFour,    // q_proj, k_proj, v_proj, o_proj: [out, in]
    kConv1d,  // c_attn, which has q, k and v side by side, and c_proj: [in, out]
  };
  Tensors tensors = Tensors::kFour;

  float score_scale() const {
    return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
  }
  int query_channels() const { return heads * head_dim; }
  int kv_channels() const { return kv_heads * head_dim; }
};

// State: a row of keys, rotated, and one of values for each position: of the window, as a ring,
// where that is no longer than NetworkBuilder::max_context, else of the first max_context; of a
// segment, as a ring.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeAttention(const LayerBuilder& builder,
                                                             const AttentionConfig& config);

}  // namespace mneme
