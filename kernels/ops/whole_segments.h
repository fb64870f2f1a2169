// Rows whose tokens see each other in both directions: segments of positions that no step cuts.
// kernels/kernels.h has the conventions, but for one: a row is a whole segment, of which the
// session was fed nothing before the step.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme {

// What follows from the rows of a step. Tokens of padding rows get any number.
struct IndexWholeSegmentsArgs {
  TensorView token_ids;  // [tokens] i32
  // [tokens] i32: the text of a pair that each token is of; below 0: it fills up its row, behind
  // all others. Empty: all are of the first one.
  TensorView token_types;
  TensorView row_offsets;    // [rows + 1] i32
  TensorView row_positions;  // [rows] i64
  int64_t segment = 1;       // positions of one
  // The position of a row's first token. Tokens `skipped` do not count, and have the position
  // before it; below 0: all count.
  int64_t first_position = 0;
  int32_t skipped = -1;
  TensorView picks;  // [n] i32: tokens of the step
  // Outputs.
  TensorView positions;       // [tokens] i64
  TensorView types;           // [tokens] i64: token_types, not below 0
  TensorView seen;            // [rows] i32: tokens of a row that do not fill it up
  TensorView next_positions;  // [rows] i64: row_positions + segment
  TensorView firsts;          // [n] i32: the first token of the row that picks[i] is in
};

// Attention of a row's tokens to its first seen[row] ones (arXiv:1706.03762):
//   w_j = softmax_j( scale q . k_j ),   out = sum_j w_j v_j,   j < seen[row];   0 where that is 0
struct SegmentAttentionArgs {
  TensorView q, k, v;      // [tokens, heads, head_dim] act
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView seen;         // [rows] i32
  float scale = 1.0f;
  TensorView out;  // [tokens, heads, head_dim] act
};

class WholeSegmentKernels {
 public:
  virtual ~WholeSegmentKernels() = default;

  virtual void IndexWholeSegments(const IndexWholeSegmentsArgs& args) = 0;
  virtual void SegmentAttention(const SegmentAttentionArgs& args) = 0;
};

}  // namespace mneme
