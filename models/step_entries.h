// The entries of a step, as a layer with memories sees them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"

namespace mneme {

// A token becomes one entry for each memory that it goes through. Without a router there is one
// memory, and the entries are the step's tokens; with one (MemoryRouter) they are what Dispatch
// makes of them, and the last four tensors are there.
struct StepEntries {
  TensorView x;  // [tokens, model_dim] the tokens, normed, as LinearArgs::x
  int64_t tokens = 0;
  int64_t count = 0;  // entries
  Segments segments;
  TensorView entry_tokens;   // [count] i32: the token of each entry
  TensorView token_entries;  // [tokens, choices] i32: the entry of each choice
  TensorView group_offsets;  // [memories + 1] i32: memory m has entries [m] to [m + 1]
  TensorView weights;        // [tokens, top_k] act: of what the chosen memories answer

  bool routed() const { return !entry_tokens.empty(); }
};

// Norms a step's tokens for `products`; without a router they are the entries, in the rows' one
// memory (ForwardContext::row_index). In the caller's workspace scope.
inline StepEntries EnterRows(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                             std::span<const std::span<const PackedMatrix>> products) {
  const TensorView x = ctx.TempForProducts(hidden.shape, products);
  ApplyNorm(ctx.kernels(), norm, hidden, x);
  const int tokens = ctx.batch.tokens;
  return {.x = x, .tokens = tokens, .count = tokens, .segments = ctx.row_index.segments};
}

// Temporaries for the segments that Dispatch makes of `memories` memories and the step's rows.
inline Segments TempSegments(ForwardContext& ctx, int memories) {
  const int count = memories * ctx.batch.rows;
  return {.count = count,
          .offsets = ctx.TempIndices({count + 1}),
          .slots = ctx.TempIndices({count}),
          .memories = ctx.TempIndices({count}),
          .fresh = ctx.TempIndices({count}),
          .longest = ctx.batch.longest_row,
          .longer = memories * ctx.batch.longer_rows};
}

}  // namespace mneme
