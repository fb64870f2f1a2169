// Softmax attention behind a prefix that every session begins with.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/attention_context.h"
#include "models/projection.h"
#include "models/step_products.h"

namespace mneme {

struct PrefixAttentionConfig {
  int heads = 1;
  int head_dim = 2;  // even
  double rope_theta = 10000;
  bool rope_interleaved = true;
  int window = 0;  // positions that a token sees, its own included, beside the prefix; 0: all
  int prefix = 0;  // rows of it
};

// The token at position n, which counts from the first row of the prefix, per head:
//   q, k = rope(Wq x, n), rope(Wk x, n);   v = Wv x
//   y    = Wo concat( sum_j softmax_j( q . k_j / sqrt(head_dim) ) v_j )
// j: the prefix, and positions up to n in the window. State: a row of keys, rotated, and one of
// values for each position behind the prefix. Those of the prefix are the same for all sessions.
class PrefixAttention {
 public:
  // Tensors attention.{q,k,v,o}_proj.weight.
  static absl::StatusOr<PrefixAttention> Make(const LayerBuilder& builder,
                                              const PrefixAttentionConfig& config);

  // The matrices that x is multiplied by.
  std::vector<std::span<const PackedMatrix>> products() const {
    return {q_proj_.weights, k_proj_.weights, v_proj_.weights};
  }

  //   x  [tokens, model_dim] as LinearArgs::x;  y  [tokens, model_dim] act, which is added to with
  // `accumulate`. `normed`: what x is still to become.
  void Attend(ForwardContext& ctx, const TensorView& x, const TensorView& y, bool accumulate,
              const NormedInput& normed = {}) const;

 private:
  PrefixAttentionConfig config_;
  Projection q_proj_, k_proj_, v_proj_, o_proj_;
  TensorView frequencies_;                  // [2, head_dim / 2] f32
  TensorView prefix_keys_, prefix_values_;  // [prefix, heads, head_dim] act
  AttentionContext context_;
};

}  // namespace mneme
