// The step after a draw, as the draw leaves it.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace mneme::cuda::sampling {

// SampleArgs::next_tokens and the two after it; all null: nobody wants them.
struct NextInputs {
  int32_t* tokens;
  int32_t* slots;
  int64_t* positions;
};

inline NextInputs NextInputsOf(const SampleArgs& args) {
  return {args.next_tokens.as<int32_t>(), args.next_slots.as<int32_t>(),
          args.next_positions.as<int64_t>()};
}

// Those of a row, by one thread. On the host it is SampleArgs::WriteNextInputs.
__device__ inline void WriteNextInputs(int32_t token, const int32_t (&end_tokens)[kMaxRowEndTokens],
                                       int64_t row, const NextInputs& next) {
  if (next.tokens == nullptr) return;
  bool ends = token < 0;
#pragma unroll
  for (const int32_t end : end_tokens) ends |= token == end;
  next.tokens[row] = max(token, 0);
  if (ends) {
    next.slots[row] = -1;
  } else {
    ++next.positions[row];
  }
}

}  // namespace mneme::cuda::sampling
