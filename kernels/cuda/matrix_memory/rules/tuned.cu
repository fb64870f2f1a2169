// Which tuned kernels there are for a rule, and how one token each is dealt out to them.
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/cuda/matrix_memory/rules/token.cuh"

namespace mneme::cuda::matrix_memory::rules {

namespace {

// Whether one of the rules has a tuned kernel for keys of that size.
template <typename... Rules>
bool IsOneOf(const MatrixRule& rule, int key_dim) {
  return HasTunedRule(key_dim) && ((Rules::Is(rule) && key_dim <= Rules::kMostKeyDim) || ...);
}

bool HasTunedKernels(const MatrixRule& rule, int key_dim) {
  return IsOneOf<Additive, AdditiveKeyDecay, Delta, DeltaKeyDecay, GeneralKeyDecay, BonusKeyDecay>(
      rule, key_dim);
}

}  // namespace

bool Supports(const Problem& p, DType state_dtype) {
  const bool floats = state_dtype == DType::kF32 || state_dtype == DType::kF16;
  return HasTunedKernels(p.rule, p.key_dim) && p.value_dim > 0 &&
         AreAligned(p.state, p.q.data, p.k.data) &&
         (p.rule.decay != MatrixRule::Decay::kKey || IsAligned(p.decay.data)) &&
         IsAligned(p.c.data) && IsAligned(p.e.data) && IsAligned(p.bonus) &&
         (floats || state_dtype == DType::kI8);
}

// From sweeps on an H200 (cuda_matrix_memory_bench --sweep), by the elements of all matrices for
// each multiprocessor: f32 at 3, 50 and 400 MB of linear attention, us, 3.4, 27.7 and 206 with the
// fewest rows of a warp, 4.1, 27.6 and 202 with few, 5.2, 28.3 and 206 with more. More cache gains
// two percent at 1,600 MB, but few rows of 512 keys, which are one, lose. Few rows of 16 or 8 bits
// are few bytes.
Tile PlanDecode(const Device& device, const Problem& p, int64_t head_states, DType state_dtype) {
  const int64_t elements = head_states * p.value_dim * p.key_dim / device.multiprocessors();
  if (elements <= 8 * 1024) return Tile::kFewestRows;
  if (state_dtype == DType::kF32) {
    const bool long_keys = p.key_dim >= 512;
    if (elements <= (long_keys ? 256 : 400) * 1024) return Tile::kFewRows;
    return long_keys ? Tile::kRowsCached : Tile::kFewRowsCached;
  }
  const bool corrects = p.rule.correction != MatrixRule::Correction::kNone;
  return corrects && elements <= 1024 * 1024 ? Tile::kFewRows : Tile::kRows;
}

void LaunchTuned(Device& device, const Problem& p, DType state_dtype, Tile tile) {
  if (Additive::Is(p.rule)) return LaunchAdditive(device, p, state_dtype, tile);
  if (AdditiveKeyDecay::Is(p.rule)) return LaunchAdditiveKeyDecay(device, p, state_dtype, tile);
  if (Delta::Is(p.rule)) return LaunchDelta(device, p, state_dtype, tile);
  if (GeneralKeyDecay::Is(p.rule)) return LaunchGeneralKeyDecay(device, p, state_dtype, tile);
  if (BonusKeyDecay::Is(p.rule)) return LaunchBonusKeyDecay(device, p, state_dtype, tile);
  CHECK(DeltaKeyDecay::Is(p.rule)) << "a rule without tuned kernels";
  LaunchDeltaKeyDecay(device, p, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
