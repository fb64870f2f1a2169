// Operations that touch every activation once: kernels/kernels.h says what they compute.
#pragma once

#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::dense {

void Embedding(Device& device, const EmbeddingArgs& args);
void AddPositions(Device& device, const AddPositionsArgs& args);
void PositionLayer(Device& device, const PositionLayerArgs& args);
void GatherRows(Device& device, const GatherRowsArgs& args);
void BanTokens(Device& device, const BanTokensArgs& args);
void RmsNorm(Device& device, const RmsNormArgs& args);
void SwiGlu(Device& device, const SwiGluArgs& args);
void L2Norm(Device& device, const L2NormArgs& args);
void DeltaGates(Device& device, const DeltaGatesArgs& args);
void GatedRmsNorm(Device& device, const GatedRmsNormArgs& args);

// dense/layer_norm.cu
void LayerNorm(Device& device, const LayerNormArgs& args);

// dense/pointwise.cu
void AddBias(Device& device, const AddBiasArgs& args);
void Activate(Device& device, std::span<const ActivateArgs> activations);
void Multiply(Device& device, const MultiplyArgs& args);
void AddScaled(Device& device, const AddScaledArgs& args);

// dense/heads.cu
void SumNorm(Device& device, const SumNormArgs& args);
void Divide(Device& device, const DivideArgs& args);
void Softmax(Device& device, const SoftmaxArgs& args);
void MapFeatures(Device& device, const FeatureMapArgs& args);

// dense/rope.cu
void Rope(Device& device, const RopeArgs& args);

}  // namespace mneme::cuda::dense
