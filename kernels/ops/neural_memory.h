// Memories that are small networks, trained at test time on what they read: Titans (Behrouz et al.,
// arXiv:2501.00663) and TTT (Sun et al., arXiv:2407.04620). kernels/kernels.h has the conventions.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/ops/dense.h"
#include "kernels/ops/routing.h"
#include "kernels/tensor_view.h"

namespace mneme {

constexpr int kMaxMemoryDepth = 4;
// Orders of momentum.
constexpr int kMaxMomentumOrders = 4;
// The widest network that every backend takes, dim and hidden: its vectors have to fit a
// multiprocessor of a GPU.
constexpr int MaxMemoryWidth(int depth) { return 57000 / (3 * depth + 5); }
// A product's weights and its bias, each, and a gain.
constexpr int kMaxMemoryTensors = 2 * kMaxMemoryDepth + 1;

// The network M of one head. Vectors are rows, weights [in, out]:
//   z_0 = x;   a_l = z_{l-1} W_l (+ b_l);   z_l = activation(a_l) for l < depth;   y = a_depth
//   kNone   M(x) = y
//   kLayer  M(x) = x + n gain + shift,   n = (y - mean(y)) / sqrt(var(y) + eps)
//   kRms    M(x) = x + n gain + shift,   n = y / sqrt(mean(y^2) + eps)
// W_1 is [dim, hidden], W_depth [hidden, dim], those between [hidden, hidden]; of a depth of 1,
// [dim, dim]. What is trained are the tensors of the memory, in this order: W_1 to W_depth, b_1 to
// b_depth where there are biases, and g with `trains_gain`: gain = gain_offset + g.
struct MemoryNetwork {
  enum class Activation : uint8_t {
    kGelu,      // a Phi(a), by the error function
    kGeluTanh,  // a / 2 (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3)))
    kSilu,      // a / (1 + exp(-a))
  };
  enum class Norm : uint8_t { kNone, kLayer, kRms };

  int depth = 1;
  int hidden = 0;  // without meaning for a depth of 1
  bool biases = false;
  Activation activation = Activation::kGelu;
  Norm norm = Norm::kNone;
  float eps = 1e-5f;
  bool trains_gain = false;
  float gain_offset = 0.0f;

  constexpr int tensors() const { return depth * (biases ? 2 : 1) + (trains_gain ? 1 : 0); }
  constexpr int gain() const { return trains_gain ? tensors() - 1 : -1; }
  // Widths of z_{l-1} and a_l, l from 1.
  constexpr int64_t in(int l, int64_t dim) const { return l == 1 ? dim : hidden; }
  constexpr int64_t out(int l, int64_t dim) const { return l == depth ? dim : hidden; }
  // The shape of a tensor of one head: rank 2 of weights, else 1.
  constexpr Shape shape(int tensor, int64_t dim) const {
    if (tensor < depth) return {in(tensor + 1, dim), out(tensor + 1, dim)};
    if (tensor == gain()) return {dim};
    return {out(tensor - depth + 1, dim)};
  }
};

// A copy of all tensors in every slab: [heads, ...] each, kF32, kF64 in the reference. None: base
// is null.
struct MemoryCopy {
  StateView at[kMaxMemoryTensors];
};
// What such a copy holds in a session that was fed nothing, in one place for all sessions:
// [heads, ...], f32 or as the copy. Without data: see NeuralMemoryArgs.
struct MemoryInitial {
  TensorView at[kMaxMemoryTensors];
};

// The pairs of the tokens of a step that is not done, in every slab: keys and values
// [heads, (step - 1) * keys, dim], rates [heads, (step - 1) * keys], of channel_gates [.., dim],
// f32 or f64 as copies. Row j * keys + i is pair i of the step's token j; rows of tokens that are
// not there yet are zeros.
struct MemoryPairs {
  StateView k, v, rate;
};
struct MemoryPairsInitial {
  TensorView k, v, rate;
};

// The memory is trained while it is read. A token brings `keys` pairs (k, v), whose loss at a
// network N is
//   l = 1/2 |N(k) - v|^2
// n is its position, which counts from the first thing that the memory was ever fed. A step ends
// with the token at which (n + 1) % step == 0; of all gates but `rate` only that token's count. It
// is, per head:
//   N   = A + residual_mix P                       or A, without a residual
//   G   = rate_scale sum of rate grad l(N)         over the pairs of the step's tokens
//   G   = G x (tanh(|G| / x) + 1) / |G|            x = max_grad_norm / 2, of each tensor; or G
//   S_0 = -scale_j tensor_rate G                   j = n % step
//   S_i = momentum_i S_i + S_{i-1}                 i = 1 .. orders
//   U   = S_orders,   or   sum_i softmax(momentum_mix)_i S_i
//   U   = Orthogonal(U)                            of weights, not of vectors, with spectral_norm
//   B <- W;   W <- keep W + U
// and after the token
//   if (n + 1) % anchor_period == 0:  W <- A + sigmoid(transition) (W - A), or W;   A <- W
//   if (n + 1) % frozen_period == 0:  F <- W
//   out = R(q)
// P is the B that another memory, trained by the same tokens, wrote at its step at the same token.
// Orthogonal (Muon's Newton-Schulz iteration, which takes singular values towards 1):
//   X = U / max(|U|, 1e-7), transposed if it has more rows than columns;   5 times
//   Y = X X^T,   X = 3.4445 X + (-4.7750 Y + 2.0315 Y Y) X
// A G of zeros stays zeros whatever max_grad_norm. scale_j is step_scale[j], or 1. R is the network
// that `read` says:
//   kRunning   W after the token
//   kAnchor    A as it was before the token
//   kFrozen    F as it was before the token
//   kAhead     W - scale_j G, of the step's tokens so far: what W would be if the token were its
//              step's last one. Steps of several tokens, that take G off W and do nothing else.
// Without k nothing is trained, and R is read, as it is before the first of the tokens. All state
// is f32 (f64 in the reference). Between the tokens of a step it holds their pairs, of which G is
// made at the step's end; where it is read ahead, which needs G at every token, it holds G.
struct NeuralMemoryArgs {
  enum class Read : uint8_t { kRunning, kAnchor, kFrozen, kAhead };

  MemoryNetwork network;
  TensorView q;     // [entries, heads, dim] act
  TensorView k, v;  // [entries, heads * keys, dim] act, those of a head together; k may be empty
  TensorView rate;  // [entries, heads * keys] act
  int keys = 1;
  // [entries, heads * orders] act, those of a head together, or empty: no order, and no S.
  TensorView momentum;
  // [entries, heads * orders] act, logits of S_1 to S_orders; or [entries, heads * (orders + 1)],
  // of S_0, too; or empty.
  TensorView momentum_mix;
  TensorView keep;  // [entries, heads] act, or empty: 1
  // Whether rate, momentum and keep have a number for each channel of a head, [entries, heads * ..
  // * dim], those of a pair, an order or a head together: with gates r, m and a of channel o, and
  // l = 1/2 sum_o r_o (N(k)_o - v_o)^2,   S[i, o] = m_o S[i, o] - G[i, o],   W[i, o] = a_o W[i, o]
  // + S[i, o]. The reference alone has such gates, of networks of one matrix without norm and
  // biases: diag(theta), diag(eta) and diag(1 - alpha) of the paper's appendix.
  bool channel_gates = false;
  // [entries, heads * tensors] act, in the order of MemoryNetwork, or empty: 1
  TensorView tensor_rates;
  TensorView residual_mix;  // [entries, heads] act, with `residual`; or empty
  TensorView transition;    // [1] f32, or empty
  TensorView step_scale;    // [step] f32, or empty: 1
  TensorView gain, shift;   // [heads, dim] f32, of a norm whose gain is not trained; else empty
  double rate_scale = 1.0;
  double max_grad_norm = 0;  // 0: none
  bool spectral_norm = false;
  int64_t step = 1;
  // A multiple of `step`. That itself: A is W, and has no copy. 0: never, A is initial_anchor.
  int64_t anchor_period = 1;
  int64_t frozen_period = 0;  // 0: there is no F
  Read read = Read::kRunning;
  TensorView positions;  // [entries] i64
  // The position of a session's first token: at it the memory is its initial value, whatever the
  // slab holds.
  int64_t first_position = 0;
  Segments segments;
  MemoryCopy weights;    // W
  MemoryCopy momenta;    // S, with `momentum`: [orders * heads, ...], S_1 of all heads first
  MemoryCopy anchors;    // A, where stores_anchor()
  MemoryCopy frozen;     // F, with frozen_period
  MemoryCopy gradients;  // G, where it is read ahead
  MemoryPairs pending;   // where stores_pairs()
  // B, or nothing: whoever reads it does so in the same call of the network.
  MemoryCopy before;
  // P: `before` of another memory, of the same network and heads; or nothing. With a residual no
  // segment may go on behind the end of a step.
  MemoryCopy residual;
  // Without data, S, G and pairs are zero, A and F are W.
  MemoryInitial initial_weights, initial_momenta, initial_anchors, initial_frozen,
      initial_gradients;
  MemoryPairsInitial initial_pending;
  MemoryInitial initial_anchor;  // where anchor_period is 0
  TensorView out;                // [entries, heads, dim] act; must not alias an input
  // [entries, heads * keys] act, or empty: |N(k) - v|^2 of each pair. N is as in the pair's step
  // for tokens of the segment whose step ends in it; for those of a step that is still open it is
  // A, which is the same but for a residual, whose part is known at the step's end only.
  TensorView loss;

  bool trains() const { return !k.empty(); }
  bool stores_anchor() const {
    return anchor_period != 0 && (anchor_period != step || !transition.empty());
  }
  bool stores_pairs() const { return step > 1 && read != Read::kAhead; }
  bool has_residual() const { return !residual_mix.empty(); }
  int orders() const {
    return momentum.empty() ? 0 : static_cast<int>(momentum.shape[1] / q.shape[1] / gate_width());
  }
  int64_t gate_width() const { return channel_gates ? q.shape[2] : 1; }  // numbers of a gate
};

// What a memory keeps of its weights at a step, of each head:
//   y = sigmoid(-x),   or   exp(-exp(a_log) softplus(x + dt_bias))  with a_log
struct KeepGateArgs {
  TensorView x;               // [entries, heads] act
  TensorView a_log, dt_bias;  // [heads] f32, or empty
  TensorView y;               // [entries, heads] act; may alias x
};

// Means over the entries of a chunk, of those at positions from the last multiple of `chunk` on:
//   y = sum x / chunk
// At a chunk's last entry that is its mean, before it the part of the mean that is known.
struct ChunkMeanArgs {
  TensorView x;  // [entries, dim] act
  int64_t chunk = 1;
  TensorView positions;  // [entries] i64
  Segments segments;
  StateView sums;  // per memory [dim], kF32, kF64 in the reference: of the open chunk
  TensorView y;    // [entries, dim] act; may alias x
};

// Means over the entries of a chunk as above, weighted by each channel's own softmax:
//   y = sum softmax(logits) x
// over those of the chunk's entries that came so far.
struct ChunkPoolArgs {
  TensorView x;       // [entries, dim] act
  TensorView logits;  // [entries, dim] act
  int64_t chunk = 1;
  TensorView positions;  // [entries] i64
  Segments segments;
  // The sums of the open chunk, per memory [3, dim], kF32, kF64 in the reference: the largest logit
  // m, the sum of exp(logit - m), and that of exp(logit - m) x.
  StateView sums;
  TensorView y;  // [entries, dim] act; may alias x or logits
};

// What a memory's training says of each token, a number for those who watch it:
//   surprise = mean of loss over the entry's pairs
//   surprise = NaN   where a loss or a number of `read` is not finite: the memory has diverged.
//                    Weights that are not finite show in what is read from them.
struct SurpriseArgs {
  TensorView loss;  // [entries, pairs] act, NeuralMemoryArgs::loss
  TensorView read;  // [entries, heads, dim] act, NeuralMemoryArgs::out
  // Token t is entry places[outer[t]]. `outer` is [tokens] i32, `places` [places] i32, each the
  // identity if it is empty. From `entries` on: none, and the token's number stays as it is.
  TensorView places, outer;
  TensorView surprise;  // [tokens] f32
};

// What memories answered on its way out of the layer, as one operation: Surprise, where its
// `surprise` is not empty, Activate of a gate, and
//   RmsNorm     Multiply of the answer, product.a, with the gate, product.b; RmsNorm of each head
//               of product.y, which is a row of norm.x
//   LayerNorm   LayerNorm of the answer, norm.x, and Multiply of the gate, product.a, with norm.y,
//               which is product.b; product.y may be as LinearArgs::x here
// in this order. Fused like those of decode_step.h: a backend may do without. What all but the last
// one's y hold afterwards is unspecified.
struct NeuralMemoryOutputArgs {
  SurpriseArgs surprise;
  ActivateArgs gate;
  MultiplyArgs product;
  std::variant<RmsNormArgs, LayerNormArgs> norm;
};

class NeuralMemoryKernels {
 public:
  virtual ~NeuralMemoryKernels() = default;

  virtual void NeuralMemory(const NeuralMemoryArgs& args) = 0;
  virtual void KeepGate(const KeepGateArgs& args) = 0;
  virtual void ChunkMean(const ChunkMeanArgs& args) = 0;
  virtual void ChunkPool(const ChunkPoolArgs& args) = 0;
  virtual void Surprise(const SurpriseArgs& args) = 0;

  // Fused. False: nothing was done, the caller composes the above.
  virtual bool NeuralMemoryOutput(const NeuralMemoryOutputArgs&) { return false; }
};

}  // namespace mneme
