// What the kernels of any MatrixRule share: which warp works on what, and where tensors of fewer
// heads than the memory have a head's part.
//
// Rows of a matrix do not mix. A warp holds whole rows, its lanes the elements, and sums over a row
// go through one tree, whatever the kernel, so that tuned kernels agree bit for bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/matrix_memory/memory.cuh"

namespace mneme::cuda::matrix_memory::rules {

// A tensor of activations, [entries, heads, width]; `group` heads of the memory share one.
struct HeadRows {
  const float* data;
  int heads, group;

  __device__ const float* At(int64_t entry, int head, int width) const {
    return data + (entry * heads + (group == 1 ? head : head / group)) * width;
  }
};

// Which segments a launch takes, by their number of entries.
enum class Lengths : uint8_t { kOne, kLonger, kAny };

struct Problem {
  MatrixRule rule;
  HeadRows q, k, v;
  HeadRows decay;         // kHead, kKey, kValue
  const float* constant;  // kConstant
  HeadRows beta, c, e;
  const float* bonus;
  float* out;
  float scale;
  SegmentArrays segments;
  Field state;
  int heads, key_dim, value_dim;
  int tiles;  // of rows, of a head: what a block, or a warp, takes at a time
  Lengths lengths;
  bool early;  // as MatrixMemory() has it
};

// Some rows of a head of a segment's memory, and the entries to take them through.
struct Piece {
  int slot, memory, head, tile;
  int first, length;  // entries
  bool fresh;
};

// The piece number `unit` of all. False if there is nothing to do.
__device__ inline bool FindPiece(const Problem& p, unsigned unit, Piece& piece) {
  const unsigned of_segment = p.heads * p.tiles, s = unit / of_segment;
  const unsigned rest = unit - s * of_segment, head = rest / p.tiles;
  piece.head = static_cast<int>(head);
  piece.tile = static_cast<int>(rest - head * p.tiles);
  piece.slot = __ldcg(p.segments.slots + s);
  piece.memory = __ldcg(p.segments.memories + s);
  piece.first = __ldcg(p.segments.offsets + s);
  piece.length = __ldcg(p.segments.offsets + s + 1) - piece.first;
  piece.fresh = __ldcg(p.segments.fresh + s) != 0;
  if (piece.slot < 0) return false;
  return p.lengths == Lengths::kOne      ? piece.length == 1
         : p.lengths == Lengths::kLonger ? piece.length > 1
                                         : piece.length > 0;
}

// The decay of a row, of every element unless keys have their own.
__device__ inline float RowDecay(const Problem& p, int64_t entry, int head, int row) {
  switch (p.rule.decay) {
    case MatrixRule::Decay::kConstant:
      return expf(p.constant[head]);
    case MatrixRule::Decay::kHead:
      return expf(*p.decay.At(entry, head, 1));
    case MatrixRule::Decay::kValue:
      return expf(p.decay.At(entry, head, p.value_dim)[row]);
    default:
      return 1.0f;
  }
}

}  // namespace mneme::cuda::matrix_memory::rules
