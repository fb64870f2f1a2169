// The pairs of a step that is open: of a session's slab, or, where it begins, of what sessions
// begin with.
#pragma once

#include <cstdint>

#include "kernels/cuda/neural_memory/resident/head.cuh"

namespace mneme::cuda::neural_memory::resident {

// A row of an open step's tokens, of the slab or of a memory's initial value; null: zeros.
__device__ inline const float* PendingRow(const StateView& view, const float* initial,
                                          const Segment& segment, bool first, int64_t at) {
  if (!first) return MemoryAt<float>(view, segment.slot, segment.memory) + at;
  return initial == nullptr ? nullptr : initial + at;
}

// Leaves in the slab the pairs of the step that is open behind a segment, whose first position is
// `begin`, and zeros behind them where there were others. The `blocks` that share the head share
// these, too. It is called where a block is about to end, in several places.
static __device__ __noinline__ void KeepPairs(const Params& p, Segment segment, int head,
                                              int64_t begin, int rank, int blocks) {
  const int dim = p.dim, step = p.step, tokens = segment.end - segment.first;
  const bool first = begin == p.first_position;
  const int open = static_cast<int>(begin % step), open_now = (open + tokens) % step;
  const bool steps = open + tokens >= step;
  const int fours = dim / 4, of_row = 2 * fours + 1;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < (step - 1) * of_row; i += kThreads) {
    const int row = i / of_row, item = i % of_row;
    const int e = segment.end - open_now + row;  // the row's entry, if it is of this segment
    const bool is_new = row < open_now && e >= segment.first;
    if (row % blocks != rank || (!is_new && !first && !(steps && row >= open_now))) continue;
    const bool is_initial = first && row < open && row < open_now && !is_new;
    const int64_t held = int64_t{head} * (step - 1) + row;
    if (item == 2 * fours) {
      float rate = 0;
      if (is_new) rate = GateOf(p, p.rate, e, head);
      if (is_initial && p.initial_rate != nullptr) rate = p.initial_rate[held];
      MemoryAt<float>(p.pending_rate, segment.slot, segment.memory)[held] = rate;
      continue;
    }
    const bool is_key = item < fours;
    const int four = item % fours * 4;
    const float* from = is_key ? p.initial_k : p.initial_v;
    if (from != nullptr) from += held * dim;
    if (!is_initial) from = nullptr;
    if (is_new) from = (is_key ? p.k : p.v) + (int64_t{e} * p.heads + head) * dim;
    float* const to =
        MemoryAt<float>(is_key ? p.pending_k : p.pending_v, segment.slot, segment.memory);
    SaveFour(to + held * dim + four, from == nullptr ? float4{} : LoadFour(from + four));
  }
}

}  // namespace mneme::cuda::neural_memory::resident
