// Every operation a model is made of, declared once, by families in kernels/ops: equation, source,
// shapes, aliasing. These pages are the specification; a backend that lacks an operation does not
// compile. The reference backend (float64, one token at a time) is their executable form.
//
// Conventions
//   * Activations, "act" below, have the backend's activation dtype: f64 in the reference backend,
//     else f32. Index tensors are i32. Tensors are row-major and lie in backend memory.
//   * Rows are ragged: row r of a step owns tokens [row_offsets[r], row_offsets[r+1]) and the slab
//     slots[r]; a slot occurs in one row of a step only. A row or segment with slot < 0 is padding:
//     its state is neither read nor written, and what its tokens' outputs hold is unspecified. An
//     empty row or segment leaves its state alone as well.
//   * How tokens are split over calls, and what else is in the call, must not change a result; on
//     the CPU not by one bit. Work is divided over outputs, never over a reduction.
//   * Operations return void: wrong shapes are our own bug, and CHECK-fail (kernels/ops/checks.h;
//     on CUDA only where the comment there says so). Outputs never alias inputs unless a comment
//     says so. Not thread-safe: one caller, the engine's loop thread.
#pragma once

#include <memory>
#include <span>

#include "kernels/decode_step.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/engrams.h"
#include "kernels/ops/matrix_memory.h"
#include "kernels/ops/memory_streams.h"
#include "kernels/ops/neural_memory.h"
#include "kernels/ops/residual_streams.h"
#include "kernels/ops/routing.h"
#include "kernels/ops/rwkv.h"
#include "kernels/ops/sampling.h"
#include "kernels/ops/scan.h"
#include "kernels/ops/whole_segments.h"

namespace mneme {

class Kernels : public DenseKernels,
                public RoutingKernels,
                public MatrixMemoryKernels,
                public RwkvKernels,
                public ScanKernels,
                public AttentionKernels,
                public NeuralMemoryKernels,
                public MemoryStreamKernels,
                public ResidualStreamKernels,
                public EngramKernels,
                public WholeSegmentKernels,
                public SamplingKernels {
 public:
  // A fused step of decode rows (decode_step.h). False: nothing was done, the caller goes operation
  // by operation.
  virtual bool FeedForwardStep(const FeedForwardStepArgs&) { return false; }
  // Consecutive layers of one shape (HaveSameShape), one at least, and, unless it is null, what
  // follows them. Null: the device has no such operation, or not for this shape.
  virtual std::unique_ptr<DecodeProgram> CompileDecode(std::span<const DecodeLayer>,
                                                       const DecodeHead*) {
    return nullptr;
  }
};

}  // namespace mneme
