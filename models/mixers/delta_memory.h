// The common part of Mixture-of-Memories and Gated DeltaNet: matrix memories under the gated delta
// rule, their convolution windows, and the way out of the layer.
#pragma once

#include <initializer_list>

#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/gated_delta_config.h"
#include "models/mixers/memory_output.h"
#include "models/projection.h"
#include "models/state_layout.h"
#include "models/step_entries.h"

namespace mneme {

// A step's projected tokens. Entry e of the segments reads row q_rows[e] of q, and row kv_rows[e]
// of the other four; an empty list means row e.
struct DeltaStreams {
  TensorView q, k;     // [rows, key_channels], as LinearArgs::y
  TensorView v;        // [rows, value_channels], as LinearArgs::y
  TensorView a, b;     // [rows, value_heads] act: raw decay and writing strength
  TensorView q_rows;   // [entries] i32
  TensorView kv_rows;  // [entries] i32
};

class DeltaMemory {
 public:
  // Weights attn.{A_log, dt_bias, q_conv1d, k_conv1d, v_conv1d, o_norm, o_proj}. State, per memory:
  // the flag `written` (cleared in new sessions), and, read as zeros until it is set, the windows
  // of raw q, k and v [conv_width - 1, channels] and the matrices `memory` [value_heads, value_dim,
  // key_dim]. `convolved`: the projections of q, k and v, which say what windows are made of.
  static absl::StatusOr<DeltaMemory> Make(const LayerBuilder& builder,
                                          const GatedDeltaConfig& config,
                                          std::initializer_list<const Projection*> convolved);

  StateView Written(const ForwardContext& ctx) const { return ctx.State(written_); }

  // Folds the pending writes of the slabs `slots`, [n] i32.
  void Settle(ForwardContext& ctx, const TensorView& slots) const;

  // As of SequenceMixer, but for routing and projections, which the mixer adds.
  DeltaMixer Fused(const Slabs& slabs, const Norm& norm) const;

  // Runs each segment's entries in order through its memory: convolution and silu, normalised q and
  // k, gates,
  //   S <- a S;  u = b (v - S k);  S <- S + u k^T;  o = S q
  // Returns o, [entries, value_channels] act, in the caller's workspace scope.
  TensorView WriteAndRead(ForwardContext& ctx, const DeltaStreams& streams,
                          const StepEntries& entries) const;

  const MemoryOutput& output() const { return output_; }

 private:
  QueryKeyNorms Norms() const;  // upstream's: queries of length 1 / sqrt(key_dim)
  PendingWrites Pending(const Slabs& slabs) const;

  GatedDeltaConfig config_;
  TensorView q_conv_, k_conv_, v_conv_;  // [channels, width] f32
  TensorView a_log_, dt_bias_;           // [value_heads] f32
  MemoryOutput output_;
  StateField written_, q_window_, k_window_, v_window_, memory_;
  // PendingWrites, on devices that hold writes back. 0 and no fields on others.
  int pending_capacity_ = 0;
  StateField pending_phase_, pending_range_, pending_keys_, pending_updates_, pending_decay_;
};

}  // namespace mneme
