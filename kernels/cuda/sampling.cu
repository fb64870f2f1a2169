#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void Sample(Device& device, const SampleArgs&) { device.Check(cudaErrorNotSupported, "Sample"); }

}  // namespace mneme::cuda
