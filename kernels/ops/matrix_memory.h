// Memories that are matrices, read and written one token at a time, and what stands in front of
// them. kernels/kernels.h has the conventions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/decode_step.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/routing.h"
#include "kernels/pending_writes.h"
#include "kernels/tensor_view.h"

namespace mneme {

constexpr int kMaxConvWidth = 16;

// Depthwise causal convolution of width `width`, at most kMaxConvWidth, followed by an
// activation, along each segment:
//   y[e, c] = activation( bias[c] + sum_j weight[c, j] * x_{e - (width - 1) + j}[c] )
// where j = width - 1 is the newest value.
// History before the segment comes from the memory's window, [width - 1, channels], oldest first,
// which is then replaced by the last width - 1 raw inputs seen. fla: ShortConvolution.
struct ShortConvArgs {
  TensorView x;           // [rows, channels] act, or as LinearArgs::y
  TensorView entry_rows;  // [entries] i32: x row of each entry; empty: entry e reads row e
  TensorView weight;      // [channels, width] f32
  TensorView bias;        // [channels] f32, or empty: 0
  Activation activation = Activation::kSilu;  // or kIdentity
  Segments segments;
  // Per memory: [width - 1, channels] of a StateFormat's window dtypes. kBF16: x is rounded to it.
  StateView window;
  TensorView y;  // [entries, channels] act; must not alias x
};

// Gates of the gated delta rule, per value head (arXiv:2412.06464, fla's parametrisation):
//   log_decay = -exp(A_log) * softplus(a + dt_bias)      softplus(z) = z for z > 20
//   beta      = beta_scale * sigmoid(b)                  beta_scale 2 allows negative eigenvalues
struct DeltaGatesArgs {
  TensorView a, b;            // [rows, heads] act
  TensorView a_log, dt_bias;  // [heads] f32
  TensorView entry_rows;      // [entries] i32: row of a and b for each entry; empty: row e
  float beta_scale = 1.0f;
  // [entries, heads] act, out; may alias a and b when entry_rows is empty.
  TensorView log_decay, beta;
};

// Decays of memories whose keys, or slots, each have their own:
enum class DecayGate : uint8_t {
  // log_decay = max( log sigmoid(x) / normalizer, least )                 gla (16), gsa (8)
  kLogSigmoid,
  // f = lower + (1 - lower) sigmoid(x);  log_decay = log f                hgrn2
  kForget,
  // log_decay = -exp(a_log) softplus(x + dt_bias)                         kda
  kSoftplus,
  // log_decay = lower_bound sigmoid( exp(a_log) (x + dt_bias) )           kda with a lower bound
  kBounded,
  // log_decay = max( -exp(x), kLeastLogDecay )                            rwkv6
  kExponential,
};

// softplus(z) = z for z > 20. Values are finite for every finite x; of kForget, a decay that
// underflows has the log decay kLeastLogDecay.
struct DecayGatesArgs {
  DecayGate gate = DecayGate::kLogSigmoid;
  TensorView x;           // [rows, heads, dim] act
  TensorView entry_rows;  // [entries] i32: row of x for each entry; empty: row e
  float normalizer = 1.0f;
  float least = -std::numeric_limits<float>::infinity();
  float lower_bound = 0.0f;
  TensorView lower;    // [heads, dim] f32, of kForget, or empty: 0
  TensorView a_log;    // [heads] f32, of kSoftplus and kBounded
  TensorView dt_bias;  // [heads, dim] f32, of the same
  // Outputs, act. May alias x where entry_rows is empty.
  TensorView log_decay;   // [entries, heads, dim]
  TensorView complement;  // [entries, heads, dim] 1 - exp(log_decay), or empty
};
constexpr float kLeastLogDecay = -1e4f;  // exp() of it is zero in any format

// How a matrix memory forgets, corrects itself and is read: what tells apart linear attention,
// RetNet, GLA, HGRN2, GSA, DeltaNet, Gated DeltaNet, KDA, Mamba-2, RWKV-6 and RWKV-7.
struct MatrixRule {
  // The factor d of each element S[i, j], value i and key j, before a token is written.
  enum class Decay : uint8_t {
    kNone,      // 1
    kConstant,  // d of the head, the same for all tokens
    kHead,      // of the token and the head
    kKey,       // of the token, the head and the key j
    kValue,     // of the token, the head and the value i
  };
  // What a token does about what the memory holds already.
  enum class Correction : uint8_t {
    kNone,     // S <- d S + v k^T
    kDelta,    // S <- d S;  S <- S + beta (v - S k) k^T
    kGeneral,  // S <- d S + (S c) e^T + v k^T, all of the right from the S before
  };
  enum class Read : uint8_t {
    kAfter,  // o = scale S q
    // o = scale (S q + (q . (bonus * k)) v), of the S before the token, which is not decayed yet
    kBeforeWithBonus,
  };

  Decay decay = Decay::kHead;
  Correction correction = Correction::kDelta;
  Read read = Read::kAfter;

  friend constexpr bool operator==(const MatrixRule&, const MatrixRule&) = default;
};

// Each entry goes through the matrix S of its memory, [value_dim, key_dim] for each of `heads`
// heads, as `rule` says, in the order of its segment; log_decay is log d. S is value first, so that
// both products are sums over contiguous memory.
//
// Tensors may have fewer heads than S, `n` that divide them: head h then uses theirs of
// h / (heads / n).
struct MatrixMemoryArgs {
  MatrixRule rule;
  TensorView q, k;  // [entries, n, key_dim] act
  TensorView v;     // [entries, n, value_dim] act
  // kNone: empty. kConstant: [heads] f32. kHead: [entries, n] act. kKey: [entries, n, key_dim] act.
  // kValue: [entries, n, value_dim] act. At most 0; down to minus infinity, which forgets all.
  TensorView log_decay;
  TensorView beta;   // kDelta: [entries, n] act, else empty
  TensorView c, e;   // kGeneral: [entries, n, key_dim] act, else empty
  TensorView bonus;  // kBeforeWithBonus: [heads, key_dim] f32, else empty
  float scale = 1.0f;
  // kDelta: k and q may be longer than 1 in the 2-norm. Otherwise they are not, a token adds at
  // most beta |v| to a row's norm while beta is at most 2, and a backend may count on that to keep
  // 16-bit factors in range.
  bool long_keys = false;
  Segments segments;
  // Per memory: [heads, value_dim, key_dim] of StateFormat::memory_dtype, or of kF32 where that is
  // of fewer bits and the memory is to stay exact, its rows StateRowPitch elements apart; updated
  // in place.
  StateView state;
  PendingWrites pending;
  TensorView out;  // [entries, heads, value_dim] act; may alias v where v has as many heads
};

// All that a pass of tokens through gated-delta memories takes, as one operation: ShortConv of q, k
// and v, L2Norm of q and of k, DeltaGates,
// MatrixMemory under the gated delta rule. Like those of decode_step.h it is fused,
// and a backend may do without. Tensors that one part writes and the next one reads (q.y and
// rule.q, gates.beta and rule.beta) are the same memory; what they hold afterwards is unspecified.
struct DeltaMemoryPassArgs {
  ShortConvArgs q, k, v;  // all of rule.segments
  QueryKeyNorms norms;
  DeltaGatesArgs gates;
  MatrixMemoryArgs rule;
};

// Folds the pending writes of all memories of some slabs, so that the matrices alone are the state.
// Memories that were never written are left alone.
struct SettleArgs {
  TensorView slots;   // [n] i32, < 0: padding
  int memories = 0;   // of the field
  StateView written;  // as in DispatchArgs; unset: all were
  int heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
  StateView state;  // as in MatrixMemoryArgs
  PendingWrites pending;
};

class MatrixMemoryKernels {
 public:
  virtual ~MatrixMemoryKernels() = default;

  // Independent convolutions over the same or different segments, done as one parallel region.
  virtual void ShortConv(std::span<const ShortConvArgs> convolutions) = 0;
  virtual void DeltaGates(const DeltaGatesArgs& args) = 0;
  virtual void DecayGates(const DecayGatesArgs& args) = 0;
  virtual void MatrixMemory(const MatrixMemoryArgs& args) = 0;
  virtual void SettleMemories(const SettleArgs& args) = 0;

  // Fused. False: nothing was done, the caller composes the above.
  virtual bool DeltaMemoryPass(const DeltaMemoryPassArgs&) { return false; }
  // decode_step.h
  virtual bool DeltaMixerStep(const DeltaMixerStepArgs&) { return false; }
};

}  // namespace mneme
