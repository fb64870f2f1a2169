// Parts of a network as one operation, for steps in which every row feeds one token. What they
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

// A mixture of gated-delta memories, or one such memory, as a device can fuse it, with the norm in
// front of it: what is known when a model is loaded.
struct DeltaMixer {
  TensorView norm;  // [model_dim] f32
  float norm_eps = 1e-6f;

  // As RouteTopKArgs and DispatchArgs. memories == 0: no router, and the one memory is `shared`.
  PackedMatrix router;  // [memories, model_dim]
  DType round_logits = DType::kF32;
  int memories = 0;
  int top_k = 0;
  bool shared = false;

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

// A gated feed-forward network with the norm in front of it, in the same way.
struct GatedFeedForward {
  TensorView norm;  // [model_dim] f32
  float norm_eps = 1e-6f;
  PackedMatrix gate, up;  // [mlp_dim, model_dim]
  PackedMatrix down;      // [model_dim, mlp_dim]
};

// Where the tokens of a step go, of a layer with a router.
struct RoutingChoice {
  TensorView forced;   // [tokens, top_k] i32 by an observer's wish, or empty
  TensorView indices;  // [tokens, top_k] i32, out
  TensorView weights;  // [tokens, top_k] act, out
};

// hidden += Mixer(RmsNorm(hidden)): RmsNorm, Linear of the router, RouteTopK, Dispatch, Linear of
// the projections, ShortConv, L2Norm, DeltaGates, MatrixMemory, MixMemories, GatedRmsNorm, Linear.
struct DeltaMixerStepArgs {
  const DeltaMixer& mixer;
  TensorView hidden;     // [rows, model_dim] act
  TensorView slots;      // [slots] i32, < 0: padding; fused only if as many as rows of `hidden`
  RoutingChoice choice;  // empty if memories == 0
};

// hidden += down( silu(gate x) * (up x) ), x = RmsNorm(hidden): RmsNorm, Linear, SwiGlu, Linear.
struct FeedForwardStepArgs {
  const GatedFeedForward& network;
  TensorView hidden;  // [rows, model_dim] act
};

// A layer: the one after the other.
struct DecodeLayer {
  DeltaMixer mixer;
  GatedFeedForward feed_forward;
};
// Whether two layers differ in nothing but where their weights and their state are.
bool HaveSameShape(const DecodeLayer& a, const DecodeLayer& b);

// The end of a network, after its last layer: logits = Linear(RmsNorm(rows of hidden)), which is
// GatherRows, RmsNorm and Linear.
struct DecodeHead {
  TensorView norm;  // [model_dim] f32
  float norm_eps = 1e-6f;
  PackedMatrix head;  // [vocab, model_dim]
};

// How far a device went.
enum class DecodeDone : uint8_t { kNothing, kLayers, kLogits };

struct DecodeStepArgs {
  TensorView hidden;  // [rows, model_dim] act
  TensorView slots;   // [rows] i32, < 0: padding
  // The choice of one layer with a router, where somebody wants to know, or to say; else empty.
  RoutingChoice choice;
  TensorView tokens;  // [n] i32: rows of `hidden` whose logits are wanted; may be empty
  TensorView logits;  // [n, vocab] act
};

// Consecutive layers of the same shape as one operation, and what follows them: checked, and put
// where the device wants it, when a model is loaded (Kernels::CompileDecode). Weights and state
// stay where they were then.
class DecodeProgram {
 public:
  virtual ~DecodeProgram() = default;

  // `count` layers from `first` on, counted from the program's first one, and the logits of
  // `tokens` if those end it. kNothing: not with so many rows, say.
  virtual DecodeDone Run(const DecodeStepArgs& step, int first, int count) = 0;
};

}  // namespace mneme
