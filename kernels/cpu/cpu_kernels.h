// The operations on the CPU: checks shapes, divides the outputs among the workers of a pool, and
// calls the functions of the chosen instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/kernels.h"
#include "kernels/ops/checks.h"

namespace mneme {

// Below this, waking and awaiting workers costs more than they save.
inline constexpr double kWorthSharingNanoseconds = 15000;

// Denormals count as zero in all arithmetic: they cost a hundred cycles each and carry nothing.
// Set for the calling thread while in scope; workers have it set for good.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

  static void Enable();  // for the calling thread, from now on

 private:
  uint32_t saved_ = 0;
};

// Memory of one worker that grows when asked for more and is otherwise kept.
class WorkerMemory {
 public:
  void* Reserve(int64_t bytes);

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

inline constexpr ActivationTypes kCpuActivations{DType::kF32};

class CpuKernels final : public Kernels {
 public:
  // `pool` and the tables of `isa` outlive this.
  CpuKernels(const Isa& isa, DType compute_dtype, ThreadPool& pool);

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
  void RouteTopK(const RouteTopKArgs& args) override;
  void Dispatch(const DispatchArgs& args) override;
  void IndexRows(const IndexRowsArgs& args) override;
  void CutRows(const CutRowsArgs& args) override;
  void ExpandRows(const ExpandRowsArgs& args) override;
  void ShortConv(std::span<const ShortConvArgs> convolutions) override;
  void L2Norm(const L2NormArgs& args) override;
  void SumNorm(const SumNormArgs& args) override;
  void Divide(const DivideArgs& args) override;
  void Softmax(const SoftmaxArgs& args) override;
  void MapFeatures(const FeatureMapArgs& args) override;
  void Rope(const RopeArgs& args) override;
  void DeltaGates(const DeltaGatesArgs& args) override;
  void DecayGates(const DecayGatesArgs& args) override;
  void MatrixMemory(const MatrixMemoryArgs& args) override;
  void SettleMemories(const SettleArgs&) override {}  // nothing is ever pending
  void TokenShift(const TokenShiftArgs& args) override;
  void Rwkv7Gates(const Rwkv7GatesArgs& args) override;
  void ValueResidual(const ValueResidualArgs& args) override;
  void Rwkv7Output(const Rwkv7OutputArgs& args) override;
  void SelectiveScan(const SelectiveScanArgs& args) override;
  void Discretize(const DiscretizeArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void NeuralMemory(const NeuralMemoryArgs& args) override;
  void KeepGate(const KeepGateArgs& args) override;
  void ChunkMean(const ChunkMeanArgs& args) override;
  void ChunkPool(const ChunkPoolArgs& args) override;
  void Surprise(const SurpriseArgs& args) override;
  void MixMemories(const MixMemoriesArgs& args) override;
  void GatedRmsNorm(const GatedRmsNormArgs& args) override;
  void ExpandStreams(const ExpandStreamsArgs& args) override;
  void ReadStreams(const ReadStreamsArgs& args) override;
  void WriteStreams(const WriteStreamsArgs& args) override;
  void SumStreams(const SumStreamsArgs& args) override;
  void MixViews(const MixViewsArgs& args) override;
  void IndexWholeSegments(const IndexWholeSegmentsArgs& args) override;
  void SegmentAttention(const SegmentAttentionArgs& args) override;
  void Sample(const SampleArgs& args) override;

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

 private:
  // task(begin, end) over [0, n) in ranges that begin at multiples of `grain`, on as many workers
  // as an estimated `nanoseconds` per item are worth.
  using Range = absl::FunctionRef<void(int64_t begin, int64_t end)>;
  void For(int64_t n, int64_t grain, double nanoseconds, Range task);

  // The products of one call, cut into tasks.
  void AddLinearTasks(const LinearArgs& args);
  void CutLinearTasks();

  const IsaOps& ops_;
  const bool round_activations_;
  ThreadPool& pool_;

  struct Worker {
    WorkerMemory linear, sample, matrix_memory, attention, neural_memory;
    LinearScratch linear_scratch;
  };
  std::vector<Worker> workers_;

  // Kept between calls so that a step allocates nothing.
  std::vector<LinearTask> linear_whole_, linear_tasks_;
  struct RuleTask {
    int segment, head, begin, end;
  };
  std::vector<RuleTask> rule_tasks_;
  std::vector<AttentionTask> attention_tasks_;
  struct EngramRow {
    int row, seen;  // engrams that its tokens see
  };
  std::vector<EngramRow> engram_rows_;
  std::vector<int> segment_rows_;  // that have tokens
  std::vector<int> active_segments_;
  std::vector<SamplingRow> sampling_rows_;  // bounded
};

}  // namespace mneme
