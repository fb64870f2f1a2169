// Softmax attention beside keys and values that are parameters.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/attention_context.h"
#include "models/norm.h"
#include "models/projection.h"
#include "models/residual_streams.h"

namespace mneme {

struct PersistentAttentionConfig {
  int heads = 1;
  int head_dim = 2;  // even
  double rope_theta = 10000;
  int persistent = 0;  // keys and values of each head that are parameters
  // One of them: positions that a token sees, its own included; positions of a segment, which see
  // nothing of other segments.
  int window = 0, segment = 0;
  InsertedPositions inserted;  // that positions count, too
};

// The token at position n of its session, x = Norm(input), per head:
//   q, k = rope(Wq x, n), rope(Wk x, n);   v = Wv x
//   v    = v + sigmoid(w . x + b) (v of the first layer - v)      but for the first layer
//   y    = Wo concat( sum_j softmax_j( q . k_j / sqrt(head_dim) ) v_j )
// j: the persistent keys, which are not rotated, and positions up to n in the window or the
// segment. State: a ring of rotated keys and one of mixed values.
class PersistentAttention {
 public:
  // Tensors of titans-pytorch behind "5.": norm, to_qkv, to_out, to_learned_v_mix,
  // persistent_memory, and rotary_emb.freqs, which has to be as rope_theta says, but for rounding.
  static absl::StatusOr<PersistentAttention> Make(const LayerBuilder& builder,
                                                  const PersistentAttentionConfig& config);

  absl::Status Prepare(Backend& backend) const;

  // Asks for the norm of the input, the first one of `wants`.
  void Want(BranchWants& wants) const;
  // The first layer writes ForwardContext::first_values, the others read them.
  //   x  [tokens, model_dim], the norm of the input, as Want() asks for it;   y  [..] act
  void Attend(ForwardContext& ctx, const TensorView& x, const TensorView& y) const;

 private:
  PersistentAttentionConfig config_;
  Norm norm_;
  Projection q_, k_, v_, value_mix_, out_;
  TensorView frequencies_;      // [2, head_dim / 2] f32
  TensorView persistent_;       // [2 persistent, channels] f32: keys, then values
  TensorView persistent_rows_;  // the same, act
  AttentionContext context_;
};

}  // namespace mneme
