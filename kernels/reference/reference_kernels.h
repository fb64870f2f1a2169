// The reference backend's Kernels, and the few helpers its files share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/ops/checks.h"
#include "kernels/tensor_view.h"

namespace mneme {

class ReferenceKernels : public Kernels {
 public:
  explicit ReferenceKernels(DType compute_dtype) : compute_dtype_(compute_dtype) {}

  // dense.cc
  void Embedding(const EmbeddingArgs& args) override;
  void AddPositions(const AddPositionsArgs& args) override;
  void PositionLayer(const PositionLayerArgs& args) override;
  void GatherRows(const GatherRowsArgs& args) override;
  void BanTokens(const BanTokensArgs& args) override;
  void RmsNorm(const RmsNormArgs& args) override;
  void LayerNorm(const LayerNormArgs& args) override;
  void Linear(std::span<const LinearArgs> products) override;
  void AddBias(const AddBiasArgs& args) override;
  void Activate(std::span<const ActivateArgs> activations) override;
  void Multiply(const MultiplyArgs& args) override;
  void AddScaled(const AddScaledArgs& args) override;
  void SwiGlu(const SwiGluArgs& args) override;
  void L2Norm(const L2NormArgs& args) override;
  void SumNorm(const SumNormArgs& args) override;
  void Divide(const DivideArgs& args) override;
  void Softmax(const SoftmaxArgs& args) override;
  void MapFeatures(const FeatureMapArgs& args) override;
  void GatedRmsNorm(const GatedRmsNormArgs& args) override;
  void Rope(const RopeArgs& args) override;
  // routing.cc
  void RouteTopK(const RouteTopKArgs& args) override;
  void Dispatch(const DispatchArgs& args) override;
  void IndexRows(const IndexRowsArgs& args) override;
  void CutRows(const CutRowsArgs& args) override;
  void ExpandRows(const ExpandRowsArgs& args) override;
  void MixMemories(const MixMemoriesArgs& args) override;
  // memory_rules.cc
  void ShortConv(std::span<const ShortConvArgs> convolutions) override;
  void DeltaGates(const DeltaGatesArgs& args) override;
  void DecayGates(const DecayGatesArgs& args) override;
  void MatrixMemory(const MatrixMemoryArgs& args) override;
  void SettleMemories(const SettleArgs&) override {}  // nothing is ever pending
  // rwkv.cc
  void TokenShift(const TokenShiftArgs& args) override;
  void Rwkv7Gates(const Rwkv7GatesArgs& args) override;
  void ValueResidual(const ValueResidualArgs& args) override;
  void Rwkv7Output(const Rwkv7OutputArgs& args) override;
  // scan.cc
  void SelectiveScan(const SelectiveScanArgs& args) override;
  void Discretize(const DiscretizeArgs& args) override;
  // attention.cc
  void Attention(const AttentionArgs& args) override;
  // neural_memory.cc
  void NeuralMemory(const NeuralMemoryArgs& args) override;
  // memory_gates.cc
  void KeepGate(const KeepGateArgs& args) override;
  void ChunkMean(const ChunkMeanArgs& args) override;
  // engrams.cc
  void FindCrossings(const FindCrossingsArgs& args) override;
  void CommitEngrams(const CommitEngramsArgs& args) override;
  void EncodeTokens(const EncodeTokensArgs& args) override;
  void ReadEncoder(const ReadEncoderArgs& args) override;
  void WriteEngrams(const WriteEngramsArgs& args) override;
  void ScoreEngrams(const ScoreEngramsArgs& args) override;
  void RetrieveEngrams(const RetrieveEngramsArgs& args) override;
  void GatherEngrams(const GatherEngramsArgs& args) override;
  void StoreEngramContext(const StoreEngramContextArgs& args) override;
  void EngramAttention(const EngramAttentionArgs& args) override;
  void AddFrom(const AddFromArgs& args) override;
  void ChunkPool(const ChunkPoolArgs& args) override;
  void Surprise(const SurpriseArgs& args) override;
  // residual_streams.cc
  void ExpandStreams(const ExpandStreamsArgs& args) override;
  void ReadStreams(const ReadStreamsArgs& args) override;
  void WriteStreams(const WriteStreamsArgs& args) override;
  void SumStreams(const SumStreamsArgs& args) override;
  void MixViews(const MixViewsArgs& args) override;
  // whole_segments.cc
  void IndexWholeSegments(const IndexWholeSegmentsArgs& args) override;
  void SegmentAttention(const SegmentAttentionArgs& args) override;
  // sampling.cc
  void Sample(const SampleArgs& args) override;

 private:
  DType compute_dtype_;
};

namespace reference {

inline constexpr ActivationTypes kTypes{DType::kF64};

// dst[i] = element first + i of `src`, whose dtype is f64, f32, bf16 or f16. Exact.
void Widen(const void* src, DType dtype, int64_t first, int64_t n, double* dst);

inline double Sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }
inline double Silu(double z) { return z / (1.0 + std::exp(-z)); }
// log(1 + exp(z)); the identity above 20, where the released models switch (f32 cannot tell).
inline double Softplus(double z) { return z > 20.0 ? z : std::log1p(std::exp(z)); }
// The same without a threshold; -ExactSoftplus(-z) is log(Sigmoid(z)).
inline double ExactSoftplus(double z) {
  return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
}

inline double Activate(Activation activation, double z) {
  switch (activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kSilu:
      return Silu(z);
    case Activation::kSigmoid:
      return Sigmoid(z);
    case Activation::kRelu:
      return std::max(z, 0.0);
    case Activation::kEluPlusOne:
      return z > 0 ? z + 1 : std::exp(z);
    case Activation::kTanh:
      return std::tanh(z);
    case Activation::kSquaredRelu:
      return z > 0 ? z * z : 0.0;
    case Activation::kGeluTanh:
      return z * Sigmoid(z * (kGeluFirst + kGeluThird * z * z));
    case Activation::kGelu:
      return z / 2 * std::erfc(-z / std::sqrt(2.0));
  }
  return 0;
}

}  // namespace reference
}  // namespace mneme
