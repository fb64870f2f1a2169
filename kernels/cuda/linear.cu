#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void Linear(Device& device, std::span<const LinearArgs>) {
  device.Check(cudaErrorNotSupported, "Linear");
}

}  // namespace mneme::cuda
