// The kernels of attention share this: the operation's arguments, where its tokens and positions
// are, and what several blocks of threads that share a token leave behind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/read_output.cuh"
#include "kernels/cuda/common/row_at.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::attention {

struct Field {
  const std::byte* base;
  const int64_t* offsets;  // [slots, blocks]
  int64_t blocks, offset, row_bytes;

  // The first row of a block of positions.
  __device__ std::byte* Block(int64_t slot, int64_t block) const {
    return const_cast<std::byte*>(base) + offsets[slot * blocks + block % blocks] + offset;
  }
};

struct Problem {
  const float* q;
  const float *k[2], *v[2];  // one or two of each position
  int kinds;
  const int32_t *row_offsets, *slots;
  const int64_t* positions;
  int rows, heads, kv_heads, key_dim, value_dim, window, segment;
  float scale;
  Field keys[2], values[2];
  const float *prefix_keys, *prefix_values;
  int prefix;   // rows of them
  float* out;   // or bf16, if it
  bool rounds;  // and each row has one token
  // With splits > 1: largest score, total of weights and sums of values, for each token, head and
  // split.
  float *largest, *total, *sums;
  int splits;

  // The first position that a session's position sees, its prefix aside.
  __device__ int64_t First(int64_t position) const {
    return window > 0    ? max(int64_t{0}, position - window + 1)
           : segment > 0 ? position - position % segment
                         : int64_t{0};
  }
  __device__ ReadOutput output() const { return {out, rounds}; }
  __host__ __device__ int prefix_blocks() const {
    return (prefix + kContextBlock - 1) / kContextBlock;
  }
};

// What an operation is about, and how many blocks of positions, those of a prefix first, a token
// may see.
Problem ProblemOf(const AttentionArgs& args);
int64_t MostBlocks(const AttentionArgs& args);
// Whether the step's keys and values may be stored before it: of a ring, its last tokens take the
// place of what lies a whole ring before them.
bool MayStoreFirst(const AttentionArgs& args);
// Whether its products are rounded, as kernels for tensor cores have them.
bool TakesTensorCores(const Device& device, const Problem& problem, const AttentionArgs& args);

// The last row that begins at `token` or before it.
__device__ inline int RowOf(const Problem& p, int token) {
  return RowAt(p.row_offsets, p.rows, token);
}

constexpr int kMostSplits = 64;  // that share a token's positions
// Makes room in the device's scratch memory for what `splits` parts of every token and head find.
void AllocateParts(Device& device, Problem& problem, int64_t tokens);
// Puts together what they have found, as out.
void CombineParts(Device& device, const Problem& problem, int64_t tokens);

// On tensor cores, products of bf16: heads of up to kMostTensorCoreDim, in eights, all aligned;
// keys and values of bf16. A step of single tokens, which are stored too, `most_blocks` being the
// blocks of positions that one may see.
constexpr int kMostTensorCoreDim = 128;
void AttendSingleTokens(Device& device, const Problem& problem, int64_t tokens,
                        int64_t most_blocks);
// Of those, heads with keys and values of their own, in up to kMostOwnBlocks blocks: without a
// prefix, a window or second keys.
constexpr int kMostOwnBlocks = kWarp;
bool TakesOwnHeads(const Problem& problem, int64_t most_blocks);
void AttendOwnHeads(Device& device, const Problem& problem, int64_t tokens, int64_t most_blocks);
// Takes any step; Hopper's code. `copies`: the step's keys and values are not in the table yet.
void AttendPrompts(Device& device, const Problem& problem, int64_t tokens, bool copies);

}  // namespace mneme::cuda::attention
