#include "bench/timed_backend.h"

#include <chrono>
#include <utility>

namespace mneme {

class TimedBackend::TimedKernels final : public Kernels {
 public:
  explicit TimedKernels(Kernels& inner) : inner_(inner) {}

  std::map<std::string, double> TakeSeconds() { return std::exchange(seconds_, {}); }

  void Embedding(const EmbeddingArgs& args) override {
    Time("Embedding", [&] { inner_.Embedding(args); });
  }
  void AddPositions(const AddPositionsArgs& args) override {
    Time("AddPositions", [&] { inner_.AddPositions(args); });
  }
  void FindCrossings(const FindCrossingsArgs& args) override {
    Time("FindCrossings", [&] { inner_.FindCrossings(args); });
  }
  void CommitEngrams(const CommitEngramsArgs& args) override {
    Time("CommitEngrams", [&] { inner_.CommitEngrams(args); });
  }
  void EncodeTokens(const EncodeTokensArgs& args) override {
    Time("EncodeTokens", [&] { inner_.EncodeTokens(args); });
  }
  void ReadEncoder(const ReadEncoderArgs& args) override {
    Time("ReadEncoder", [&] { inner_.ReadEncoder(args); });
  }
  void WriteEngrams(const WriteEngramsArgs& args) override {
    Time("WriteEngrams", [&] { inner_.WriteEngrams(args); });
  }
  void ScoreEngrams(const ScoreEngramsArgs& args) override {
    Time("ScoreEngrams", [&] { inner_.ScoreEngrams(args); });
  }
  void RetrieveEngrams(const RetrieveEngramsArgs& args) override {
    Time("RetrieveEngrams", [&] { inner_.RetrieveEngrams(args); });
  }
  void GatherEngrams(const GatherEngramsArgs& args) override {
    Time("GatherEngrams", [&] { inner_.GatherEngrams(args); });
  }
  void StoreEngramContext(const StoreEngramContextArgs& args) override {
    Time("StoreEngramContext", [&] { inner_.StoreEngramContext(args); });
  }
  void EngramAttention(const EngramAttentionArgs& args) override {
    Time("EngramAttention", [&] { inner_.EngramAttention(args); });
  }
  void AddFrom(const AddFromArgs& args) override {
    Time("AddFrom", [&] { inner_.AddFrom(args); });
  }
  void PositionLayer(const PositionLayerArgs& args) override {
    Time("PositionLayer", [&] { inner_.PositionLayer(args); });
  }
  void GatherRows(const GatherRowsArgs& args) override {
    Time("GatherRows", [&] { inner_.GatherRows(args); });
  }
  void RmsNorm(const RmsNormArgs& args) override {
    Time("RmsNorm", [&] { inner_.RmsNorm(args); });
  }
  void Linear(std::span<const LinearArgs> args) override {
    Time("Linear", [&] { inner_.Linear(args); });
  }
  void AddBias(const AddBiasArgs& args) override {
    Time("AddBias", [&] { inner_.AddBias(args); });
  }
  void Activate(std::span<const ActivateArgs> args) override {
    Time("Activate", [&] { inner_.Activate(args); });
  }
  void Multiply(const MultiplyArgs& args) override {
    Time("Multiply", [&] { inner_.Multiply(args); });
  }
  void AddScaled(const AddScaledArgs& args) override {
    Time("AddScaled", [&] { inner_.AddScaled(args); });
  }
  void SwiGlu(const SwiGluArgs& args) override {
    Time("SwiGlu", [&] { inner_.SwiGlu(args); });
  }
  void LayerNorm(const LayerNormArgs& args) override {
    Time("LayerNorm", [&] { inner_.LayerNorm(args); });
  }
  void L2Norm(const L2NormArgs& args) override {
    Time("L2Norm", [&] { inner_.L2Norm(args); });
  }
  void SumNorm(const SumNormArgs& args) override {
    Time("SumNorm", [&] { inner_.SumNorm(args); });
  }
  void Divide(const DivideArgs& args) override {
    Time("Divide", [&] { inner_.Divide(args); });
  }
  void Softmax(const SoftmaxArgs& args) override {
    Time("Softmax", [&] { inner_.Softmax(args); });
  }
  void MapFeatures(const FeatureMapArgs& args) override {
    Time("MapFeatures", [&] { inner_.MapFeatures(args); });
  }
  void GatedRmsNorm(const GatedRmsNormArgs& args) override {
    Time("GatedRmsNorm", [&] { inner_.GatedRmsNorm(args); });
  }
  void Rope(const RopeArgs& args) override {
    Time("Rope", [&] { inner_.Rope(args); });
  }
  void RouteTopK(const RouteTopKArgs& args) override {
    Time("RouteTopK", [&] { inner_.RouteTopK(args); });
  }
  void Dispatch(const DispatchArgs& args) override {
    Time("Dispatch", [&] { inner_.Dispatch(args); });
  }
  void IndexRows(const IndexRowsArgs& args) override {
    Time("IndexRows", [&] { inner_.IndexRows(args); });
  }
  void MixMemories(const MixMemoriesArgs& args) override {
    Time("MixMemories", [&] { inner_.MixMemories(args); });
  }
  void ShortConv(std::span<const ShortConvArgs> args) override {
    Time("ShortConv", [&] { inner_.ShortConv(args); });
  }
  void DeltaGates(const DeltaGatesArgs& args) override {
    Time("DeltaGates", [&] { inner_.DeltaGates(args); });
  }
  void DecayGates(const DecayGatesArgs& args) override {
    Time("DecayGates", [&] { inner_.DecayGates(args); });
  }
  void MatrixMemory(const MatrixMemoryArgs& args) override {
    Time("MatrixMemory", [&] { inner_.MatrixMemory(args); });
  }
  void SettleMemories(const SettleArgs& args) override {
    Time("SettleMemories", [&] { inner_.SettleMemories(args); });
  }
  void TokenShift(const TokenShiftArgs& args) override {
    Time("TokenShift", [&] { inner_.TokenShift(args); });
  }
  void Rwkv7Gates(const Rwkv7GatesArgs& args) override {
    Time("Rwkv7Gates", [&] { inner_.Rwkv7Gates(args); });
  }
  void ValueResidual(const ValueResidualArgs& args) override {
    Time("ValueResidual", [&] { inner_.ValueResidual(args); });
  }
  void Rwkv7Output(const Rwkv7OutputArgs& args) override {
    Time("Rwkv7Output", [&] { inner_.Rwkv7Output(args); });
  }
  void SelectiveScan(const SelectiveScanArgs& args) override {
    Time("SelectiveScan", [&] { inner_.SelectiveScan(args); });
  }
  void Discretize(const DiscretizeArgs& args) override {
    Time("Discretize", [&] { inner_.Discretize(args); });
  }
  void CutRows(const CutRowsArgs& args) override {
    Time("CutRows", [&] { inner_.CutRows(args); });
  }
  void ExpandRows(const ExpandRowsArgs& args) override {
    Time("ExpandRows", [&] { inner_.ExpandRows(args); });
  }
  void ExpandStreams(const ExpandStreamsArgs& args) override {
    Time("ExpandStreams", [&] { inner_.ExpandStreams(args); });
  }
  void ReadStreams(const ReadStreamsArgs& args) override {
    Time("ReadStreams", [&] { inner_.ReadStreams(args); });
  }
  void WriteStreams(const WriteStreamsArgs& args) override {
    Time("WriteStreams", [&] { inner_.WriteStreams(args); });
  }
  void SumStreams(const SumStreamsArgs& args) override {
    Time("SumStreams", [&] { inner_.SumStreams(args); });
  }
  void MixViews(const MixViewsArgs& args) override {
    Time("MixViews", [&] { inner_.MixViews(args); });
  }
  void IndexWholeSegments(const IndexWholeSegmentsArgs& args) override {
    Time("IndexWholeSegments", [&] { inner_.IndexWholeSegments(args); });
  }
  void SegmentAttention(const SegmentAttentionArgs& args) override {
    Time("SegmentAttention", [&] { inner_.SegmentAttention(args); });
  }
  void NeuralMemory(const NeuralMemoryArgs& args) override {
    Time("NeuralMemory", [&] { inner_.NeuralMemory(args); });
  }
  void KeepGate(const KeepGateArgs& args) override {
    Time("KeepGate", [&] { inner_.KeepGate(args); });
  }
  void ChunkMean(const ChunkMeanArgs& args) override {
    Time("ChunkMean", [&] { inner_.ChunkMean(args); });
  }
  void ChunkPool(const ChunkPoolArgs& args) override {
    Time("ChunkPool", [&] { inner_.ChunkPool(args); });
  }
  void Surprise(const SurpriseArgs& args) override {
    Time("Surprise", [&] { inner_.Surprise(args); });
  }
  void Attention(const AttentionArgs& args) override {
    Time("Attention", [&] { inner_.Attention(args); });
  }
  void BanTokens(const BanTokensArgs& args) override {
    Time("BanTokens", [&] { inner_.BanTokens(args); });
  }
  void Sample(const SampleArgs& args) override {
    Time("Sample", [&] { inner_.Sample(args); });
  }
  bool SwiGluProduct(const SwiGluProductArgs& args) override {
    return TimeFused("SwiGluProduct", [&] { return inner_.SwiGluProduct(args); });
  }
  bool DeltaMemoryPass(const DeltaMemoryPassArgs& args) override {
    return TimeFused("DeltaMemoryPass", [&] { return inner_.DeltaMemoryPass(args); });
  }
  bool DeltaMixerStep(const DeltaMixerStepArgs& args) override {
    return TimeFused("DeltaMixerStep", [&] { return inner_.DeltaMixerStep(args); });
  }
  bool FeedForwardStep(const FeedForwardStepArgs& args) override {
    return TimeFused("FeedForwardStep", [&] { return inner_.FeedForwardStep(args); });
  }
  bool NormAndRoute(const RmsNormArgs& norm, const PackedMatrix& router,
                    const RouteTopKArgs& route) override {
    return TimeFused("NormAndRoute", [&] { return inner_.NormAndRoute(norm, router, route); });
  }
  bool Rwkv7Step(const Rwkv7StepArgs& args) override {
    return TimeFused("Rwkv7Step", [&] { return inner_.Rwkv7Step(args); });
  }
  bool NormAndShift(const LayerNormArgs& norm, const TokenShiftArgs& shift) override {
    return TimeFused("NormAndShift", [&] { return inner_.NormAndShift(norm, shift); });
  }
  bool Mamba2Step(const Mamba2StepArgs& args) override {
    return TimeFused("Mamba2Step", [&] { return inner_.Mamba2Step(args); });
  }
  bool Mamba2Output(const Mamba2OutputArgs& args) override {
    return TimeFused("Mamba2Output", [&] { return inner_.Mamba2Output(args); });
  }
  bool MixAndNorm(const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm) override {
    return TimeFused("MixAndNorm", [&] { return inner_.MixAndNorm(mix, norm); });
  }

 private:
  using Clock = std::chrono::steady_clock;

  template <typename Call>
  void Time(const char* name, Call call) {
    TimeFused(name, [&] {
      call();
      return true;
    });
  }
  template <typename Call>
  bool TimeFused(const char* name, Call call) {
    const Clock::time_point start = Clock::now();
    const bool done = call();
    if (done) seconds_[name] += std::chrono::duration<double>(Clock::now() - start).count();
    return done;
  }

  Kernels& inner_;
  std::map<std::string, double> seconds_;
};

TimedBackend::TimedBackend(std::unique_ptr<Backend> inner)
    : inner_(std::move(inner)), kernels_(std::make_unique<TimedKernels>(inner_->kernels())) {}

TimedBackend::~TimedBackend() = default;

Kernels& TimedBackend::kernels() { return *kernels_; }

std::map<std::string, double> TimedBackend::TakeSeconds() { return kernels_->TakeSeconds(); }

}  // namespace mneme
