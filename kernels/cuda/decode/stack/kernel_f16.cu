// The kernel of decode/stack/stack.cu for states in f16.
#include "kernels/cuda/decode/stack/kernel.cuh"

namespace mneme::cuda::decode::stack {

bool LaunchF16(Device& device, const Params& p, int key_dim) {
  return LaunchKeys<__half>(device, p, key_dim);
}

}  // namespace mneme::cuda::decode::stack
