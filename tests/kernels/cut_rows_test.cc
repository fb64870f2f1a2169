// CutRows: every token is in one round, in the place that it says.

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct CutRow {
  int slot = 0;
  int64_t position = 0;
  int length = 0;
};

class CutRowsTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(CutRowsTest, CutsEveryRowAtItsSegments) {
  const auto backend = GetParam().Make();
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SeededRandom random(seed);
    const int segment = random.Int(1, 9), count = random.Int(1, 6);
    std::vector<CutRow> rows;
    std::vector<int> offsets = {0}, slots;
    std::vector<int64_t> positions;
    int longest = 1;
    for (int r = 0; r < count; ++r) {
      const CutRow row = {random.Chance(0.2) ? -1 : r, random.Int(0, 30),
                          random.Chance(0.2) ? 0 : random.Int(1, 25)};
      rows.push_back(row);
      offsets.push_back(offsets.back() + row.length);
      slots.push_back(row.slot);
      positions.push_back(row.position);
      longest = std::max(longest, row.length);
    }
    const int tokens = offsets.back(), room = std::min(tokens, count * segment);
    if (tokens == 0) continue;
    std::vector<int> seen(static_cast<size_t>(tokens));
    for (int round = 0; round < (longest - 1 + segment - 1) / segment + 1; ++round) {
      Workbench bench(*backend);
      CutRowsArgs args = {.row_offsets = bench.Ints(offsets),
                          .slots = bench.Ints(slots),
                          .positions = bench.Longs(positions),
                          .segment = segment,
                          .round = round,
                          .part_offsets = bench.NewInts({count + 2}),
                          .part_slots = bench.NewInts({count + 1}),
                          .part_positions = bench.NewLongs({count + 1}),
                          .part_tokens = bench.NewInts({room}),
                          .places = bench.NewInts({tokens})};
      bench.kernels().CutRows(args);
      const auto part_offsets = bench.ReadInts(args.part_offsets);
      const auto part_slots = bench.ReadInts(args.part_slots);
      const auto part_tokens = bench.ReadInts(args.part_tokens);
      const auto places = bench.ReadInts(args.places);
      const auto part_positions = bench.ReadLongs(args.part_positions);
      ASSERT_EQ(part_offsets.front(), 0);
      ASSERT_EQ(part_offsets.back(), room);
      EXPECT_EQ(part_slots.back(), -1);
      int placed = 0;
      for (int r = 0; r < count; ++r) {
        EXPECT_EQ(part_slots[r], slots[r]);
        for (int i = part_offsets[r]; i < part_offsets[r + 1]; ++i) {
          const int token = part_tokens[i];
          const int64_t position = rows[r].position + token - offsets[r];
          EXPECT_EQ(position, part_positions[r] + i - part_offsets[r]);
          EXPECT_EQ(position / segment, rows[r].position / segment + round);
          EXPECT_EQ(places[token], i);
          ++seen[static_cast<size_t>(token)];
          ++placed;
        }
      }
      EXPECT_EQ(std::count(places.begin(), places.end(), room), tokens - placed);
    }
    for (int r = 0; r < count; ++r) {
      for (int t = offsets[r]; t < offsets[r + 1]; ++t) {
        EXPECT_EQ(seen[static_cast<size_t>(t)], rows[r].slot < 0 ? 0 : 1) << "seed " << seed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CutRowsTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
