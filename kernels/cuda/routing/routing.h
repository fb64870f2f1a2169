// The way of tokens to memories and back: kernels/kernels.h says what is computed.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::routing {

void RouteTopK(Device& device, const RouteTopKArgs& args);
void Dispatch(Device& device, const DispatchArgs& args);

// routing/index_rows.cu
void IndexRows(Device& device, const IndexRowsArgs& args);
void CutRows(Device& device, const CutRowsArgs& args);
void ExpandRows(Device& device, const ExpandRowsArgs& args);

// routing/mix_memories.cu; the second one takes heads of up to 256 values.
void MixMemories(Device& device, const MixMemoriesArgs& args);
bool MixAndNorm(Device& device, const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm);

}  // namespace mneme::cuda::routing
