#include "kernels/cut_rows.h"

#include <algorithm>

#include "base/log.h"

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
    // The positions at which the segment begins and ends.
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

void ExpandRowsOnHost(const ExpandRowsArgs& args) {
  const int64_t rows = args.slots.shape[0], room = args.sources.shape[0];
  const int64_t picks = args.picks.shape[0];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  auto* const wide_offsets = args.wide_offsets.as<int32_t>();
  auto* const sources = args.sources.as<int32_t>();
  int32_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t slot = args.slots.as<int32_t>()[row];
    const bool padding = slot < 0;
    const int64_t first = padding ? 0 : args.positions.as<int64_t>()[row];
    wide_offsets[row] = count;
    args.wide_slots.as<int32_t>()[row] = slot;
    args.wide_positions.as<int64_t>()[row] = args.inserted.Of(first);
    for (int32_t token = offsets[row]; token < offsets[row + 1]; ++token) {
      const int64_t n = first + token - offsets[row];
      const int64_t inserted = padding ? 0 : args.inserted.Between(n, n + 1);
      for (int64_t j = 0; j < inserted; ++j) {
        sources[count++] = static_cast<int32_t>(args.tokens + j);
      }
      for (int64_t i = 0; i < picks; ++i) {
        if (args.picks.as<int32_t>()[i] == token) args.wide_picks.as<int32_t>()[i] = count;
      }
      if (!args.places.empty()) args.places.as<int32_t>()[token] = count;
      sources[count++] = token;
    }
  }
  CHECK_LE(count, room) << "positions of the step";
  wide_offsets[rows] = count;
  wide_offsets[rows + 1] = static_cast<int32_t>(room);
  args.wide_slots.as<int32_t>()[rows] = -1;
  args.wide_positions.as<int64_t>()[rows] = 0;
  std::fill(sources + count, sources + room, 0);
}

void IndexWholeSegmentsOnHost(const IndexWholeSegmentsArgs& args) {
  const int64_t rows = args.row_positions.shape[0], picks = args.picks.shape[0];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  const int32_t* given = args.token_types.as<int32_t>();
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t first = offsets[row], end = offsets[row + 1];
    int32_t seen = 0;
    int64_t position = args.first_position;
    for (int32_t token = first; token < end; ++token) {
      const int32_t type = given == nullptr ? 0 : given[token];
      if (type >= 0) ++seen;
      args.types.as<int64_t>()[token] = std::max(type, 0);
      const bool counts = args.token_ids.as<int32_t>()[token] != args.skipped;
      args.positions.as<int64_t>()[token] = counts ? position++ : args.first_position - 1;
    }
    args.seen.as<int32_t>()[row] = seen;
    args.next_positions.as<int64_t>()[row] = args.row_positions.as<int64_t>()[row] + args.segment;
    for (int64_t i = 0; i < picks; ++i) {
      const int32_t pick = args.picks.as<int32_t>()[i];
      if (pick >= first && pick < end) args.firsts.as<int32_t>()[i] = first;
    }
  }
}

}  // namespace mneme
