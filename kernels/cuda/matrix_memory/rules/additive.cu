// Rules without correction, one decay for a row or none: linear attention, RetNet, Mamba-2, slots.
#include "kernels/cuda/matrix_memory/rules/launch.cuh"

namespace mneme::cuda::matrix_memory::rules {

void LaunchAdditive(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  LaunchTunedRule<Additive>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
