// Decays of memories whose keys, or slots, each have their own.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/decay_gates.cuh"
#include "kernels/cuda/matrix_memory/matrix_memory.h"

namespace mneme::cuda::matrix_memory {
namespace {

constexpr int kThreads = 256;

struct GatesProblem {
  GateRule rule;
  const float* x;
  const int32_t* entry_rows;
  float *log_decay, *complement;
  int64_t items;
  int row;  // elements of an entry
};

// Outputs may be the input.
__global__ void __launch_bounds__(kThreads)
    DecayGatesKernel(const __grid_constant__ GatesProblem p) {
  LetNextKernelStart();
  const int64_t to = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t entry = to / p.row;
  const int i = static_cast<int>(to - entry * p.row);
  const GateWeights weights(p.rule, i);
  WaitForPreviousKernel();
  if (to >= p.items) return;
  const int64_t from = p.entry_rows == nullptr ? entry : p.entry_rows[entry];
  const Gate gate = GateOf(p.rule, weights, p.x[from * p.row + i]);
  p.log_decay[to] = gate.log_decay;
  if (p.complement != nullptr) p.complement[to] = gate.complement;
}

}  // namespace

void DecayGates(Device& device, const DecayGatesArgs& args) {
  CHECK(args.x.dtype == DType::kF32);
  const int64_t items = args.log_decay.shape.elements();
  if (items == 0) return;
  const GatesProblem problem = {.rule = GateRuleOf(args),
                                .x = args.x.as<const float>(),
                                .entry_rows = args.entry_rows.as<const int32_t>(),
                                .log_decay = args.log_decay.as<float>(),
                                .complement = args.complement.as<float>(),
                                .items = items,
                                .row = static_cast<int>(args.x.shape[1] * args.x.shape[2])};
  LaunchOverlapping(device, "DecayGates", DecayGatesKernel, BlocksFor(items, kThreads), kThreads, 0,
                    1, problem);
}

}  // namespace mneme::cuda::matrix_memory
