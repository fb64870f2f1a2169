// The merging of byte pair encoding: of all neighbours that merge, those of the lowest rank become
// one, the leftmost first, until none do.
#pragma once

#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/work_meter.h"
#include "tokenizers/huggingface/merge_table.h"

namespace mneme {

// A word of prose fits without an allocation.
using SymbolBuffer = absl::InlinedVector<int32_t, 64>;

// Merges `symbols` in place. What a merge makes has to be longer than both of its halves, so that
// no merge undoes another. Time is n log n in the number of symbols, the counted work linear.
// Errors are those of `meter`.
absl::Status MergeSymbols(const MergeTable& merges, WorkMeter& meter, SymbolBuffer& symbols);

// Its two ways, which give the same: that of few symbols, whose time is quadratic, and that of
// many.
inline constexpr size_t kFewSymbols = 64;
// At most kFewSymbols; returns how many are left.
size_t MergeFewSymbols(const MergeTable& merges, std::span<int32_t> symbols);
absl::Status MergeManySymbols(const MergeTable& merges, WorkMeter& meter, SymbolBuffer& symbols);

}  // namespace mneme
