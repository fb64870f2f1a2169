// The operations on CUDA: checks the shapes of each and hands it to its launcher, a host function
// of the folder of its family. Steps that are replayed as graphs do not come by here. Launchers
// return at once, leave errors to Device::Check, and are free of Abseil.
//
// Activations are f32 but where product_dtype and output_dtype of the backend say bf16, state is
// f32, f16 or int8, windows and keys and values of attention are f32 or bf16, as their views say.
#pragma once

#include <span>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/decode/layer_norm_step.h"
#include "kernels/cuda/dense/dense.h"
#include "kernels/cuda/engrams/engrams.h"
#include "kernels/cuda/engrams/read_step.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/step.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/neural_memory/held.h"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/residual_streams/residual_streams.h"
#include "kernels/cuda/routing/routing.h"
#include "kernels/cuda/rwkv/rwkv.h"
#include "kernels/cuda/sampling/draws.h"
#include "kernels/cuda/scan/scan.h"
#include "kernels/cuda/whole_segments/whole_segments.h"
#include "kernels/held_steps.h"
#include "kernels/kernels.h"
#include "kernels/layer_norm_step.h"
#include "kernels/ops/checks.h"
#include "kernels/recurrent_steps.h"
#include "kernels/stream_steps.h"

namespace mneme::cuda {

inline constexpr ActivationTypes kTypes{DType::kF32, /*takes_rounded=*/true};

class CudaKernels final : public Kernels,
                          public LayerNormSteps,
                          public StreamSteps,
                          public HeldMemorySteps,
                          public RecurrentSteps {
 public:
  explicit CudaKernels(Device& device) : device_(device) {}

  void Embedding(const EmbeddingArgs& args) override {
    Check(args, kTypes);
    dense::Embedding(device_, args);
  }
  void AddPositions(const AddPositionsArgs& args) override {
    Check(args, kTypes);
    dense::AddPositions(device_, args);
  }
  void PositionLayer(const PositionLayerArgs& args) override {
    Check(args, kTypes);
    dense::PositionLayer(device_, args);
  }
  void GatherRows(const GatherRowsArgs& args) override {
    Check(args, kTypes);
    dense::GatherRows(device_, args);
  }
  void BanTokens(const BanTokensArgs& args) override {
    Check(args, kTypes);
    dense::BanTokens(device_, args);
  }
  void RmsNorm(const RmsNormArgs& args) override {
    Check(args, kTypes);
    dense::RmsNorm(device_, args);
  }
  void LayerNorm(const LayerNormArgs& args) override {
    Check(args, kTypes);
    dense::LayerNorm(device_, args);
  }
  void Linear(std::span<const LinearArgs> products) override {
    CheckAll(products, kTypes);
    linear::Linear(device_, products);
  }
  void SwiGlu(const SwiGluArgs& args) override {
    Check(args, kTypes);
    dense::SwiGlu(device_, args);
  }
  void RouteTopK(const RouteTopKArgs& args) override {
    Check(args, kTypes);
    routing::RouteTopK(device_, args);
  }
  void Dispatch(const DispatchArgs& args) override {
    Check(args, kTypes);
    routing::Dispatch(device_, args);
  }
  void ShortConv(std::span<const ShortConvArgs> convolutions) override {
    CheckAll(convolutions, kTypes);
    matrix_memory::ShortConv(device_, convolutions);
  }
  void L2Norm(const L2NormArgs& args) override {
    Check(args, kTypes);
    dense::L2Norm(device_, args);
  }
  void DeltaGates(const DeltaGatesArgs& args) override {
    Check(args, kTypes);
    dense::DeltaGates(device_, args);
  }
  void AddBias(const AddBiasArgs& args) override {
    Check(args, kTypes);
    dense::AddBias(device_, args);
  }
  void Activate(std::span<const ActivateArgs> activations) override {
    CheckAll(activations, kTypes);
    dense::Activate(device_, activations);
  }
  void Multiply(const MultiplyArgs& args) override {
    Check(args, kTypes);
    dense::Multiply(device_, args);
  }
  void AddScaled(const AddScaledArgs& args) override {
    Check(args, kTypes);
    dense::AddScaled(device_, args);
  }
  void SumNorm(const SumNormArgs& args) override {
    Check(args, kTypes);
    dense::SumNorm(device_, args);
  }
  void Divide(const DivideArgs& args) override {
    Check(args, kTypes);
    dense::Divide(device_, args);
  }
  void Softmax(const SoftmaxArgs& args) override {
    Check(args, kTypes);
    dense::Softmax(device_, args);
  }
  void MapFeatures(const FeatureMapArgs& args) override {
    Check(args, kTypes);
    dense::MapFeatures(device_, args);
  }
  void Rope(const RopeArgs& args) override {
    Check(args, kTypes);
    dense::Rope(device_, args);
  }
  void IndexRows(const IndexRowsArgs& args) override {
    Check(args, kTypes);
    routing::IndexRows(device_, args);
  }
  void CutRows(const CutRowsArgs& args) override {
    Check(args, kTypes);
    routing::CutRows(device_, args);
  }
  void DecayGates(const DecayGatesArgs& args) override {
    Check(args, kTypes);
    matrix_memory::DecayGates(device_, args);
  }
  void MatrixMemory(const MatrixMemoryArgs& args) override {
    Check(args, kTypes);
    matrix_memory::MatrixMemory(device_, args);
  }
  void SettleMemories(const SettleArgs& args) override {
    Check(args, kTypes);
    matrix_memory::SettleMemories(device_, args);
  }
  void TokenShift(const TokenShiftArgs& args) override {
    Check(args, kTypes);
    rwkv::TokenShift(device_, args);
  }
  void Rwkv7Gates(const Rwkv7GatesArgs& args) override {
    Check(args, kTypes);
    rwkv::Rwkv7Gates(device_, args);
  }
  void ValueResidual(const ValueResidualArgs& args) override {
    Check(args, kTypes);
    rwkv::ValueResidual(device_, args);
  }
  void Rwkv7Output(const Rwkv7OutputArgs& args) override {
    Check(args, kTypes);
    rwkv::Rwkv7Output(device_, args);
  }
  void SelectiveScan(const SelectiveScanArgs& args) override {
    Check(args, kTypes);
    scan::SelectiveScan(device_, args);
  }
  void Discretize(const DiscretizeArgs& args) override {
    Check(args, kTypes);
    scan::Discretize(device_, args);
  }
  void Attention(const AttentionArgs& args) override {
    Check(args, kTypes);
    attention::Attention(device_, args);
  }
  void NeuralMemory(const NeuralMemoryArgs& args) override {
    Check(args, kTypes);
    neural_memory::NeuralMemory(device_, args);
  }
  void KeepGate(const KeepGateArgs& args) override {
    Check(args, kTypes);
    neural_memory::KeepGate(device_, args);
  }
  void ChunkMean(const ChunkMeanArgs& args) override {
    Check(args, kTypes);
    neural_memory::ChunkMean(device_, args);
  }
  void ChunkPool(const ChunkPoolArgs& args) override {
    Check(args, kTypes);
    neural_memory::ChunkPool(device_, args);
  }
  void Surprise(const SurpriseArgs& args) override {
    Check(args, kTypes);
    neural_memory::Surprise(device_, args);
  }
  void ExpandRows(const ExpandRowsArgs& args) override {
    Check(args, kTypes);
    routing::ExpandRows(device_, args);
  }
  void ExpandStreams(const ExpandStreamsArgs& args) override {
    Check(args, kTypes);
    residual_streams::ExpandStreams(device_, args);
  }
  void ReadStreams(const ReadStreamsArgs& args) override {
    Check(args, kTypes);
    residual_streams::ReadStreams(device_, args);
  }
  void WriteStreams(const WriteStreamsArgs& args) override {
    Check(args, kTypes);
    residual_streams::WriteStreams(device_, args);
  }
  void SumStreams(const SumStreamsArgs& args) override {
    Check(args, kTypes);
    residual_streams::SumStreams(device_, args);
  }
  void MixViews(const MixViewsArgs& args) override {
    Check(args, kTypes);
    residual_streams::MixViews(device_, args);
  }
  void IndexWholeSegments(const IndexWholeSegmentsArgs& args) override {
    Check(args, kTypes);
    whole_segments::IndexWholeSegments(device_, args);
  }
  void SegmentAttention(const SegmentAttentionArgs& args) override {
    Check(args, kTypes);
    whole_segments::SegmentAttention(device_, args);
  }
  void MixMemories(const MixMemoriesArgs& args) override {
    Check(args, kTypes);
    routing::MixMemories(device_, args);
  }
  void GatedRmsNorm(const GatedRmsNormArgs& args) override {
    Check(args, kTypes);
    dense::GatedRmsNorm(device_, args);
  }
  void FindCrossings(const FindCrossingsArgs& args) override {
    Check(args, kTypes);
    engrams::FindCrossings(device_, args);
  }
  void CommitEngrams(const CommitEngramsArgs& args) override {
    Check(args, kTypes);
    engrams::CommitEngrams(device_, args);
  }
  void EncodeTokens(const EncodeTokensArgs& args) override {
    Check(args, kTypes);
    engrams::EncodeTokens(device_, args);
  }
  void ReadEncoder(const ReadEncoderArgs& args) override {
    Check(args, kTypes);
    engrams::ReadEncoder(device_, args);
  }
  void WriteEngrams(const WriteEngramsArgs& args) override {
    Check(args, kTypes);
    engrams::WriteEngrams(device_, args);
  }
  void ScoreEngrams(const ScoreEngramsArgs& args) override {
    Check(args, kTypes);
    engrams::ScoreEngrams(device_, args);
  }
  void RetrieveEngrams(const RetrieveEngramsArgs& args) override {
    Check(args, kTypes);
    engrams::RetrieveEngrams(device_, args);
  }
  void GatherEngrams(const GatherEngramsArgs& args) override {
    Check(args, kTypes);
    engrams::GatherEngrams(device_, args);
  }
  void StoreEngramContext(const StoreEngramContextArgs& args) override {
    Check(args, kTypes);
    engrams::StoreEngramContext(device_, args);
  }
  void EngramAttention(const EngramAttentionArgs& args) override {
    Check(args, kTypes);
    engrams::EngramAttention(device_, args);
  }
  void AddFrom(const AddFromArgs& args) override {
    Check(args, kTypes);
    engrams::AddFrom(device_, args);
  }
  void Sample(const SampleArgs& args) override {
    BeginSample(args);
    FinishSample();
  }
  void BeginSample(const SampleArgs& args) override {
    Check(args, kTypes);
    draws_.Begin(args);
  }
  void FinishSample() override { draws_.Finish(); }

  bool NormAndRoute(const RmsNormArgs& norm, const PackedMatrix& router,
                    const RouteTopKArgs& route) override {
    Check(norm, router, route, kTypes);
    return decode::batch::NormAndRoute(device_, norm, router, route);
  }
  bool SwiGluProduct(const SwiGluProductArgs& args) override {
    Check(args, kTypes);
    return linear::SwiGluProduct(device_, args);
  }
  bool ActivatedProducts(std::span<const ActivatedProduct> products) override {
    CheckAll(products, kTypes);
    return linear::ActivatedProducts(device_, products);
  }
  bool Rwkv7Step(const Rwkv7StepArgs& args) override {
    Check(args, kTypes);
    return rwkv::Rwkv7LayerStep(device_, {.low_rank = {}, .step = args});
  }
  bool Rwkv7LayerStep(const Rwkv7LayerStepArgs& args) override {
    Check(args, kTypes);
    return rwkv::Rwkv7LayerStep(device_, args);
  }
  bool NormAndShift(const LayerNormArgs& norm, const TokenShiftArgs& shift) override {
    Check(norm, shift, kTypes);
    return rwkv::NormAndShift(device_, norm, shift);
  }
  bool Mamba2Step(const Mamba2StepArgs& args) override {
    Check(args, kTypes);
    return scan::Mamba2LayerStep(device_, {.convolutions = {}, .step = args, .norm = nullptr});
  }
  bool Mamba2LayerStep(const Mamba2LayerStepArgs& args) override {
    Check(args, kTypes);
    return scan::Mamba2LayerStep(device_, args);
  }
  bool Mamba2Output(const Mamba2OutputArgs& args) override {
    Check(args, kTypes);
    return scan::Mamba2Output(device_, args);
  }
  bool MixAndNorm(const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm) override {
    Check(mix, norm, kTypes);
    return routing::MixAndNorm(device_, mix, norm);
  }
  bool DeltaMemoryPass(const DeltaMemoryPassArgs& args) override {
    Check(args, kTypes);
    return matrix_memory::DeltaMemoryPass(device_, args);
  }
  bool MatrixMemoryStep(const MatrixMemoryStepArgs& args) override {
    Check(args, kTypes);
    return matrix_memory::MatrixMemoryStep(device_, args);
  }
  bool NeuralMemoryStep(const NeuralMemoryStepArgs& args) override {
    Check(args, kTypes);
    return neural_memory::NeuralMemoryStep(device_, args);
  }
  bool NeuralMemoryOutput(const NeuralMemoryOutputArgs& args) override {
    Check(args, kTypes);
    return neural_memory::NeuralMemoryOutput(device_, args);
  }
  bool DeltaMixerStep(const DeltaMixerStepArgs& args) override {
    Check(args, kTypes);
    return decode::batch::DeltaMixerStep(device_, args);
  }
  bool FeedForwardStep(const FeedForwardStepArgs& args) override {
    Check(args, kTypes);
    return decode::batch::FeedForwardStep(device_, args);
  }
  bool NormedProductsStep(const NormedProductsStepArgs& args) override {
    Check(args, kTypes);
    return decode::NormedProductsStep(device_, args);
  }
  bool ResidualProductStep(const ResidualProductStepArgs& args) override {
    Check(args, kTypes);
    return decode::ResidualProductStep(device_, args);
  }
  bool NormedConvolutionStep(const NormedConvolutionStepArgs& args) override {
    Check(args, kTypes);
    return decode::NormedConvolutionStep(device_, args);
  }
  bool NormedGateStep(const NormedGateStepArgs& args) override {
    Check(args, kTypes);
    return decode::NormedGateStep(device_, args);
  }
  bool EngramReadStep(const EngramReadStepArgs& args) override {
    Check(args, kTypes);
    return engrams::EngramReadStep(device_, args);
  }
  bool PassStreams(const PassStreamsArgs& args) override {
    Check(args, kTypes);
    return residual_streams::PassStreams(device_, args);
  }
  bool GatedMemory(const GatedMemoryArgs& args) override {
    Check(args, kTypes);
    return neural_memory::GatedMemory(device_, args);
  }
  bool HeldMemory(const HeldMemoryArgs& args) override {
    Check(args, kTypes);
    return neural_memory::HeldMemory(device_, args);
  }
  void SettleNetwork(const SettleNetworkArgs& args) override {
    Check(args, kTypes);
    neural_memory::SettleNetwork(device_, args);
  }
  bool TurnedAttention(const TurnedAttentionArgs& args) override {
    Check(args, kTypes);
    return attention::TurnedAttention(device_, args);
  }
  std::unique_ptr<DecodeProgram> CompileDecode(std::span<const DecodeLayer> layers,
                                               const DecodeHead* head) override {
    return decode::stack::CompileDecode(device_, layers, head);
  }

 private:
  Device& device_;
  sampling::Draws draws_{device_};
};

}  // namespace mneme::cuda
