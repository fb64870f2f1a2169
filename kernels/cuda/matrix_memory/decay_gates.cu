// Decays of memories whose keys, or slots, each have their own.
#include <cfloat>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/matrix_memory.h"

namespace mneme::cuda::matrix_memory {
namespace {

constexpr int kThreads = 256;

struct GatesProblem {
  const float *x, *lower, *a_log, *dt_bias;
  const int32_t* entry_rows;
  float *log_decay, *complement;
  int64_t items;
  int row, dim;  // elements of an entry, of a head
  DecayGate gate;
  float normalizer, least, lower_bound;
};

struct Gate {
  float log_decay, complement;
};

__device__ inline float LogSigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }

__device__ inline Gate GateOf(const GatesProblem& p, float x, int i) {
  float g = 0;
  switch (p.gate) {
    case DecayGate::kLogSigmoid:
      g = fmaxf(LogSigmoid(x) / p.normalizer, p.least);
      break;
    case DecayGate::kForget: {
      const float lower = p.lower == nullptr ? 0.0f : p.lower[i];
      const float complement = (1.0f - lower) * Sigmoid(-x);
      if (lower == 0.0f) {
        g = LogSigmoid(x);
      } else if (complement < 0.5f) {  // 1 - complement would round away what the log is of
        g = log1pf(-complement);
      } else {
        g = logf(lower + (1.0f - lower) * Sigmoid(x));
      }
      return {fmaxf(g, kLeastLogDecay), complement};
    }
    case DecayGate::kSoftplus:
      // Finite, whatever x is.
      g = fmaxf(LogDecay(x, p.a_log[i / p.dim], p.dt_bias[i]), -FLT_MAX);
      break;
    case DecayGate::kBounded:
      g = p.lower_bound * Sigmoid(expf(p.a_log[i / p.dim]) * (x + p.dt_bias[i]));
      break;
    case DecayGate::kExponential:
      g = fmaxf(-expf(x), kLeastLogDecay);
      break;
  }
  return {g, -expm1f(g)};
}

// Outputs may be the input.
__global__ void __launch_bounds__(kThreads)
    DecayGatesKernel(const __grid_constant__ GatesProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t to = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (to >= p.items) return;
  const int64_t entry = to / p.row;
  const int i = static_cast<int>(to - entry * p.row);
  const int64_t from = p.entry_rows == nullptr ? entry : p.entry_rows[entry];
  const Gate gate = GateOf(p, p.x[from * p.row + i], i);
  p.log_decay[to] = gate.log_decay;
  if (p.complement != nullptr) p.complement[to] = gate.complement;
}

}  // namespace

void DecayGates(Device& device, const DecayGatesArgs& args) {
  CHECK(args.x.dtype == DType::kF32);
  const int64_t items = args.log_decay.shape.elements();
  if (items == 0) return;
  const GatesProblem problem = {.x = args.x.as<const float>(),
                                .lower = args.lower.as<const float>(),
                                .a_log = args.a_log.as<const float>(),
                                .dt_bias = args.dt_bias.as<const float>(),
                                .entry_rows = args.entry_rows.as<const int32_t>(),
                                .log_decay = args.log_decay.as<float>(),
                                .complement = args.complement.as<float>(),
                                .items = items,
                                .row = static_cast<int>(args.x.shape[1] * args.x.shape[2]),
                                .dim = static_cast<int>(args.x.shape[2]),
                                .gate = args.gate,
                                .normalizer = args.normalizer,
                                .least = args.least,
                                .lower_bound = args.lower_bound};
  LaunchOverlapping(device, "DecayGates", DecayGatesKernel,
                    static_cast<int>((items + kThreads - 1) / kThreads), kThreads, 0, 1, problem);
}

}  // namespace mneme::cuda::matrix_memory
