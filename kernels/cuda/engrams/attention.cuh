// What the kernels of attention to engrams share.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/field.cuh"
#include "kernels/cuda/common/read_output.cuh"
#include "kernels/ops/engrams.h"

namespace mneme::cuda::engrams {

struct AttendProblem {
  const float* q;
  const int32_t *row_offsets, *slots;
  const int64_t* positions;
  int rows, tokens, heads, dim, segment, first, most, layer, recalled;
  EngramFact counted;
  float scale;
  Field keys, values, facts, sums;
  float* out;   // or bf16, if it
  bool rounds;  // and rows have one token each
  // Of steps with prompts that add weights up, in scratch memory: the weights, [tokens, heads,
  // recalled], or, of tiles, log2 of their totals, [tokens, heads].
  float* weights;

  __device__ ReadOutput output() const { return {out, rounds}; }
};
AttendProblem ProblemOf(const EngramAttentionArgs& args);

// The engrams that tokens of a row see.
__device__ inline int SeenBy(const AttendProblem& p, int row) {
  if (p.positions[row] < p.segment) return 0;
  return p.facts.At<const int32_t>(p.slots[row], 0)[p.counted];
}

// On tensor cores, of any step: keys and values of bf16, aligned, of up to kMostTileDim columns, in
// eights.
constexpr int kMostTileDim = 128;
void AttendTiles(Device& device, AttendProblem problem);

// Of steps with as many rows as tokens: keys and values of bf16, aligned, of up to kMostLaneDim
// columns, in eights, and few enough for shared memory.
constexpr int kMostLaneDim = 128, kMostLaneEngrams = 2048;
bool TakesLanes(const AttendProblem& problem);
void AttendLanes(Device& device, const AttendProblem& problem);

}  // namespace mneme::cuda::engrams
