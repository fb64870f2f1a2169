// Which memories the tokens of a step go to, the entries and segments that follow, and the way back
// from entries to tokens. kernels/kernels.h has the conventions.
#pragma once

#include <cstdint>

#include "kernels/inserted_positions.h"
#include "kernels/ops/dense.h"
#include "kernels/tensor_view.h"

namespace mneme {

// Top-k routing, MoM (arXiv:2502.13685) eq. (3)-(4) as released:
//   p = softmax(logits) over all memories
//   indices = those of the top_k largest p, largest first, ties to the lower index
//   weights = their p, renormalised to sum 1
// Softmax is monotone, so the choice compares the (rounded) logits: a p that underflows to zero
// does not change it. Renormalising cancels the other memories: weights = softmax over the chosen
// logits. With `forced` the indices are given, in any order, and only the weights are computed.
// Indices are distinct and in range whatever the logits are, NaN included.
struct RouteTopKArgs {
  TensorView logits;  // [tokens, memories] act
  // kBF16: logits are rounded to bf16 first, as a bf16 model does.
  DType round_logits = DType::kF32;
  TensorView forced;   // [tokens, top_k] i32, or empty
  TensorView indices;  // [tokens, top_k] i32, out
  TensorView weights;  // [tokens, top_k] act, out
};

// Runs of entries that go, in order, through one memory of one slab.
// Segment s owns entries [offsets[s], offsets[s+1]), which may be empty.
struct Segments {
  int count = 0;
  TensorView offsets;   // [count + 1] i32
  TensorView slots;     // [count] i32, < 0: padding
  TensorView memories;  // [count] i32
  // [count] i32; 1: the memory was never written and reads as its initial value, zero. Only
  // segments that have entries may be fresh.
  TensorView fresh;
  // No segment has more entries than this. 0: not known. What a device chooses its kernels by,
  // since the offsets are known on the device only.
  int longest = 0;
  // No more segments than this have more than one entry. 0: not known.
  int longer = 0;
};

// What follows from the rows of a step alone, for all of its layers: the position of each token,
// and segments for memories that every token of a row goes to, which are the rows themselves. A
// memory is fresh at position 0. Positions count from the first thing that slabs were ever fed: of
// a prefix that all of them begin with, if there is one.
struct IndexRowsArgs {
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64: tokens that the row's slab was fed before this step
  int64_t prefix = 0;      // what it was fed before its first token; added to all positions
  // Outputs. Of the segments, count = rows, `memories` and `fresh` are written; offsets and slots
  // are row_offsets and slots.
  TensorView token_positions;  // [tokens] i64; of padding rows: any number from 0 on
  Segments segments;
};

// A part of a step as a step of its own: of each row the tokens that lie in one segment of
// positions, the `round`-th from that of its first token on. So layers whose segments follow from
// one another take a step segment by segment. Rows that are padding have no tokens in any round.
// The part has one row more than the step, which is padding: what is left of its tokens.
struct CutRowsArgs {
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64
  int64_t segment = 1;     // positions of one
  int round = 0;           // from 0
  // Outputs. The part has room for `room` tokens: min(tokens, rows * segment) are enough.
  TensorView part_offsets;    // [rows + 2] i32
  TensorView part_slots;      // [rows + 1] i32
  TensorView part_positions;  // [rows + 1] i64
  TensorView part_tokens;     // [room] i32: the step's token that each is; of padding: 0
  // [tokens] i32: the place in the part of those tokens of the step that are in it; of all other
  // tokens, those of padding rows included: room.
  TensorView places;
};

// A step as its layers see it, where they have positions that are no tokens: each row with those
// inserted in front of its tokens. Nothing is inserted into padding rows. The wide step has one row
// more, which is padding: what is left of its places.
struct ExpandRowsArgs {
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64
  int64_t tokens = 0;
  InsertedPositions inserted;
  TensorView picks;  // [n] i32: tokens of the step
  // Outputs. The wide step has room for `room` positions: tokens + inserted.Most(tokens, rows) are
  // enough, or as many as there are.
  TensorView wide_offsets;    // [rows + 2] i32
  TensorView wide_slots;      // [rows + 1] i32
  TensorView wide_positions;  // [rows + 1] i64
  // [room] i32: the token of the step that each is; of the j-th that are inserted in front of a
  // token, tokens + j; of padding, 0.
  TensorView sources;
  TensorView wide_picks;  // [n] i32: where the picks are
  TensorView places;      // [tokens] i32: where all tokens are; or empty
};

// Sorts a step's (token, memory) pairs into entries: by memory, then by row, then in token order.
// So a memory's projection sees one contiguous range, and its recurrence one segment per row:
// segment s = memory * rows + row. With `shared` every token also goes to one more memory, whose
// index is `memories`. Tokens of padding rows become entries too, in segments with slot < 0.
//
// `written` holds one u8 flag per memory in each slab (0 in a new slab). A segment that has entries
// and whose flag is 0 is fresh; the flag is then set to 1. So a new session needs no cleared
// matrices, only cleared flags.
struct DispatchArgs {
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32
  TensorView indices;      // [tokens, top_k] i32 in [0, memories); empty if memories == 0
  int memories = 0;        // routed memories
  bool shared = false;
  StateView written;  // u8 per slab: [memories + shared]
  // Outputs; entries = tokens * (top_k + shared).
  TensorView entry_tokens;   // [entries] i32: the token of each entry
  TensorView token_entries;  // [tokens, top_k + shared] i32: the entry of each choice, shared last
  TensorView group_offsets;  // [memories + shared + 1] i32
  Segments segments;         // count = (memories + shared) * rows
};

// y[t] = sum_j weights[t, j] * x[token_entries[t, j]]  (+ x[token_entries[t, top_k]])
// The routed memories' outputs weighted, then the shared memory's, if token_entries has that
// column, with weight 1. Summed in column order.
struct MixMemoriesArgs {
  TensorView x;              // [entries, dim] act
  TensorView token_entries;  // [tokens, top_k + shared] i32
  TensorView weights;        // [tokens, top_k] act
  TensorView y;              // [tokens, dim] act
};

class RoutingKernels {
 public:
  virtual ~RoutingKernels() = default;

  virtual void RouteTopK(const RouteTopKArgs& args) = 0;
  virtual void Dispatch(const DispatchArgs& args) = 0;
  virtual void IndexRows(const IndexRowsArgs& args) = 0;
  virtual void CutRows(const CutRowsArgs& args) = 0;
  virtual void ExpandRows(const ExpandRowsArgs& args) = 0;
  virtual void MixMemories(const MixMemoriesArgs& args) = 0;

  // Fused. False: nothing was done, the caller composes the above.

  // RmsNorm, Linear of what it gives with `router`, and RouteTopK of those logits, which are not
  // written (route.logits is empty) and may be of y as it was before it was rounded.
  virtual bool NormAndRoute(const RmsNormArgs& /*norm*/, const PackedMatrix& /*router*/,
                            const RouteTopKArgs& /*route*/) {
    return false;
  }
  // MixMemories, and GatedRmsNorm of what comes out: norm.x is mix.y, which is not written. Its
  // weight is one for all heads.
  virtual bool MixAndNorm(const MixMemoriesArgs& /*mix*/, const GatedRmsNormArgs& /*norm*/) {
    return false;
  }
};

}  // namespace mneme
