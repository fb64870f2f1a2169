#include "models/step_rounds.h"

#include <algorithm>

namespace mneme {

StepRounds::StepRounds(ForwardContext& ctx, int longest, int segment)
    : ctx_(ctx),
      longest_(longest),
      segment_(segment),
      // A row may begin in the last position of a segment.
      count_((longest - 1 + segment - 1) / segment + 1),
      room_(
          static_cast<int>(std::min<int64_t>(ctx.batch.tokens, int64_t{ctx.batch.rows} * segment))),
      places_(ctx.TempIndices({ctx.batch.tokens})) {}

StepRounds::Round StepRounds::Cut(int round) const {
  const int rows = ctx_.batch.rows;
  const Round part = {.batch = {.tokens = room_,
                                .rows = rows + 1,
                                .longest_row = std::min(longest_, segment_),
                                // Behind the first round rows of one token have none.
                                .crossings = round == 0                   ? ctx_.batch.crossings
                                             : ctx_.batch.longer_rows > 0 ? ctx_.batch.longer_rows
                                                                          : rows,
                                .row_offsets = ctx_.TempIndices({rows + 2}),
                                .slots = ctx_.TempIndices({rows + 1}),
                                .positions = ctx_.workspace.Temp(DType::kI64, {rows + 1})},
                      .tokens = ctx_.TempIndices({room_})};
  ctx_.kernels().CutRows({.row_offsets = ctx_.batch.row_offsets,
                          .slots = ctx_.batch.slots,
                          .positions = ctx_.batch.positions,
                          .segment = segment_,
                          .round = round,
                          .part_offsets = part.batch.row_offsets,
                          .part_slots = part.batch.slots,
                          .part_positions = part.batch.positions,
                          .part_tokens = part.tokens,
                          .places = places_});
  return part;
}

}  // namespace mneme
