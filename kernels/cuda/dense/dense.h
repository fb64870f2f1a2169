// Operations that touch every activation once: kernels/kernels.h says what they compute.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::dense {

void Embedding(Device& device, const EmbeddingArgs& args);
void GatherRows(Device& device, const GatherRowsArgs& args);
void BanTokens(Device& device, const BanTokensArgs& args);
void RmsNorm(Device& device, const RmsNormArgs& args);
void SwiGlu(Device& device, const SwiGluArgs& args);
void L2Norm(Device& device, const L2NormArgs& args);
void DeltaGates(Device& device, const DeltaGatesArgs& args);
void GatedRmsNorm(Device& device, const GatedRmsNormArgs& args);

}  // namespace mneme::cuda::dense
