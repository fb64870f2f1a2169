// RWKV's own operations on the CPU: checks, and how they are divided.
#include "base/log.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/checks.h"

namespace mneme {
void CpuKernels::TokenShift(const TokenShiftArgs& args) {
  Check(args, kCpuActivations);
  CHECK(args.last.dtype == DType::kF32);
  const FlushDenormals flush;
  // Workers divide the channels, so that each reads what a memory holds before it replaces it.
  constexpr int64_t kGrain = 64;
  const int64_t entries = args.x.shape[0], dim = args.x.shape[1], mixes = args.mix.shape[0];
  const double each = args.token_mix.empty() ? 0.15 : 0.25;
  For(dim, kGrain, each * static_cast<double>(entries * (mixes + 1)),
      [&](int64_t begin, int64_t end) { ops_.token_shift(args, begin, end); });
}

void CpuKernels::Rwkv7Gates(const Rwkv7GatesArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.k.shape[0] * args.k.shape[1], dim = args.k.shape[2];
  For(rows, 1, 1.5 * static_cast<double>(dim) + 20,
      [&](int64_t begin, int64_t end) { ops_.rwkv7_gates(args, begin, end); });
}

void CpuKernels::ValueResidual(const ValueResidualArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.v.shape[0], 1, 0.5 * static_cast<double>(args.v.shape[1]),
      [&](int64_t begin, int64_t end) { ops_.value_residual(args, begin, end); });
}

void CpuKernels::Rwkv7Output(const Rwkv7OutputArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.x.shape[0] * args.x.shape[1];
  For(rows, 1, 0.4 * static_cast<double>(args.x.shape[2] + args.r.shape[2]) + 20,
      [&](int64_t begin, int64_t end) { ops_.rwkv7_output(args, begin, end); });
}

}  // namespace mneme
