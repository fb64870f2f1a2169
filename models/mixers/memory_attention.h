// A layer's attention to the engrams of a session (EngramMemory).
#pragma once

#include "absl/status/statusor.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/engram_memory.h"
#include "models/norm.h"
#include "models/projection.h"

namespace mneme {

// One set of weights, used twice: for the working engrams, and for those that were recalled.
//   hidden += c_proj( sum_i softmax_i( q . k_i / sqrt(head_dim) ) v_i ),   q = q_attn Norm(hidden)
//   k_i, v_i = c_attn engram_i
// of tokens behind a session's first segment. Without engrams that is the bias of c_proj.
// State: the keys and values of both, which are made when a segment begins.
class MemoryAttention {
 public:
  enum class Engrams : bool { kWorking, kRecalled };

  // The tensors are "memory_attention.*".
  static absl::StatusOr<MemoryAttention> Make(const LayerBuilder& builder,
                                              const EngramConfig& config);

  void Begin(ForwardContext& ctx, const AttendedEngrams& engrams) const;
  void Forward(ForwardContext& ctx, const EngramMemory& memory, Engrams which, const Norm& norm,
               const TensorView& hidden) const;

 private:
  int layer_ = 0, heads_ = 1, head_dim_ = 1;
  Projection query_, key_, value_, output_;
  StateField keys_, values_;
};

}  // namespace mneme
