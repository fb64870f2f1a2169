// Host functions that launch the CUDA kernels: one for each operation of kernels/kernels.h, which
// says what they compute. They return at once; errors go to Device::Check. Free of Abseil.
//
// Activations are f32 but where product_dtype and output_dtype of the backend say bf16, state is
// f32, f16 or int8 and windows are f32 or bf16, as their StateView says.
#pragma once

#include <span>

#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda {

// elementwise.cu
void Embedding(Device& device, const EmbeddingArgs& args);
void GatherRows(Device& device, const GatherRowsArgs& args);
void BanTokens(Device& device, const BanTokensArgs& args);
void RmsNorm(Device& device, const RmsNormArgs& args);
void SwiGlu(Device& device, const SwiGluArgs& args);
void L2Norm(Device& device, const L2NormArgs& args);
void DeltaGates(Device& device, const DeltaGatesArgs& args);
void GatedRmsNorm(Device& device, const GatedRmsNormArgs& args);

// mix_memories.cu; the second one of heads of up to 256 values.
void MixMemories(Device& device, const MixMemoriesArgs& args);
bool MixAndNorm(Device& device, const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm);

// linear.cu: everything between "a few rows, bound by weight bytes" and "many rows, tensor cores".
void Linear(Device& device, std::span<const LinearArgs> products);
// See Backend::output_dtype.
bool RoundsOutputs(const Device& device, std::span<const PackedMatrix> weights, int64_t rows);
bool SwiGluProduct(Device& device, const SwiGluProductArgs& args);

// routing.cu
void RouteTopK(Device& device, const RouteTopKArgs& args);
void Dispatch(Device& device, const DispatchArgs& args);
// decode_many_routes.cu: of bf16 routers and outputs, on Hopper.
bool NormAndRoute(Device& device, const RmsNormArgs& norm, const PackedMatrix& router,
                  const RouteTopKArgs& route);

// short_conv.cu
void ShortConv(Device& device, std::span<const ShortConvArgs> convolutions);
// What ShortConv does to the windows, without its outputs.
void MoveWindows(Device& device, std::span<const ShortConvArgs> convolutions);

// gated_delta_rule.cu. Segments of one entry take the decode path, longer ones, if
// segments.longest > 1, either go token by token (compute dtype kF32) or through the chunked form
// below. Keeps, folds and uses the pending writes, if there are any.
void GatedDeltaRule(Device& device, const GatedDeltaRuleArgs& args);
// L2Norm of q and of k, DeltaGates and GatedDeltaRule, for segments of one entry: as one kernel, if
// the shape allows. What lies between is as DeltaMemoryPassArgs says.
struct DecodeMemoriesArgs {
  QueryKeyNorms norms;
  const DeltaGatesArgs& gates;
  const GatedDeltaRuleArgs& rule;
  // For each segment whether all of its memory will be stored, or null. Only where it and the
  // segments were complete before the kernel ahead of this one let its successor start.
  const int32_t* folding = nullptr;
};
void DecodeMemories(Device& device, const DecodeMemoriesArgs& args);
void SettleMemories(Device& device, const SettleArgs& args);
// Of segments of one entry; of longer ones, if they go through the chunked form.
bool DeltaMemoryPass(Device& device, const DeltaMemoryPassArgs& args);

// gated_delta_chunk.cu: segments of more than one entry, on tensor cores. Their memories have no
// pending writes (they were settled). Leaves segments of at most one entry alone.
void GatedDeltaChunks(Device& device, const GatedDeltaRuleArgs& args);

// decode_layers.cu: one and two rows, bf16 weights, on Hopper.
DecodeDone DecodeLayers(Device& device, std::span<const DecodeLayerArgs> layers,
                        const DecodeHeadArgs* head);
// decode_many.cu: the same of more rows, and of shapes that DecodeLayers does not take, if products
// may round activations.
bool DeltaMixerStep(Device& device, const DeltaMixerStepArgs& args);
bool FeedForwardStep(Device& device, const FeedForwardStepArgs& args);

// upload.cu: copies whole words from pinned memory.
void Upload(Device& device, void* to, const void* from, int64_t bytes);

}  // namespace mneme::cuda
