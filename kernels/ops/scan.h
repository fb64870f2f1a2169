// Selective state spaces: memories whose step sizes, inputs and outputs the token sets.
// kernels/kernels.h has the conventions.
#pragma once

#include <limits>

#include "kernels/ops/dense.h"
#include "kernels/ops/matrix_memory.h"
#include "kernels/ops/routing.h"
#include "kernels/tensor_view.h"

namespace mneme {

constexpr int kMaxScanStates = 256;

// The selective scan of Mamba (Gu and Dao, arXiv:2312.00752, algorithm 2), per channel and along
// each segment, with `states` numbers h[n] for each channel:
//   s    = softplus(dt + dt_bias)                           softplus(z) = z for z > 20
//   h[n] <- exp(s a[n]) h[n] + s u b[n]
//   y    = (sum_n c[n] h[n] + skip u) silu(gate)
struct SelectiveScanArgs {
  TensorView u;              // [entries, channels] act
  TensorView dt;             // [entries, channels] act
  TensorView b, c;           // [entries, states] act, at most kMaxScanStates
  TensorView a;              // [states, channels] f32, finite and at most 0
  TensorView dt_bias, skip;  // [channels] f32
  TensorView gate;           // [entries, channels] act
  Segments segments;
  // Per memory: [states, channels] of kF32, kF64 in the reference; updated in place.
  StateView state;
  TensorView y;  // [entries, channels] act, or as LinearArgs::x; may alias u, dt or gate
};

// Mamba-2's inputs of a matrix memory with a decay for each head (Dao and Gu, arXiv:2405.21060),
// per head:
//   s = min(max(softplus(dt + dt_bias), least_step), most_step)
//   log_decay = s a;   v = s u
struct DiscretizeArgs {
  TensorView u;           // [entries, heads, dim] act
  TensorView dt;          // [entries, heads] act
  TensorView dt_bias, a;  // [heads] f32; a finite and at most 0
  float least_step = 0.0f;
  float most_step = std::numeric_limits<float>::infinity();
  TensorView log_decay;  // [entries, heads] act, out
  TensorView v;          // as u, out
};

// One token of each segment through the memories of a Mamba-2 layer, as one operation: Discretize,
// MatrixMemory of what it gives, AddScaled of discretize.u to what is read, and SwiGlu unless
// gate.y is empty. Like those of decode_step.h it is fused, and a backend may do without. What
// lies between its parts is unspecified afterwards; skip.y is the result if there is no gate.
struct Mamba2StepArgs {
  DiscretizeArgs discretize;
  MatrixMemoryArgs memory;  // memory.segments.longest == 1
  AddScaledArgs skip;
  SwiGluArgs gate;  // gate.up is skip.y
};

// The way out of such a memory, as one operation in the same sense: AddScaled to what was read,
// SwiGlu of that, and GatedRmsNorm of what comes out, which has no gate of its own.
struct Mamba2OutputArgs {
  AddScaledArgs skip;
  SwiGluArgs gate;        // gate.up is skip.y
  GatedRmsNormArgs norm;  // norm.x is gate.y, which is skip.y, too
};

class ScanKernels {
 public:
  virtual ~ScanKernels() = default;

  virtual void SelectiveScan(const SelectiveScanArgs& args) = 0;
  virtual void Discretize(const DiscretizeArgs& args) = 0;

  // Fused. False: nothing was done, the caller composes the above.
  virtual bool Mamba2Step(const Mamba2StepArgs&) { return false; }
  virtual bool Mamba2Output(const Mamba2OutputArgs&) { return false; }
};

}  // namespace mneme
