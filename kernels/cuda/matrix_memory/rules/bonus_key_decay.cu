// Read before the write, with a bonus, keys with decays: RWKV-6.
#include "kernels/cuda/matrix_memory/rules/launch.cuh"

namespace mneme::cuda::matrix_memory::rules {

void LaunchBonusKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  LaunchTunedRule<BonusKeyDecay>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
