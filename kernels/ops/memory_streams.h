// The steps between projections and a memory, and memories with them as one operation.
// kernels/kernels.h has the conventions.
#pragma once

#include <optional>
#include <span>
#include <variant>

#include "kernels/ops/dense.h"
#include "kernels/ops/matrix_memory.h"
#include "kernels/ops/neural_memory.h"

namespace mneme {

// The way of a token's projection to a memory: a convolution, an activation, and something that is
// done to each head; those that are there, in this order. The first one's x is the projection, the
// y of one is the x of the next, and that of the last is the result. There is one part at least.
// What the others' y hold afterwards is unspecified.
struct MemoryStream {
  std::optional<ShortConvArgs> convolution;  // of the step's segments
  std::optional<ActivateArgs> activation;
  std::variant<std::monostate, L2NormArgs, SumNormArgs, RopeArgs, DecayGatesArgs, KeepGateArgs>
      last;
};

// One token of each segment on its way through the memories of a layer, under any rule, as one
// operation: the streams, then the rule that reads what they leave. Fused like those of
// decode_step.h: a backend may do without.
struct MatrixMemoryStepArgs {
  std::span<const MemoryStream> streams;
  MatrixMemoryArgs rule;  // rule.segments.longest == 1
  // Whether whatever writes segments, windows and matrices was launched before an operation that no
  // other one overlaps: then they may be read while the one ahead still runs.
  bool settled = false;
};
// The same of memories that are networks.
struct NeuralMemoryStepArgs {
  std::span<const MemoryStream> streams;
  NeuralMemoryArgs memory;
};

class MemoryStreamKernels {
 public:
  virtual ~MemoryStreamKernels() = default;

  // Fused. False: nothing was done, the caller goes operation by operation.
  virtual bool MatrixMemoryStep(const MatrixMemoryStepArgs&) { return false; }
  virtual bool NeuralMemoryStep(const NeuralMemoryStepArgs&) { return false; }
};

}  // namespace mneme
