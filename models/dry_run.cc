#include "models/dry_run.h"

#include <string>

namespace mneme {
namespace {

class DryRunKernels final : public Kernels {
 public:
  void Embedding(const EmbeddingArgs&) override {}
  void AddPositions(const AddPositionsArgs&) override {}
  void PositionLayer(const PositionLayerArgs&) override {}
  void GatherRows(const GatherRowsArgs&) override {}
  void RmsNorm(const RmsNormArgs&) override {}
  void LayerNorm(const LayerNormArgs&) override {}
  void Linear(std::span<const LinearArgs>) override {}
  void AddBias(const AddBiasArgs&) override {}
  void Activate(std::span<const ActivateArgs>) override {}
  void Multiply(const MultiplyArgs&) override {}
  void AddScaled(const AddScaledArgs&) override {}
  void SwiGlu(const SwiGluArgs&) override {}
  void SumNorm(const SumNormArgs&) override {}
  void Divide(const DivideArgs&) override {}
  void Softmax(const SoftmaxArgs&) override {}
  void MapFeatures(const FeatureMapArgs&) override {}
  void Rope(const RopeArgs&) override {}
  void RouteTopK(const RouteTopKArgs&) override {}
  void Dispatch(const DispatchArgs&) override {}
  void IndexRows(const IndexRowsArgs&) override {}
  void CutRows(const CutRowsArgs&) override {}
  void ShortConv(std::span<const ShortConvArgs>) override {}
  void L2Norm(const L2NormArgs&) override {}
  void DeltaGates(const DeltaGatesArgs&) override {}
  void DecayGates(const DecayGatesArgs&) override {}
  void MatrixMemory(const MatrixMemoryArgs&) override {}
  void SettleMemories(const SettleArgs&) override {}
  void TokenShift(const TokenShiftArgs&) override {}
  void Rwkv7Gates(const Rwkv7GatesArgs&) override {}
  void ValueResidual(const ValueResidualArgs&) override {}
  void Rwkv7Output(const Rwkv7OutputArgs&) override {}
  void SelectiveScan(const SelectiveScanArgs&) override {}
  void Discretize(const DiscretizeArgs&) override {}
  void Attention(const AttentionArgs&) override {}
  void NeuralMemory(const NeuralMemoryArgs&) override {}
  void KeepGate(const KeepGateArgs&) override {}
  void ChunkMean(const ChunkMeanArgs&) override {}
  void ExpandRows(const ExpandRowsArgs&) override {}
  void ChunkPool(const ChunkPoolArgs&) override {}
  void Surprise(const SurpriseArgs&) override {}
  void MixMemories(const MixMemoriesArgs&) override {}
  void GatedRmsNorm(const GatedRmsNormArgs&) override {}
  void FindCrossings(const FindCrossingsArgs&) override {}
  void CommitEngrams(const CommitEngramsArgs&) override {}
  void EncodeTokens(const EncodeTokensArgs&) override {}
  void ReadEncoder(const ReadEncoderArgs&) override {}
  void WriteEngrams(const WriteEngramsArgs&) override {}
  void ScoreEngrams(const ScoreEngramsArgs&) override {}
  void RetrieveEngrams(const RetrieveEngramsArgs&) override {}
  void GatherEngrams(const GatherEngramsArgs&) override {}
  void StoreEngramContext(const StoreEngramContextArgs&) override {}
  void EngramAttention(const EngramAttentionArgs&) override {}
  void AddFrom(const AddFromArgs&) override {}
  void ExpandStreams(const ExpandStreamsArgs&) override {}
  void ReadStreams(const ReadStreamsArgs&) override {}
  void WriteStreams(const WriteStreamsArgs&) override {}
  void SumStreams(const SumStreamsArgs&) override {}
  void MixViews(const MixViewsArgs&) override {}
  void IndexWholeSegments(const IndexWholeSegmentsArgs&) override {}
  void SegmentAttention(const SegmentAttentionArgs&) override {}
  void BanTokens(const BanTokensArgs&) override {}
  void Sample(const SampleArgs&) override {}
};

class DryRunBackend final : public Backend {
 public:
  explicit DryRunBackend(DType activation_dtype) : activation_dtype_(activation_dtype) {}

  absl::string_view name() const override { return "dry run"; }
  std::string description() const override { return "dry run"; }
  DType activation_dtype() const override { return activation_dtype_; }
  StateFormat state_format() const override { return {}; }
  DType compute_dtype() const override { return DType::kF32; }

  absl::StatusOr<void*> Allocate(int64_t) override {
    return absl::FailedPreconditionError("a dry run has no memory");
  }
  void Free(void*) override {}
  absl::StatusOr<int64_t> AvailableBytes() const override { return 0; }
  void CopyFromHost(void*, const void*, int64_t) override {}
  void CopyToHost(void*, const void*, int64_t) override {}
  void Copy(void*, const void*, int64_t) override {}
  void Zero(void*, int64_t) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }
  int64_t PackedBytes(DType, int, int) const override { return 0; }
  PackedMatrix PackMatrix(const TensorView&, void*) override { return {}; }
  Kernels& kernels() override { return kernels_; }

 private:
  const DType activation_dtype_;
  DryRunKernels kernels_;
};

}  // namespace

std::unique_ptr<Backend> MakeDryRunBackend(DType activation_dtype) {
  return std::make_unique<DryRunBackend>(activation_dtype);
}

}  // namespace mneme
