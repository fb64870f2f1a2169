#include "kernels/cut_rows.h"

#include <algorithm>

namespace mneme {

void CutRowsOnHost(const CutRowsArgs& args) {
  const int64_t rows = args.slots.shape[0], room = args.part_tokens.shape[0];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  auto* const part_offsets = args.part_offsets.as<int32_t>();
  auto* const part_tokens = args.part_tokens.as<int32_t>();
  auto* const places = args.places.as<int32_t>();
  std::fill_n(places, args.places.shape[0], static_cast<int32_t>(room));
  int32_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t slot = args.slots.as<int32_t>()[row];
    const int64_t first = args.positions.as<int64_t>()[row];
    const int64_t end = first + offsets[row + 1] - offsets[row];
    // Of the segment, as positions.
    const int64_t begin_segment = (first / args.segment + args.round) * args.segment;
    const int64_t begin = std::clamp(begin_segment, first, end);
    const int64_t stop = std::clamp(begin_segment + args.segment, first, end);
    part_offsets[row] = count;
    args.part_slots.as<int32_t>()[row] = slot;
    args.part_positions.as<int64_t>()[row] = begin;
    if (slot < 0) continue;
    for (int64_t p = begin; p < stop; ++p) {
      const auto token = static_cast<int32_t>(offsets[row] + p - first);
      part_tokens[count] = token;
      places[token] = count++;
    }
  }
  part_offsets[rows] = count;
  part_offsets[rows + 1] = static_cast<int32_t>(room);
  args.part_slots.as<int32_t>()[rows] = -1;
  args.part_positions.as<int64_t>()[rows] = 0;
  std::fill(part_tokens + count, part_tokens + room, 0);
}

}  // namespace mneme
