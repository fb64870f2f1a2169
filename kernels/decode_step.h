// Parts of a layer as one operation, for steps in which every row feeds one token. What they
// compute is defined by the operations of kernels.h that they stand for, in the order named; a
// device that has no fused form, for these arguments or at all, says so, and the caller goes the
// long way.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pending_writes.h"
#include "kernels/tensor_view.h"

namespace mneme {

// L2Norm of the queries and of the keys of a memory, as its L2NormArgs have them.
struct QueryKeyNorms {
  struct Norm {
    float scale = 1.0f;
    float eps = 1e-6f;
    friend bool operator==(const Norm&, const Norm&) = default;
  };
  Norm q, k;
  friend bool operator==(const QueryKeyNorms&, const QueryKeyNorms&) = default;
};

// hidden += Mixer(RmsNorm(hidden)) of a mixture of gated-delta memories, or of one such memory:
// RmsNorm, Linear of the router, RouteTopK, Dispatch, Linear of the projections, ShortConv, L2Norm,
// DeltaGates, GatedDeltaRule, MixMemories, GatedRmsNorm, Linear.
struct DeltaMixerStepArgs {
  TensorView hidden;  // [rows, model_dim] act
  TensorView norm;    // [model_dim] f32
  float norm_eps = 1e-6f;
  TensorView slots;  // [rows] i32, < 0: padding; as many as rows of `hidden`

  // As RouteTopKArgs and DispatchArgs. memories == 0: no router, and the one memory is `shared`.
  PackedMatrix router;  // [memories, model_dim]
  DType round_logits = DType::kF32;
  int memories = 0;
  int top_k = 0;
  bool shared = false;
  TensorView forced;   // [rows, top_k] i32, or empty
  TensorView indices;  // [rows, top_k] i32, out; empty if memories == 0
  TensorView weights;  // [rows, top_k] act, out; empty if memories == 0

  int heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
  PackedMatrix q_proj;  // [heads * key_dim, model_dim]
  PackedMatrix g_proj;  // [value_heads * value_dim, model_dim]; data null: no gate
  // One for each memory, the shared one's last; or a single one for all.
  std::span<const PackedMatrix> k_proj, v_proj, a_proj, b_proj;

  TensorView q_conv, k_conv, v_conv;       // [channels, width] f32
  StateView q_window, k_window, v_window;  // per memory: [width - 1, channels]
  QueryKeyNorms norms;
  TensorView a_log, dt_bias;  // [value_heads] f32
  float beta_scale = 1.0f;
  StateView written;  // u8 per slab: [memories + shared]
  StateView state;    // per memory: [value_heads, value_dim, key_dim]
  PendingWrites pending;

  TensorView out_norm;  // [value_dim] f32, one for all heads
  float out_norm_eps = 1e-6f;
  PackedMatrix out_proj;  // [model_dim, value_heads * value_dim]
};

// hidden += down( silu(gate x) * (up x) ), x = RmsNorm(hidden): RmsNorm, Linear, SwiGlu, Linear.
struct FeedForwardStepArgs {
  TensorView hidden;  // [rows, model_dim] act
  TensorView norm;    // [model_dim] f32
  float norm_eps = 1e-6f;
  PackedMatrix gate, up;  // [mlp_dim, model_dim]
  PackedMatrix down;      // [model_dim, mlp_dim]
};

// A layer, the one after the other, of one hidden state.
struct DecodeLayerArgs {
  DeltaMixerStepArgs mixer;
  FeedForwardStepArgs feed_forward;
};

// The end of a network, after its last layer: logits = Linear(RmsNorm(rows of hidden)), which is
// GatherRows, RmsNorm and Linear.
struct DecodeHeadArgs {
  TensorView tokens;  // [n] i32: rows of `hidden`
  TensorView norm;    // [model_dim] f32
  float norm_eps = 1e-6f;
  PackedMatrix head;  // [vocab, model_dim]
  TensorView logits;  // [n, vocab] act
};

// How far a device went.
enum class DecodeDone : uint8_t { kNothing, kLayers, kLogits };

}  // namespace mneme
