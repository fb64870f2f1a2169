// Memories that are matrices and what stands in front of them: kernels/kernels.h says what is
// computed.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory {

// matrix_memory/short_conv.cu
void ShortConv(Device& device, std::span<const ShortConvArgs> convolutions);
// What ShortConv does to the windows, without its outputs.
void MoveWindows(Device& device, std::span<const ShortConvArgs> convolutions);

// matrix_memory/decay_gates.cu
void DecayGates(Device& device, const DecayGatesArgs& args);

// matrix_memory/matrix_memory.cu: any rule. Hands it to the kernels that know it best. `early`: the
// kernel ahead of it lets its successor start only after all before it have ended, so that state
// and segments may be read while it still runs.
void MatrixMemory(Device& device, const MatrixMemoryArgs& args, bool early = false);

// matrix_memory/streams.cu: the streams as one kernel, then the rule.
bool MatrixMemoryStep(Device& device, const MatrixMemoryStepArgs& args);
// The streams alone, of segments of one entry. False if they are others, and nothing was done;
// `launched`: whether there was anything to do. Then memories may follow it as `early` has it.
// `known`: the segments are those of IndexRows, known before a step's first layer begins; windows
// are then read, and what follows starts, while the kernel ahead still runs.
bool LaunchStreams(Device& device, std::span<const MemoryStream> streams, const Segments& segments,
                   bool* launched, bool known = false);

// matrix_memory/gated_delta_rule.cu. Segments of one entry take the decode path, longer ones, if
// segments.longest > 1, either go token by token (compute dtype kF32) or through the chunked form.
// Keeps, folds and uses the pending writes, if there are any.
// Of the rule only what IsGatedDelta() says; without log_decay nothing decays.
void GatedDeltaRule(Device& device, const MatrixMemoryArgs& args);
bool IsGatedDelta(const MatrixMemoryArgs& args);
// L2Norm of q and of k, DeltaGates and MatrixMemory, for segments of one entry: as one kernel, if
// the shape allows. What lies between is as DeltaMemoryPassArgs says.
struct DecodeMemoriesArgs {
  QueryKeyNorms norms;
  const DeltaGatesArgs& gates;
  const MatrixMemoryArgs& rule;
  // For each segment whether all of its memory will be stored, or null. Only where it and the
  // segments were complete before the kernel ahead of this one let its successor start.
  const int32_t* folding = nullptr;
};
void DecodeMemories(Device& device, const DecodeMemoriesArgs& args);
void SettleMemories(Device& device, const SettleArgs& args);
// Takes segments of one entry, and longer ones if they go through the chunked form.
bool DeltaMemoryPass(Device& device, const DeltaMemoryPassArgs& args);

}  // namespace mneme::cuda::matrix_memory
