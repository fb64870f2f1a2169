#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct Index {
  std::vector<int64_t> token_positions;
  std::vector<int> memories, fresh;
};

struct IndexProblem {
  Index Run(Backend& backend) const {
    Workbench bench(backend);
    const int rows = static_cast<int>(slots.size());
    IndexRowsArgs args;
    args.row_offsets = bench.Ints(row_offsets);
    args.slots = bench.Ints(slots);
    args.positions = bench.Longs(positions);
    args.token_positions = bench.NewLongs({row_offsets.back()});
    args.segments = {rows, args.row_offsets, args.slots, bench.NewInts({rows}),
                     bench.NewInts({rows})};
    bench.kernels().IndexRows(args);
    EXPECT_EQ(bench.ReadInts(args.row_offsets), row_offsets);
    EXPECT_EQ(bench.ReadInts(args.slots), slots);
    return {bench.ReadLongs(args.token_positions), bench.ReadInts(args.segments.memories),
            bench.ReadInts(args.segments.fresh)};
  }

  std::vector<int> row_offsets, slots;
  std::vector<int64_t> positions;
};

class IndexRowsTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

// A new session, one that goes on, one without a token, new or not, and one beyond 32 bits.
TEST_P(IndexRowsTest, CountsOnFromWhereEachRowIs) {
  const IndexProblem p = {{0, 3, 5, 5, 5, 6}, {4, 0, 7, 2, 1}, {0, 10, 0, 5, int64_t{1} << 33}};
  const Index got = p.Run(*backend_);
  EXPECT_EQ(got.token_positions, (std::vector<int64_t>{0, 1, 2, 10, 11, int64_t{1} << 33}));
  EXPECT_EQ(got.memories, (std::vector<int>{0, 0, 0, 0, 0}));
  EXPECT_EQ(got.fresh, (std::vector<int>{1, 0, 0, 0, 0}));
}

// Padding rows read no session: their positions mean nothing, and stay numbers.
TEST_P(IndexRowsTest, PaddingRowsHavePositionsFromZeroOn) {
  const IndexProblem p = {{0, 1, 4, 5}, {3, -1, -1}, {8, -5, 0}};
  const Index got = p.Run(*backend_);
  ASSERT_EQ(got.token_positions.size(), 5u);
  EXPECT_EQ(got.token_positions[0], 8);
  for (int t = 1; t < 5; ++t) EXPECT_GE(got.token_positions[t], 0) << t;
  EXPECT_EQ(got.memories, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(got.fresh[0], 0);
}

TEST_P(IndexRowsTest, ManyRowsOfManyLengths) {
  SeededRandom random(1);
  IndexProblem p = {{0}, {}, {}};
  Index want;
  for (int row = 0; row < 700; ++row) {
    const int length = random.Chance(0.2) ? 0 : random.Int(1, row % 100 == 0 ? 900 : 3);
    const int64_t position = random.Chance(0.3) ? 0 : random.Int(1, 1 << 30);
    for (int t = 0; t < length; ++t) want.token_positions.push_back(position + t);
    want.memories.push_back(0);
    want.fresh.push_back(position == 0 && length > 0 ? 1 : 0);
    p.row_offsets.push_back(p.row_offsets.back() + length);
    p.slots.push_back(row);
    p.positions.push_back(position);
  }
  const Index got = p.Run(*backend_);
  EXPECT_EQ(got.token_positions, want.token_positions);
  EXPECT_EQ(got.memories, want.memories);
  EXPECT_EQ(got.fresh, want.fresh);
}

TEST_P(IndexRowsTest, NoRowsAreNoWork) {
  const IndexProblem p = {{0}, {}, {}};
  EXPECT_TRUE(p.Run(*backend_).token_positions.empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, IndexRowsTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
