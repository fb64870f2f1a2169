// Rules without correction, keys with decays: GLA, HGRN2, slots.
#include "kernels/cuda/matrix_memory/rules/launch.cuh"

namespace mneme::cuda::matrix_memory::rules {

void LaunchAdditiveKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  LaunchTunedRule<AdditiveKeyDecay>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
