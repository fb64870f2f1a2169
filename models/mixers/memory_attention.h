// A layer's attention to the engrams of a session (EngramMemory).
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/engram_memory.h"
#include "models/norm.h"
#include "models/projection.h"

namespace mneme {

// One set of weights, used twice: for the working engrams, and for those that were recalled.
//   read = sum_i softmax_i( q . k_i / sqrt(head_dim) ) v_i,   q = query x
//   k_i = key engram_i,   v_i = value engram_i
// State: the keys and values of both, which are made when a segment begins.
class MemoryAttention {
 public:
  enum class Engrams : bool { kWorking, kRecalled };

  enum class Tensors : uint8_t {
    kConv1d,  // q_attn, c_attn, which has k and v side by side, and c_proj: [in, out]
    kBert,    // self.query, self.key, self.value, output.dense: [out, in]
  };

  // The tensors are "memory_attention.*".
  static absl::StatusOr<MemoryAttention> Make(const LayerBuilder& builder,
                                              const EngramConfig& config, Tensors tensors);

  void Begin(ForwardContext& ctx, const AttendedEngrams& engrams) const;
  // x and read  [tokens, model_dim]
  void Read(ForwardContext& ctx, const EngramMemory& memory, Engrams which, const TensorView& x,
            const TensorView& read) const;
  // hidden += output read, of tokens behind a session's first segment, x = Norm(hidden). Without
  // engrams that is the output's bias.
  void Forward(ForwardContext& ctx, const EngramMemory& memory, Engrams which, const Norm& norm,
               const TensorView& hidden) const;

  // What Begin multiplies engrams by.
  std::span<const PackedMatrix> keys() const { return key_.weights; }
  std::span<const PackedMatrix> values() const { return value_.weights; }
  const Projection& output() const { return output_; }

 private:
  absl::Status TakeConv1d(const LayerBuilder& builder);
  absl::Status TakeBert(const LayerBuilder& builder);
  // q and read  [tokens, model_dim]
  EngramAttentionArgs Args(const ForwardContext& ctx, const EngramMemory& memory, Engrams which,
                           const TensorView& q, const TensorView& read) const;

  int layer_ = 0, heads_ = 1, head_dim_ = 1;
  Projection query_, key_, value_, output_;
  StateField keys_, values_;
};

}  // namespace mneme
