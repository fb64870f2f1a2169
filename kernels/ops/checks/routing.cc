#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const RouteTopKArgs& args, ActivationTypes types) {
  const int64_t tokens = args.logits.shape[0], memories = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];
  CHECK(top_k >= 1 && top_k <= memories) << "top_k " << top_k << " of " << memories;
  Expect(args.logits, types, {tokens, memories}, "logits");
  Expect(args.indices, DType::kI32, {tokens, top_k}, "indices");
  Expect(args.weights, types, {tokens, top_k}, "weights");
  if (!args.forced.empty()) Expect(args.forced, DType::kI32, {tokens, top_k}, "forced");
}

void Check(const DispatchArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0];
  const int64_t tokens = args.token_entries.shape[0], choices = args.token_entries.shape[1];
  const int64_t top_k = choices - (args.shared ? 1 : 0);
  const int64_t groups = args.memories + (args.shared ? 1 : 0);
  CHECK(args.memories > 0 ? top_k >= 1 && top_k <= args.memories : top_k == 0)
      << "top_k " << top_k << " of " << args.memories;
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  if (top_k > 0) Expect(args.indices, DType::kI32, {tokens, top_k}, "indices");
  Expect(args.entry_tokens, DType::kI32, {tokens * choices}, "entry_tokens");
  Expect(args.token_entries, DType::kI32, {tokens, choices}, "token_entries");
  Expect(args.group_offsets, DType::kI32, {groups + 1}, "group_offsets");
  CHECK_EQ(args.segments.count, groups * rows) << "segments";
  Check(args.segments);
  CHECK(args.written.dtype == DType::kU8) << "written is " << Name(args.written.dtype);
}

void Check(const IndexRowsArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0];
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  Expect(args.token_positions, DType::kI64, {args.token_positions.shape[0]}, "token_positions");
  CHECK_EQ(args.segments.count, rows) << "segments";
  Check(args.segments);
}

void Check(const CutRowsArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0], tokens = args.places.shape[0];
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  CHECK(args.segment >= 1 && args.round >= 0)
      << "round " << args.round << " of segments of " << args.segment;
  CHECK_GE(args.part_tokens.shape[0], std::min(tokens, rows * args.segment)) << "room";
  Expect(args.part_offsets, DType::kI32, {rows + 2}, "part_offsets");
  Expect(args.part_slots, DType::kI32, {rows + 1}, "part_slots");
  Expect(args.part_positions, DType::kI64, {rows + 1}, "part_positions");
  Expect(args.part_tokens, DType::kI32, {args.part_tokens.shape[0]}, "part_tokens");
  Expect(args.places, DType::kI32, {tokens}, "places");
}

void Check(const ExpandRowsArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0];
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  CHECK(args.tokens >= 0 && args.sources.shape[0] >= args.tokens)
      << args.sources.shape[0] << " places for " << args.tokens << " tokens";
  Expect(args.picks, DType::kI32, {args.picks.shape[0]}, "picks");
  Expect(args.wide_offsets, DType::kI32, {rows + 2}, "wide_offsets");
  Expect(args.wide_slots, DType::kI32, {rows + 1}, "wide_slots");
  Expect(args.wide_positions, DType::kI64, {rows + 1}, "wide_positions");
  Expect(args.sources, DType::kI32, {args.sources.shape[0]}, "sources");
  Expect(args.wide_picks, DType::kI32, {args.picks.shape[0]}, "wide_picks");
  if (!args.places.empty()) Expect(args.places, DType::kI32, {args.tokens}, "places");
}

void Check(const MixMemoriesArgs& args, ActivationTypes types) {
  const int64_t tokens = args.y.shape[0], dim = args.y.shape[1];
  const int64_t columns = args.token_entries.shape[1];
  const int64_t top_k = args.weights.empty() ? 0 : args.weights.shape[1];
  CHECK(columns == top_k || columns == top_k + 1) << columns << " columns, top_k " << top_k;
  Expect(args.x, types, {args.x.shape[0], dim}, "x");
  Expect(args.token_entries, DType::kI32, {tokens, columns}, "token_entries");
  if (top_k > 0) Expect(args.weights, types, {tokens, top_k}, "weights");
  Expect(args.y, types, {tokens, dim}, "y");
}

}  // namespace mneme
