// What a draw leaves for the step that follows it.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace mneme::cuda {

// SampleArgs::next_tokens and next_slots of a row, by one thread; null: nobody wants them. On the
// host it is SampleArgs::WriteNextInputs.
__device__ inline void WriteNextInputs(int32_t token, const int32_t (&end_tokens)[kMaxRowEndTokens],
                                       int64_t row, int32_t* next_tokens, int32_t* next_slots) {
  if (next_tokens == nullptr) return;
  bool ends = token < 0;
#pragma unroll
  for (const int32_t end : end_tokens) ends |= token == end;
  next_tokens[row] = max(token, 0);
  if (ends) next_slots[row] = -1;
}

}  // namespace mneme::cuda
