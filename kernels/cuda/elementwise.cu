#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void Embedding(Device& device, const EmbeddingArgs&) {
  device.Check(cudaErrorNotSupported, "Embedding");
}
void GatherRows(Device& device, const GatherRowsArgs&) {
  device.Check(cudaErrorNotSupported, "GatherRows");
}
void RmsNorm(Device& device, const RmsNormArgs&) { device.Check(cudaErrorNotSupported, "RmsNorm"); }
void SwiGlu(Device& device, const SwiGluArgs&) { device.Check(cudaErrorNotSupported, "SwiGlu"); }
void L2Norm(Device& device, const L2NormArgs&) { device.Check(cudaErrorNotSupported, "L2Norm"); }
void DeltaGates(Device& device, const DeltaGatesArgs&) {
  device.Check(cudaErrorNotSupported, "DeltaGates");
}
void MixMemories(Device& device, const MixMemoriesArgs&) {
  device.Check(cudaErrorNotSupported, "MixMemories");
}
void GatedRmsNorm(Device& device, const GatedRmsNormArgs&) {
  device.Check(cudaErrorNotSupported, "GatedRmsNorm");
}

}  // namespace mneme::cuda
