#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void GatedDeltaChunks(Device& device, const GatedDeltaRuleArgs&) {
  device.Check(cudaErrorNotSupported, "GatedDeltaChunks");
}

}  // namespace mneme::cuda
