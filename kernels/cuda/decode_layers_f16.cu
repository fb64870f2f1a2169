// The kernel of decode_layers.cu for states in f16.
#include "kernels/cuda/decode_layers.cuh"

namespace mneme::cuda::layers {

bool LaunchF16(Device& device, const Params& p, int key_dim) {
  return LaunchKeys<__half>(device, p, key_dim);
}

}  // namespace mneme::cuda::layers
