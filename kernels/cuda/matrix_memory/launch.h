// The kernels of the gated delta rule as matrix_memory/gated_delta_rule.cu launches them.
#pragma once

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/memory.cuh"

namespace mneme::cuda::matrix_memory {

// matrix_memory/gated_delta_rule.cu: the arguments of an operation, less the task and the plan.
Problem MakeProblem(const MatrixMemoryArgs& args);

// matrix_memory/general.cu: any task, any shape; a row at a time.
void LaunchGeneral(Device& device, Problem problem, DType state_dtype);

// Segments by number, of which only the device knows; none: all are meant.
struct ChosenSegments {
  const int* list = nullptr;   // [most]
  const int* count = nullptr;  // [1]
  int most = 0;
};
// matrix_memory/tokens.cu: any task but kDecode, for shapes and layouts that Supports() says.
// Bit-equal to decoding with fold_all as long as nothing is pending.
void LaunchTokens(Device& device, Problem problem, DType state_dtype,
                  const ChosenSegments& chosen = {});

// False, and an error on record, for a memory of more blocks than its range counts in 16 bits.
inline bool RangeCountFits(Device& device, const Problem& p) {
  if (p.capacity == 0 || int64_t{p.value_heads} * p.tiles <= 1 << 16) return true;
  device.Check(cudaErrorInvalidValue, "gated delta rule, of so many value channels");
  return false;
}

// Pending writes that the tuned kernels can hold.
constexpr int kMaxPending = 16;

// Whether the tuned kernels take a problem: those of tokens.cu and of decode/.
inline bool Supports(const Problem& p, DType state_dtype) {
  return HasTunedKernels(p.key_dim) && p.capacity <= kMaxPending &&
         AreAligned(p.state, p.keys, p.q, p.k) &&
         (state_dtype == DType::kF32 || state_dtype == DType::kF16 ||
          (state_dtype == DType::kI8 && p.value_dim % 4 == 0));
}

}  // namespace mneme::cuda::matrix_memory
