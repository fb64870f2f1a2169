// The kernel of decode_layers.cu for states in f32.
#include "kernels/cuda/decode_layers.cuh"

namespace mneme::cuda::layers {

bool LaunchF32(Device& device, const Params& p, int key_dim) {
  return LaunchKeys<float>(device, p, key_dim);
}

}  // namespace mneme::cuda::layers
