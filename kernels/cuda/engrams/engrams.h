// Engrams: kernels/ops/engrams.h says what is computed. What a step's crossings are is known on the
// device only: grids are sized for as many as there may be, and blocks of others leave at once.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::engrams {

void FindCrossings(Device& device, const FindCrossingsArgs& args);
void CommitEngrams(Device& device, const CommitEngramsArgs& args);
void EncodeTokens(Device& device, const EncodeTokensArgs& args);
void ReadEncoder(Device& device, const ReadEncoderArgs& args);
void WriteEngrams(Device& device, const WriteEngramsArgs& args);
void ScoreEngrams(Device& device, const ScoreEngramsArgs& args);
void RetrieveEngrams(Device& device, const RetrieveEngramsArgs& args);
void GatherEngrams(Device& device, const GatherEngramsArgs& args);
void StoreEngramContext(Device& device, const StoreEngramContextArgs& args);
void EngramAttention(Device& device, const EngramAttentionArgs& args);
void AddFrom(Device& device, const AddFromArgs& args);

}  // namespace mneme::cuda::engrams
