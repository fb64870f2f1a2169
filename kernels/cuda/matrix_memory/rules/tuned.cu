// Which tuned kernels there are for a rule, and how one token each is dealt out to them.
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/cuda/matrix_memory/rules/token.cuh"

namespace mneme::cuda::matrix_memory::rules {

namespace {

bool HasTunedKernels(const MatrixRule& rule) {
  return Additive::Is(rule) || AdditiveKeyDecay::Is(rule) || Delta::Is(rule) ||
         DeltaKeyDecay::Is(rule);
}

}  // namespace

bool Supports(const Problem& p, DType state_dtype) {
  const bool floats = state_dtype == DType::kF32 || state_dtype == DType::kF16;
  return HasTunedKernels(p.rule) && HasTunedRule(p.key_dim) && p.value_dim > 0 &&
         AreAligned(p.state, p.q.data, p.k.data) &&
         (p.rule.decay != MatrixRule::Decay::kKey || IsAligned(p.decay.data)) &&
         (floats || state_dtype == DType::kI8);
}

Tile PlanDecode(const Device& device, const Problem& p, int64_t head_states, DType state_dtype) {
  const int64_t elements =
      head_states * p.value_dim * p.key_dim / device.multiprocessors();  // of a multiprocessor
  (void)state_dtype;
  return elements <= 8 * 1024 ? Tile::kFewestRows : Tile::kFewRows;
}

void LaunchTuned(Device& device, const Problem& p, DType state_dtype, Tile tile) {
  if (Additive::Is(p.rule)) return LaunchAdditive(device, p, state_dtype, tile);
  if (AdditiveKeyDecay::Is(p.rule)) return LaunchAdditiveKeyDecay(device, p, state_dtype, tile);
  if (Delta::Is(p.rule)) return LaunchDelta(device, p, state_dtype, tile);
  CHECK(DeltaKeyDecay::Is(p.rule)) << "a rule without tuned kernels";
  LaunchDeltaKeyDecay(device, p, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
