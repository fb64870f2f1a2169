// The delta rule, keys with decays: KDA.
#include "kernels/cuda/matrix_memory/rules/launch.cuh"

namespace mneme::cuda::matrix_memory::rules {

void LaunchDeltaKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  LaunchTunedRule<DeltaKeyDecay>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
