#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void ShortConv(Device& device, std::span<const ShortConvArgs>) {
  device.Check(cudaErrorNotSupported, "ShortConv");
}

}  // namespace mneme::cuda
