// The delta rule, one decay for a row or none.
#include "kernels/cuda/matrix_memory/rules/launch.cuh"

namespace mneme::cuda::matrix_memory::rules {

void LaunchDelta(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  LaunchTunedRule<Delta>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
