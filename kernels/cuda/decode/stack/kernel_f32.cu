// The kernel of decode/stack/stack.cu for states in f32.
#include "kernels/cuda/decode/stack/kernel.cuh"

namespace mneme::cuda::decode::stack {

bool LaunchF32(Device& device, const Params& p, int key_dim) {
  return LaunchKeys<float>(device, p, key_dim);
}

}  // namespace mneme::cuda::decode::stack
