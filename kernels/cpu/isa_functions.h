// The functions behind one instruction set's table, isa_ops.h.
#pragma once

#include "kernels/cpu/isa_ops.h"

namespace mneme::MNEME_ISA {

int LinearPanelStep(const LinearTask& task);
int64_t LinearScratchBytes(int entries, int in_features);
void Linear(const LinearTask& task, LinearScratch& scratch);
void Pack(const TensorView& matrix, void* dst, int begin, int end);
void Embedding(const EmbeddingArgs& args, int64_t begin, int64_t end);
void AddPositions(const AddPositionsArgs& args, int64_t begin, int64_t end);
void PositionLayer(const PositionLayerArgs& args, int64_t begin, int64_t end);
void RmsNorm(const RmsNormArgs& args, int64_t begin, int64_t end);
void GatedRmsNorm(const GatedRmsNormArgs& args, int64_t begin, int64_t end);
void LayerNorm(const LayerNormArgs& args, int64_t begin, int64_t end);
void L2Norm(const L2NormArgs& args, int64_t begin, int64_t end);
void SumNorm(const SumNormArgs& args, int64_t begin, int64_t end);
void Divide(const DivideArgs& args, int64_t begin, int64_t end);
void Softmax(const SoftmaxArgs& args, int64_t begin, int64_t end);
void MapFeatures(const FeatureMapArgs& args, int64_t begin, int64_t end);
void Rope(const RopeArgs& args, int64_t begin, int64_t end);
void AddBias(const AddBiasArgs& args, int64_t begin, int64_t end);
void Activate(const ActivateArgs& args, int64_t begin, int64_t end);
void Multiply(const MultiplyArgs& args, int64_t begin, int64_t end);
void AddScaled(const AddScaledArgs& args, int64_t begin, int64_t end);
void SwiGlu(const SwiGluArgs& args, int64_t begin, int64_t end);
void SelectiveScan(const SelectiveScanArgs& args, int64_t begin, int64_t end);
void Discretize(const DiscretizeArgs& args, int64_t begin, int64_t end);
void MixMemories(const MixMemoriesArgs& args, int64_t begin, int64_t end);
void RouteTopK(const RouteTopKArgs& args, int64_t begin, int64_t end);
void DeltaGates(const DeltaGatesArgs& args, int64_t begin, int64_t end);
void DecayGates(const DecayGatesArgs& args, int64_t begin, int64_t end);
void ShortConv(const ShortConvArgs& args, int64_t begin, int64_t end);
void TokenShift(const TokenShiftArgs& args, int64_t begin, int64_t end);
void Rwkv7Gates(const Rwkv7GatesArgs& args, int64_t begin, int64_t end);
void ValueResidual(const ValueResidualArgs& args, int64_t begin, int64_t end);
void Rwkv7Output(const Rwkv7OutputArgs& args, int64_t begin, int64_t end);
int64_t MatrixMemoryScratch(const MatrixMemoryArgs& args);
void MatrixMemory(const MatrixMemoryArgs& args, int segment, int head, int begin, int end,
                  float* scratch);
void Attention(const AttentionArgs& args, const AttentionTask& task, float* scratch);
int64_t NeuralMemoryScratch(const NeuralMemoryArgs& args);
void NeuralMemory(const NeuralMemoryArgs& args, int segment, int head, float* scratch);
void KeepGate(const KeepGateArgs& args, int64_t begin, int64_t end);
void ChunkMean(const ChunkMeanArgs& args, int64_t begin, int64_t end);
void EncodeTokens(const EncodeTokensArgs& args, int row, int64_t begin, int64_t end);
void SquaredDistances(const float* x, const float* others, int64_t count, int64_t dim,
                      double* distances);
void EngramAttention(const EngramAttentionArgs& args, int row, int head, int count, float* scores);
void AddFrom(const AddFromArgs& args, int64_t begin, int64_t end);
void SegmentAttention(const SegmentAttentionArgs& args, int row, int head, float* scores);
void ChunkPool(const ChunkPoolArgs& args, int64_t begin, int64_t end);
void ExpandStreams(const ExpandStreamsArgs& args, int64_t begin, int64_t end);
void ReadStreams(const ReadStreamsArgs& args, int64_t begin, int64_t end);
void WriteStreams(const WriteStreamsArgs& args, int64_t begin, int64_t end);
void SumStreams(const SumStreamsArgs& args, int64_t begin, int64_t end);
void MixViews(const MixViewsArgs& args, int64_t begin, int64_t end);
// Row r of the batch, with parameters as SamplingRow::Bounded() has them.
void Sample(const SampleArgs& args, const SamplingRow& row, int r, double uniform,
            SampleScratch& scratch);

}  // namespace mneme::MNEME_ISA
