// Shape checks of every operation, the same for all backends: what kernels.h says of dtypes and
// shapes, as far as the host can see it. A wrong one is our own bug and CHECK-fails with the name
// of the argument, what it is and what was expected. What tensors hold (ids, offsets) is not looked
// at.
#pragma once

#include <span>

#include "kernels/decode_step.h"
#include "kernels/held_steps.h"
#include "kernels/kernels.h"
#include "kernels/layer_norm_step.h"
#include "kernels/recurrent_steps.h"
#include "kernels/stream_steps.h"
#include "kernels/tensor_view.h"

namespace mneme {

// The element types that a backend's operations take.
struct ActivationTypes {
  DType act = DType::kF32;
  // Whether they may be bf16 or f16 instead (Backend::product_dtype, output_dtype): in which
  // arguments, the operations themselves know.
  bool takes_rounded = false;

  bool Take(DType dtype) const {
    return dtype == act || (takes_rounded && (dtype == DType::kBF16 || dtype == DType::kF16));
  }
};

void Check(const EmbeddingArgs& args, ActivationTypes types);
void Check(const AddPositionsArgs& args, ActivationTypes types);
void Check(const PositionLayerArgs& args, ActivationTypes types);
void Check(const GatherRowsArgs& args, ActivationTypes types);
void Check(const BanTokensArgs& args, ActivationTypes types);
void Check(const RmsNormArgs& args, ActivationTypes types);
void Check(const LayerNormArgs& args, ActivationTypes types);
void Check(const LinearArgs& args, ActivationTypes types);
void Check(const AddBiasArgs& args, ActivationTypes types);
void Check(const ActivateArgs& args, ActivationTypes types);
void Check(const MultiplyArgs& args, ActivationTypes types);
void Check(const AddScaledArgs& args, ActivationTypes types);
void Check(const SwiGluArgs& args, ActivationTypes types);
void Check(const L2NormArgs& args, ActivationTypes types);
void Check(const SumNormArgs& args, ActivationTypes types);
void Check(const DivideArgs& args, ActivationTypes types);
void Check(const SoftmaxArgs& args, ActivationTypes types);
void Check(const FeatureMapArgs& args, ActivationTypes types);
void Check(const GatedRmsNormArgs& args, ActivationTypes types);
void Check(const RopeArgs& args, ActivationTypes types);
void Check(const RouteTopKArgs& args, ActivationTypes types);
void Check(const DispatchArgs& args, ActivationTypes types);
void Check(const IndexRowsArgs& args, ActivationTypes types);
void Check(const CutRowsArgs& args, ActivationTypes types);
void Check(const ExpandRowsArgs& args, ActivationTypes types);
void Check(const MixMemoriesArgs& args, ActivationTypes types);
void Check(const ShortConvArgs& args, ActivationTypes types);
void Check(const DeltaGatesArgs& args, ActivationTypes types);
void Check(const DecayGatesArgs& args, ActivationTypes types);
void Check(const MatrixMemoryArgs& args, ActivationTypes types);
void Check(const TokenShiftArgs& args, ActivationTypes types);
void Check(const Rwkv7GatesArgs& args, ActivationTypes types);
void Check(const ValueResidualArgs& args, ActivationTypes types);
void Check(const Rwkv7OutputArgs& args, ActivationTypes types);
void Check(const SelectiveScanArgs& args, ActivationTypes types);
void Check(const DiscretizeArgs& args, ActivationTypes types);
void Check(const AttentionArgs& args, ActivationTypes types);
void Check(const NeuralMemoryArgs& args, ActivationTypes types);
void Check(const KeepGateArgs& args, ActivationTypes types);
void Check(const ChunkMeanArgs& args, ActivationTypes types);
void Check(const FindCrossingsArgs& args, ActivationTypes types);
void Check(const CommitEngramsArgs& args, ActivationTypes types);
void Check(const EncodeTokensArgs& args, ActivationTypes types);
void Check(const ReadEncoderArgs& args, ActivationTypes types);
void Check(const WriteEngramsArgs& args, ActivationTypes types);
void Check(const ScoreEngramsArgs& args, ActivationTypes types);
void Check(const RetrieveEngramsArgs& args, ActivationTypes types);
void Check(const GatherEngramsArgs& args, ActivationTypes types);
void Check(const StoreEngramContextArgs& args, ActivationTypes types);
void Check(const EngramAttentionArgs& args, ActivationTypes types);
void Check(const AddFromArgs& args, ActivationTypes types);
void Check(const ChunkPoolArgs& args, ActivationTypes types);
void Check(const SurpriseArgs& args, ActivationTypes types);
void Check(const ExpandStreamsArgs& args, ActivationTypes types);
void Check(const ReadStreamsArgs& args, ActivationTypes types);
void Check(const WriteStreamsArgs& args, ActivationTypes types);
void Check(const SumStreamsArgs& args, ActivationTypes types);
void Check(const MixViewsArgs& args, ActivationTypes types);
void Check(const IndexWholeSegmentsArgs& args, ActivationTypes types);
void Check(const SegmentAttentionArgs& args, ActivationTypes types);
void Check(const SampleArgs& args, ActivationTypes types);
void Check(const NormedProductsStepArgs& args, ActivationTypes types);
void Check(const ResidualProductStepArgs& args, ActivationTypes types);
void Check(const EngramReadStepArgs& args, ActivationTypes types);
void Check(const NormedConvolutionStepArgs& args, ActivationTypes types);
void Check(const NormedGateStepArgs& args, ActivationTypes types);

// Operations that stand for several (checks/fused.cc): each part as by itself, and that a part
// is fed what the one ahead of it leaves.
void Check(const DeltaMixerStepArgs& args, ActivationTypes types);
void Check(const FeedForwardStepArgs& args, ActivationTypes types);
void Check(const RmsNormArgs& norm, const PackedMatrix& router, RouteTopKArgs route,
           ActivationTypes types);
void Check(const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm, ActivationTypes types);
void Check(LayerNormArgs norm, const TokenShiftArgs& shift, ActivationTypes types);
void Check(const SwiGluProductArgs& args, ActivationTypes types);
void Check(const ActivatedProduct& args, ActivationTypes types);
void Check(const MemoryStream& stream, ActivationTypes types);
void Check(const DeltaMemoryPassArgs& args, ActivationTypes types);
void Check(const MatrixMemoryStepArgs& args, ActivationTypes types);
void Check(const NeuralMemoryStepArgs& args, ActivationTypes types);
void Check(const HeldMemoryArgs& args, ActivationTypes types);
void Check(const NeuralMemoryOutputArgs& args, ActivationTypes types);
void Check(const Rwkv7StepArgs& args, ActivationTypes types);
void Check(const Rwkv7LayerStepArgs& args, ActivationTypes types);
void Check(const Mamba2StepArgs& args, ActivationTypes types);
void Check(const Mamba2LayerStepArgs& args, ActivationTypes types);
void Check(const Mamba2OutputArgs& args, ActivationTypes types);
void Check(const PassStreamsArgs& args, ActivationTypes types);
void Check(const GatedMemoryArgs& args, ActivationTypes types);
void Check(const TurnedAttentionArgs& args, ActivationTypes types);
void Check(const SettleArgs& args, ActivationTypes types);
void Check(const SettleNetworkArgs& args, ActivationTypes types);

template <typename Args>
void CheckAll(std::span<const Args> all, ActivationTypes types) {
  for (const Args& args : all) Check(args, types);
}

}  // namespace mneme
