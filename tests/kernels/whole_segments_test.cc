// Rows whose tokens see each other, against the equations in double; alone and among others.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using testing::ElementsAre;

class WholeSegmentsTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  WholeSegmentsTest() : backend_(GetParam().Make()), bench_(*backend_) {}

  std::unique_ptr<Backend> backend_;
  Workbench bench_;
};

// A text of three tokens, two of which fill it up; one that is padding in the engine's sense; an
// empty one; one of a pair.
TEST_P(WholeSegmentsTest, IndicesFollowFromRowsAndTypes) {
  IndexWholeSegmentsArgs args = {.token_ids = bench_.Ints({5, 1, 6, 1, 1, 9, 7, 8, 1}),
                                 .token_types = bench_.Ints({0, 0, 0, -1, -1, 0, 0, 1, 1}),
                                 .row_offsets = bench_.Ints({0, 5, 6, 6, 9}),
                                 .row_positions = bench_.Longs({10, 0, 5, 0}),
                                 .segment = 5,
                                 .picks = bench_.Ints({4, 0, 8, 6}),
                                 .positions = bench_.NewLongs({9}),
                                 .types = bench_.NewLongs({9}),
                                 .seen = bench_.NewInts({4}),
                                 .next_positions = bench_.NewLongs({4}),
                                 .firsts = bench_.NewInts({4})};
  backend_->kernels().IndexWholeSegments(args);
  EXPECT_THAT(bench_.ReadLongs(args.positions), ElementsAre(0, 1, 2, 3, 4, 0, 0, 1, 2));
  EXPECT_THAT(bench_.ReadLongs(args.types), ElementsAre(0, 0, 0, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(bench_.ReadInts(args.seen), ElementsAre(3, 1, 0, 3));
  EXPECT_THAT(bench_.ReadLongs(args.next_positions), ElementsAre(15, 5, 10, 5));
  EXPECT_THAT(bench_.ReadInts(args.firsts), ElementsAre(0, 0, 6, 6));

  // Tokens of id 1 do not count, and positions begin behind theirs.
  args.first_position = 2;
  args.skipped = 1;
  backend_->kernels().IndexWholeSegments(args);
  EXPECT_THAT(bench_.ReadLongs(args.positions), ElementsAre(2, 1, 3, 1, 1, 2, 2, 3, 1));

  args.token_types = {};
  backend_->kernels().IndexWholeSegments(args);
  EXPECT_THAT(bench_.ReadLongs(args.types), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(bench_.ReadInts(args.seen), ElementsAre(5, 1, 0, 3));
}

// Rows of more tokens than a block of a GPU's threads takes at once.
TEST_P(WholeSegmentsTest, IndicesOfLongRows) {
  const std::vector<int> lengths = {300, 1, 128, 517};
  std::vector<int> ids, types, offsets = {0}, seen;
  std::vector<int64_t> positions;
  SeededRandom random(4);
  for (const int length : lengths) {
    const int filled = length - length / 5;
    int64_t position = 2;
    for (int i = 0; i < length; ++i) {
      ids.push_back(random.Int(0, 3));
      types.push_back(i < filled ? 0 : -1);
      positions.push_back(ids.back() == 1 ? 1 : position++);
    }
    offsets.push_back(offsets.back() + length);
    seen.push_back(filled);
  }
  const int64_t tokens = offsets.back(), rows = static_cast<int64_t>(lengths.size());
  const IndexWholeSegmentsArgs args = {
      .token_ids = bench_.Ints(ids),
      .token_types = bench_.Ints(types),
      .row_offsets = bench_.Ints(offsets),
      .row_positions = bench_.Longs(std::vector<int64_t>(lengths.size())),
      .segment = 600,
      .first_position = 2,
      .skipped = 1,
      .picks = bench_.Ints({0}),
      .positions = bench_.NewLongs({tokens}),
      .types = bench_.NewLongs({tokens}),
      .seen = bench_.NewInts({rows}),
      .next_positions = bench_.NewLongs({rows}),
      .firsts = bench_.NewInts({1})};
  backend_->kernels().IndexWholeSegments(args);
  EXPECT_EQ(bench_.ReadLongs(args.positions), positions);
  EXPECT_THAT(bench_.ReadInts(args.seen), testing::ElementsAreArray(seen));
  EXPECT_THAT(bench_.ReadLongs(args.types), testing::Each(0));
}

struct WholeRow {
  int slot, tokens, seen;
};

// Rows that lie one behind the other in q, k and v.
std::vector<double> Attend(Workbench& bench, const std::vector<WholeRow>& rows, int heads, int dim,
                           const std::vector<double>& q, const std::vector<double>& k,
                           const std::vector<double>& v) {
  std::vector<int> offsets = {0}, slots, seen;
  for (const WholeRow& row : rows) {
    offsets.push_back(offsets.back() + row.tokens);
    slots.push_back(row.slot);
    seen.push_back(row.seen);
  }
  const Shape shape{offsets.back(), heads, dim};
  const SegmentAttentionArgs args = {.q = bench.Activations(q, shape),
                                     .k = bench.Activations(k, shape),
                                     .v = bench.Activations(v, shape),
                                     .row_offsets = bench.Ints(offsets),
                                     .slots = bench.Ints(slots),
                                     .seen = bench.Ints(seen),
                                     .scale = 0.3f,
                                     .out = bench.NewActivations(shape)};
  bench.kernels().SegmentAttention(args);
  return bench.Read(args.out);
}

TEST_P(WholeSegmentsTest, TokensAttendToAllThatIsSeenOfTheirRow) {
  const std::vector<WholeRow> rows = {{2, 40, 33}, {-1, 3, 3}, {0, 1, 1},
                                      {4, 0, 0},   {1, 7, 0},  {3, 70, 70}};
  for (const auto& [heads, dim] : {std::pair(3, 19), {1, 64}, {2, 5}}) {
    SeededRandom random(static_cast<uint64_t>(dim));
    const int64_t tokens = 121, pitch = int64_t{heads} * dim;
    const std::vector<double> q = random.NormalValues(tokens * pitch);
    const std::vector<double> k = random.NormalValues(tokens * pitch);
    const std::vector<double> v = random.NormalValues(tokens * pitch);
    const std::vector<double> got = Attend(bench_, rows, heads, dim, q, k, v);
    int64_t first = 0;
    for (const WholeRow& row : rows) {
      std::vector<double> want, own;
      for (int64_t t = first; t < first + row.tokens && row.slot >= 0; ++t) {
        for (int head = 0; head < heads; ++head) {
          const auto at = [&, dim = dim](const std::vector<double>& x, int64_t token) {
            return x.begin() + token * pitch + head * dim;
          };
          std::vector<double> weights, sums(static_cast<size_t>(dim));
          double total = 0;
          for (int64_t j = first; j < first + row.seen; ++j) {
            const double score = std::inner_product(at(q, t), at(q, t) + dim, at(k, j), 0.0);
            total += weights.emplace_back(std::exp(static_cast<double>(0.3f) * score));
          }
          for (int i = 0; i < row.seen; ++i) {
            for (int d = 0; d < dim; ++d) {
              sums[d] += weights[i] / total * at(v, first + i)[d];
            }
          }
          want.insert(want.end(), sums.begin(), sums.end());
          own.insert(own.end(), at(got, t), at(got, t) + dim);
        }
      }
      // Weights that sum to 1, of values below 5; scores are sums of at most 64 products.
      const double bound = backend_->activation_dtype() == DType::kF64 ? 1e-12 : 2e-5;
      EXPECT_THAT(own, IsWithin(bound, want)) << "row of slot " << row.slot;
      first += row.tokens;
    }
  }
}

TEST_P(WholeSegmentsTest, ARowIsTheSameAloneAndAmongOthers) {
  constexpr int kHeads = 2, kDim = 24, kTokens = 50;
  constexpr int64_t kPitch = kHeads * kDim;
  SeededRandom random(9);
  const auto values = [&](int64_t tokens) { return random.NormalValues(tokens * kPitch); };
  const std::vector<double> q = values(kTokens), k = values(kTokens), v = values(kTokens);
  const std::vector<double> alone = Attend(bench_, {{0, kTokens, 41}}, kHeads, kDim, q, k, v);
  const auto among = [&](const std::vector<double>& x) {
    std::vector<double> all = values(7);
    all.insert(all.end(), x.begin(), x.end());
    const std::vector<double> behind = values(30);
    all.insert(all.end(), behind.begin(), behind.end());
    return all;
  };
  std::vector<double> got = Attend(bench_, {{3, 7, 7}, {0, kTokens, 41}, {1, 30, 2}}, kHeads, kDim,
                                   among(q), among(k), among(v));
  got = {got.begin() + 7 * kPitch, got.begin() + (7 + kTokens) * kPitch};
  EXPECT_THAT(got, HasSameBits(alone));
}

INSTANTIATE_TEST_SUITE_P(Backends, WholeSegmentsTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
