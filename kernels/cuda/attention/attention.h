// Attention through tables of blocks: kernels/ops/attention.h says what it computes.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"
#include "kernels/stream_steps.h"

namespace mneme::cuda::attention {

// Keys and values are kept in f32 or bf16, as the views say, and used as they are kept. Sums are
// f32. Where products may round and keys and values are bf16, so are queries and weights, of heads
// of up to kMostTensorCoreDim numbers in eights. Results depend on how many blocks of threads share
// a token's positions, and so on how many tokens the step has: not by more than the order of a sum.
void Attention(Device& device, const AttentionArgs& args);

bool TurnedAttention(Device& device, const TurnedAttentionArgs& args);

}  // namespace mneme::cuda::attention
