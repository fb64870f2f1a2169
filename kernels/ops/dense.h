// Operations on tokens by themselves: lookups, norms, products with weights, activations.
// kernels/kernels.h has the conventions.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/tensor_view.h"

namespace mneme {

// y[t] = table[ids[t]]
struct EmbeddingArgs {
  TensorView ids;    // [tokens] i32, each in [0, vocab)
  TensorView table;  // [vocab, model_dim] f32, bf16 or f16
  TensorView y;      // [tokens, model_dim] act
};

// y[t] += table[positions[t]]: learned positions. One that the table does not have adds nothing, so
// that those of padding rows may be any.
struct AddPositionsArgs {
  TensorView positions;  // [tokens] i64
  int64_t period = 0;    // positions begin anew after so many; 0: never
  TensorView table;      // [count, dim] act, f32, bf16 or f16
  TensorView y;          // [tokens, dim] act, updated in place
};

// A layer of a network whose input is a position, counted in periods:
//   y[t] = silu(weight floor(positions[t] / period) + bias)
struct PositionLayerArgs {
  TensorView positions;  // [tokens] i64, not negative
  int64_t period = 1;
  TensorView weight, bias;  // [dim] f32
  TensorView y;             // [tokens, dim] act
};

// y[i] = x[indices[i]]
struct GatherRowsArgs {
  TensorView x;        // [rows, dim] act
  TensorView indices;  // [n] i32
  TensorView y;        // [n, dim] act
};

// y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.
struct RmsNormArgs {
  TensorView x;       // [tokens, dim] act
  TensorView weight;  // [dim] f32
  float eps = 1e-6f;
  TensorView y;  // [tokens, dim] act, may alias x; or as LinearArgs::x
};

// Over the last dimension: y = (x - mean(x)) / sqrt(var(x) + eps) * weight (+ bias), var(x) the
// mean of (x - mean(x))^2 (arXiv:1607.06450). Of three dimensions it norms each head by itself,
// with a weight for each of its channels: a GroupNorm of a token's channels (arXiv:1803.08494).
struct LayerNormArgs {
  TensorView x;       // [tokens, dim] or [tokens, heads, dim] act
  TensorView weight;  // [dim] or [heads, dim] f32
  TensorView bias;    // the same, or empty: 0
  float eps = 1e-5f;
  TensorView y;  // same shape as x, act, may alias x; or as LinearArgs::x
};

// y[e] = W x[row(e)] + bias  (+ y[e] if accumulate), for every entry e.
//
// Ungrouped (weights.size() == 1, group_offsets empty): row(e) = e, all entries use weights[0].
// Grouped: entries [group_offsets[g], group_offsets[g+1]) use weights[g], row(e) = entry_rows[e],
// or e where entry_rows is empty: x is then what another grouped product wrote. Which tokens go
// through which memory is known on the device only, hence offsets by tensor.
//
// Every output is one sum over in_features whose order does not depend on the number of entries.
struct LinearArgs {
  TensorView x;                           // [rows, in_features] act, or Backend::product_dtype
  std::span<const PackedMatrix> weights;  // [groups], all of one shape and dtype
  TensorView entry_rows;                  // [entries] i32, or empty
  TensorView group_offsets;               // [groups + 1] i32, or empty
  TensorView y;                           // [entries, out_features] act, or Backend::output_dtype
  bool accumulate = false;
  TensorView bias;  // [groups, out_features] f32, or empty: 0; y is then act
};

// y[e] += bias[g] for the entries e of group g, as in LinearArgs; ungrouped: y[e] += bias[0].
struct AddBiasArgs {
  TensorView bias;           // [groups, dim] f32
  TensorView group_offsets;  // [groups + 1] i32, or empty
  TensorView y;              // [entries, dim] act, updated in place
};

enum class Activation : uint8_t {
  kIdentity,
  kSilu,        // z / (1 + exp(-z))
  kSigmoid,     // 1 / (1 + exp(-z))
  kRelu,        // max(z, 0)
  kEluPlusOne,  // z > 0 ? z + 1 : exp(z)
  kTanh,
  kSquaredRelu,  // max(z, 0)^2
  // z / (1 + exp(-2 u)) = z / 2 (1 + tanh(u)), u = sqrt(2 / pi) (z + 0.044715 z^3)
  // (arXiv:1606.08415)
  kGeluTanh,
  kGelu,  // z Phi(z), Phi that of the normal distribution (arXiv:1606.08415)
};

// Factors of kGeluTanh: 2 u = z (kGeluFirst + kGeluThird z^2).
constexpr double kGeluFirst = 1.5957691216057308, kGeluThird = 0.044715 * kGeluFirst;

// y[e] = scale * activation(x[row(e)]), row(e) = entry_rows[e], or e without.
struct ActivateArgs {
  TensorView x;           // [rows, dim] act, or as LinearArgs::y
  TensorView entry_rows;  // [entries] i32, or empty
  Activation activation = Activation::kIdentity;
  float scale = 1.0f;
  TensorView y;  // [entries, dim] act, or as LinearArgs::x; may be x where entry_rows is empty
};

// y = a * b  (+ y if accumulate), element by element; or by one number for each head of a row,
// whose channels are neighbours.
struct MultiplyArgs {
  TensorView a;  // [rows, dim] act
  TensorView b;  // [rows, dim] act, or [rows, heads]; heads divides dim
  TensorView y;  // [rows, dim] act, may alias a or, of the same shape, b
  bool accumulate = false;
};

// y += scale * x, `scale` one number for each column.
struct AddScaledArgs {
  TensorView x;      // [rows, dim] act
  TensorView scale;  // [dim] f32
  TensorView y;      // [rows, dim] act, updated in place
};

// y = silu(gate) * up, silu(z) = z / (1 + exp(-z)).
struct SwiGluArgs {
  TensorView gate;  // [tokens, dim] act
  TensorView up;    // [tokens, dim] act
  TensorView y;     // [tokens, dim] act, may alias gate or up; or as LinearArgs::x
};

// Linear with `gate` and with `up`, and SwiGlu of what comes out, as one operation. It is fused,
// and a backend may do without.
struct SwiGluProductArgs {
  TensorView x;                   // [rows, in_features] as LinearArgs::x
  PackedMatrix gate, up;          // [dim, in_features]
  TensorView y;                   // [rows, dim] as SwiGluArgs::y
  TensorView gate_bias, up_bias;  // [1, dim] f32, or empty: 0
};

// Per head: y = scale * x / sqrt(sum(x^2) + eps).
struct L2NormArgs {
  TensorView x;  // [entries, heads, dim] act
  float scale = 1.0f;
  float eps = 1e-6f;
  TensorView y;  // same shape; may alias x
};

// Per head: y = x / (sum(x) + eps), or 0 where that sum is 0, as of keys that a relu made all
// zeros. delta_net's qk_norm "sum" (eps 0), linear_attn's norm_q, norm_k.
struct SumNormArgs {
  TensorView x;  // [entries, heads, dim] act
  float eps = 0.0f;
  TensorView y;  // same shape; may alias x
};

// Per head: y = x / (z + eps), z one number for each head.
struct DivideArgs {
  TensorView x;  // [entries, heads, dim] act
  TensorView z;  // [entries, heads] act
  float eps = 0.0f;
  TensorView y;  // as x; may alias x
};

// Per head: y = exp(x - max x) / sum exp(x - max x).
struct SoftmaxArgs {
  TensorView x;  // [entries, heads, dim] act
  TensorView y;  // same shape; may alias x
};

enum class FeatureMap : uint8_t {
  // softmax([2x, -2x])                                     2 dim features   (arXiv:2402.04347)
  kHedgehog,
  // r = relu(x), z = [r, -r]; z * roll(z, j), j = 1 .. 4    8 dim features   (arXiv:2102.11174, as
  // fla has it: the second half is -relu(x)). roll(z, j)[i] = z[i - j], cyclic over 2 dim.
  kDpfp,
};
constexpr int FeaturesOf(FeatureMap map) { return map == FeatureMap::kHedgehog ? 2 : 8; }

// Per head: y = map(x).
struct FeatureMapArgs {
  FeatureMap map = FeatureMap::kHedgehog;
  TensorView x;  // [entries, heads, dim] act
  TensorView y;  // [entries, heads, FeaturesOf(map) * dim] act; must not alias x
};

// Per head: y = x / sqrt(mean(x^2) + eps) * weight * activation(gate); no gate: the last factor
// is 1.
struct GatedRmsNormArgs {
  TensorView x;       // [tokens, heads, dim] act
  TensorView gate;    // [tokens, heads, dim] act, or as LinearArgs::y, or empty
  TensorView weight;  // [dim] f32 or act, one for all heads, or [heads, dim]
  float eps = 1e-6f;
  Activation activation = Activation::kSilu;  // kSilu or kSigmoid
  TensorView y;  // same shape as x, act, may alias x or gate; or as LinearArgs::x
};

// Rotary position embedding (arXiv:2104.09864), pairs half a head apart: for j < dim / 2,
//   y[j]           = x[j] cos(a) - x[j + dim / 2] sin(a)        a = position * frequencies[j]
//   y[j + dim / 2] = x[j + dim / 2] cos(a) + x[j] sin(a)
// or, interleaved, of neighbours: 2j and 2j + 1 in place of j and j + dim / 2. Angles are reduced
// in float64, so that they are exact at any position below 2^53.
struct RopeArgs {
  TensorView x;          // [tokens, heads, dim] act
  TensorView positions;  // [tokens] i64
  // [dim / 2] f32, or [2, dim / 2] f32: each the sum of two, which has nearly the bits of a
  // float64.
  TensorView frequencies;
  int64_t period = 0;  // positions begin anew after so many; 0: never
  bool interleaved = false;
  TensorView y;  // same shape; may alias x
};

class DenseKernels {
 public:
  virtual ~DenseKernels() = default;

  virtual void Embedding(const EmbeddingArgs& args) = 0;
  virtual void AddPositions(const AddPositionsArgs& args) = 0;
  virtual void PositionLayer(const PositionLayerArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void LayerNorm(const LayerNormArgs& args) = 0;
  // Independent products, done as one parallel region. Outputs must not alias each other.
  virtual void Linear(std::span<const LinearArgs> products) = 0;
  virtual void AddBias(const AddBiasArgs& args) = 0;
  // Independent activations, done as one parallel region.
  virtual void Activate(std::span<const ActivateArgs> activations) = 0;
  virtual void Multiply(const MultiplyArgs& args) = 0;
  virtual void AddScaled(const AddScaledArgs& args) = 0;
  virtual void SwiGlu(const SwiGluArgs& args) = 0;
  virtual void L2Norm(const L2NormArgs& args) = 0;
  virtual void SumNorm(const SumNormArgs& args) = 0;
  virtual void Divide(const DivideArgs& args) = 0;
  virtual void Softmax(const SoftmaxArgs& args) = 0;
  virtual void MapFeatures(const FeatureMapArgs& args) = 0;
  virtual void GatedRmsNorm(const GatedRmsNormArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;

  // Fused. False: nothing was done, the caller composes the above.
  virtual bool SwiGluProduct(const SwiGluProductArgs&) { return false; }
};

}  // namespace mneme
