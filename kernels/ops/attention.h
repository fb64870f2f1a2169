// Attention to what a session was fed, whose keys and values are kept as a growing state.
// kernels/kernels.h has the conventions.
//
// Keys and values, the *context* of a session, lie in blocks of kContextBlock positions each, and
// kernels reach a block through a table alone. Whoever owns the memory says where blocks are: they
// may lie one behind the other in a slab, as today, or be pages from anywhere; a ring is a table
// with fewer blocks than a session has positions. Position p of slot s lies
//   in block (p / kContextBlock) % blocks of that slot's row of the table,
//   in row p % kContextBlock of the block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme {

// Positions in a block. Blocks begin at multiples of it, whatever steps a text came in.
constexpr int kContextBlock = 64;

// The blocks of every session, for fields that are filled alike.
struct ContextTable {
  std::byte* base = nullptr;
  TensorView offsets;  // [slots, blocks] i64: bytes from `base` to the first byte of the block

  int64_t blocks() const { return offsets.shape[1]; }
  // The most positions that a session can hold at once.
  int64_t positions() const { return blocks() * kContextBlock; }
};

// One field of every context: kContextBlock rows in every block, a position each.
struct ContextView {
  ContextTable table;
  int64_t offset = 0;     // bytes from a block's first byte to its first row
  int64_t row_bytes = 0;  // distance between rows
  DType dtype = DType::kF32;

  // The row of position p, on the host alone, as StateView::At.
  std::byte* At(int64_t slot, int64_t position) const {
    const int64_t block = position / kContextBlock % table.blocks();
    return table.base + table.offsets.as<int64_t>()[slot * table.blocks() + block] + offset +
           position % kContextBlock * row_bytes;
  }
};

// Causal softmax attention (arXiv:1706.03762), over a window where there is one
// (arXiv:2004.05150), with grouped heads (arXiv:2305.13245). For the token at position p of its
// session, and query head h with the head g = h / (heads / kv_heads) of keys and values:
//   w_j = exp(scale q_h . k_j,g) / sum_i exp(scale q_h . k_i,g),     out_h = sum_j w_j v_j,g
//   j, i from max(0, p - window + 1), or 0 without a window, to p
// Keys and values of positions before the step are read through the table, those of the step from
// k and v, rounded to the dtypes of `keys` and `values` as if they had been stored before: a
// prompt's result does not depend on how it was split. Then the step's keys and values are stored,
// of more than a table holds the last ones. No more rows of the table are written.
//
// With a prefix, its rows come first, and every token sees all of them, whatever the window:
// j, i also go over prefix_keys and prefix_values. They are the same for all sessions, and no
// positions.
//
// With a segment, j, i go from p - p % segment to p: positions are cut into pieces that see nothing
// of each other. Positions may have two keys and values, the second of other_k and other_v, which
// are seen together.
//
// A session's last token has to be at a position below keys.table.positions(), unless there is a
// window or a segment, which then must not be wider than that.
struct AttentionArgs {
  TensorView q;            // [tokens, heads, key_dim] act; kv_heads divide heads
  TensorView k;            // [tokens, kv_heads, key_dim] act
  TensorView v;            // [tokens, kv_heads, value_dim] act
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64: tokens that the row's slab was fed before this step
  int longest_row = 0;     // tokens of the longest row; 0: not known
  int window = 0;          // positions that a token sees, its own included; 0: all
  float scale = 1.0f;
  ContextView keys;                      // rows of [kv_heads, key_dim]
  ContextView values;                    // rows of [kv_heads, value_dim]; of the same table
  TensorView prefix_keys;                // [rows, kv_heads, key_dim] act, or empty
  TensorView prefix_values;              // [rows, kv_heads, value_dim] act
  int segment = 0;                       // positions of one; 0: none. Without a window
  TensorView other_k, other_v;           // as k and v, or empty
  ContextView other_keys, other_values;  // as keys and values, where other_k is there
  TensorView out;                        // [tokens, heads, value_dim] act
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  virtual void Attention(const AttentionArgs& args) = 0;
};

}  // namespace mneme
