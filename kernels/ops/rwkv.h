// RWKV's token shift, gates and outputs: all but the matrix memories themselves (Peng et al.,
// arXiv:2404.05892, arXiv:2503.14456, as flash-linear-attention has them). kernels/kernels.h has
// the conventions.
#pragma once

#include "kernels/ops/dense.h"
#include "kernels/ops/matrix_memory.h"
#include "kernels/ops/routing.h"
#include "kernels/tensor_view.h"

namespace mneme {

// Token shift: mixes of each entry with the one before it in its segment,
//   y[m, e] = x[e] + (mix[m] + token_mix[m, e]) * (x[e - 1] - x[e])
// Before a segment's first entry comes what the memory holds in `last`, zeros where it is fresh.
struct TokenShiftArgs {
  TensorView x;          // [entries, dim] act
  TensorView mix;        // [mixes, dim] f32
  TensorView token_mix;  // [mixes, entries, dim] act, or empty: 0
  Segments segments;
  // Per memory: [dim] of StateFormat::window_dtype, x of its last entry.
  StateView last;
  // Whether `last` moves on to the end of each segment. An entry that is mixed twice is so with the
  // second call.
  bool advance = true;
  TensorView y;  // [mixes, entries, dim] act, may be token_mix; or as LinearArgs::x
};

// RWKV-7's gates of a token, per head:
//   log_decay = -exp(-1/2) sigmoid(decay + decay_bias)
//   a         = sigmoid(rate + rate_bias)                            in-context learning rate
//   c         = z / max(sqrt(sum(z^2) + eps), least),  z = k * k_k   the key that is erased
//   e         = -a * c
//   k         = k * (1 + (a - 1) * k_a)                              the key that is written
// as MatrixMemoryArgs under Correction::kGeneral takes them.
struct Rwkv7GatesArgs {
  TensorView decay, rate;            // [entries, heads, dim] act
  TensorView decay_bias, rate_bias;  // [heads, dim] f32
  TensorView k_k, k_a;               // [heads, dim] f32
  float eps = 1e-6f, least = 0.0f;
  TensorView k;          // [entries, heads, dim] act, updated in place
  TensorView log_decay;  // the same shape, act; may be decay
  TensorView c;          // the same; must not alias an input
  TensorView e;          // the same; may be rate
};

// Values that are mixed with those of the first layer: v = v + (first - v) * sigmoid(gate + bias),
// by a gate of each channel or one of each head, whose channels are neighbours.
struct ValueResidualArgs {
  TensorView first;  // [entries, dim] act
  TensorView gate;   // [entries, gates] act; gates divides dim
  TensorView bias;   // [gates] f32
  TensorView v;      // [entries, dim] act, updated in place
};

// The way out of an RWKV-7 memory, per head:
//   y = (LayerNorm(x; weight, bias) + (r . (k * r_k)) v) * gate
struct Rwkv7OutputArgs {
  TensorView x;             // [entries, heads, value_dim] act: what was read
  TensorView weight, bias;  // [heads, value_dim] f32
  float eps = 1e-5f;
  TensorView r, k;  // [entries, heads, key_dim] act
  TensorView r_k;   // [heads, key_dim] f32
  TensorView v;     // [entries, heads, value_dim] act
  TensorView gate;  // the same
  TensorView y;     // the same, may alias x or gate; or as LinearArgs::x
};

// One token of each segment through the memories of an RWKV-7 layer, as one operation: Rwkv7Gates,
// ValueResidual unless residual.v is empty, MatrixMemory, Rwkv7Output. Like those of decode_step.h
// it is fused, and a backend may do without. Tensors that one part writes and the next one reads
// are the same memory; what they hold afterwards is unspecified.
struct Rwkv7StepArgs {
  Rwkv7GatesArgs gates;
  ValueResidualArgs residual;
  MatrixMemoryArgs memory;  // memory.segments.longest == 1
  Rwkv7OutputArgs output;
};

class RwkvKernels {
 public:
  virtual ~RwkvKernels() = default;

  virtual void TokenShift(const TokenShiftArgs& args) = 0;
  virtual void Rwkv7Gates(const Rwkv7GatesArgs& args) = 0;
  virtual void ValueResidual(const ValueResidualArgs& args) = 0;
  virtual void Rwkv7Output(const Rwkv7OutputArgs& args) = 0;

  // Fused. False: nothing was done, the caller composes the above.
  virtual bool Rwkv7Step(const Rwkv7StepArgs&) { return false; }
  // LayerNorm, and TokenShift of what it gives, for segments of one entry: shift.x is norm.y, which
  // is not written if it has no data.
  virtual bool NormAndShift(const LayerNormArgs& /*norm*/, const TokenShiftArgs& /*shift*/) {
    return false;
  }
};

}  // namespace mneme
