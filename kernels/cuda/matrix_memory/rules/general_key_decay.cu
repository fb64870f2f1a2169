// The general correction, keys with decays: RWKV-7.
#include "kernels/cuda/matrix_memory/rules/launch.cuh"

namespace mneme::cuda::matrix_memory::rules {

void LaunchGeneralKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  LaunchTunedRule<GeneralKeyDecay>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
