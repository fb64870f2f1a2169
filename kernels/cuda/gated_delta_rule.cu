#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void GatedDeltaRule(Device& device, const GatedDeltaRuleArgs&) {
  device.Check(cudaErrorNotSupported, "GatedDeltaRule");
}
void SettleMemories(Device& device, const SettleArgs&) {
  device.Check(cudaErrorNotSupported, "SettleMemories");
}

}  // namespace mneme::cuda
