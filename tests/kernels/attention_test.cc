#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/attention_problem.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Contexts = AttentionContexts;
using Dims = AttentionDims;
using Problem = AttentionProblem;

class AttentionTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectReference(const Problem& problem) {
    const std::vector<double> want = Outputs(*reference_, problem);
    EXPECT_THAT(Outputs(*backend_, problem), IsWithin(Bound(problem), want))
        << problem.dims.Describe();
  }
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(AttentionTest, MatchesReferenceOnRaggedRows) {
  const std::vector<RowSpec> rows = {{2, 0, 1},  {0, 63, 3},  {-1, 0, 4}, {1, 70, 0},
                                     {3, 0, 90}, {4, 130, 1}, {1, 64, 64}};
  for (const Dims& dims :
       {Dims{1, 1, 16, 16}, Dims{4, 2, 16, 16}, Dims{6, 2, 24, 40}, Dims{8, 1, 64, 64},
        Dims{3, 3, 1, 1}, Dims{2, 2, 7, 13}, Dims{5, 1, 128, 128}}) {
    ExpectReference({.dims = dims, .rows = rows});
  }
}

TEST_P(AttentionTest, APrefixIsAsPositionsThatAreAlwaysSeen) {
  for (const int prefix : {1, 5, 64, 130}) {
    for (const Dims& plain : {Dims{1, 1, 16, 16}, Dims{6, 2, 24, 40}}) {
      Dims dims = plain;
      dims.prefix = prefix;
      for (const std::vector<RowSpec>& rows :
           {std::vector<RowSpec>{{0, 0, 20}}, {{0, 0, 1}}, {{0, 40, 1}}, {{0, 40, 30}}}) {
        std::vector<RowSpec> behind = rows;
        behind[0].position += prefix;
        const Problem whole = {.dims = plain, .rows = behind};
        const std::vector<double> want = Outputs(*reference_, whole);
        const Problem problem = {.dims = dims, .rows = rows};
        EXPECT_THAT(Outputs(*backend_, problem), IsWithin(Bound(whole), want)) << prefix;
        EXPECT_THAT(Outputs(*reference_, problem), IsWithin(Bound(whole), want)) << prefix;
      }
      dims.window = 7;
      const Problem windowed = {.dims = dims, .rows = {{0, 40, 30}}};
      const double bound = 16 * (SumError(prefix + 7) + SumError(plain.key_dim) + kFunctionError);
      EXPECT_LE(RelativeError(Outputs(*backend_, windowed), Outputs(*reference_, windowed)), bound);
      Dims unseen = plain;
      unseen.window = 7;
      EXPECT_GT(
          RelativeError(Outputs(*reference_, windowed),
                        Outputs(*reference_, {.dims = unseen, .rows = {{0, 40 + prefix, 30}}})),
          0.01)
          << "the prefix is seen";
    }
  }
}

// Against plain sums, whole and in steps of many sizes.
TEST_P(AttentionTest, ASegmentSeesTwoKeysOfEachOfItsPositions) {
  for (const int segment : {1, 5, 16, 64, 70}) {
    for (const int prefix : {0, 3}) {
      Dims dims = {.heads = 4, .kv_heads = 2, .key_dim = 24, .value_dim = 20, .blocks = 2};
      dims.segment = segment;
      dims.others = true;
      dims.prefix = prefix;
      constexpr int kTokens = 150;
      const Problem problem = {.dims = dims, .rows = {{0, 0, kTokens}}};
      std::vector<double> want;
      for (int64_t p = 0; p < kTokens; ++p) {
        std::vector<std::vector<double>> keys, values;
        for (int64_t m = -prefix; m < 0; ++m) {
          keys.push_back(problem.Keys(0, m));
          values.push_back(problem.Values(0, m));
        }
        for (int64_t m = p - p % segment; m <= p; ++m) {
          for (const int64_t other : {int64_t{0}, Problem::kOthers}) {
            keys.push_back(problem.Keys(0, m + other));
            values.push_back(problem.Values(0, m + other));
          }
        }
        const std::vector<double> q = problem.Queries(0, p);
        for (int h = 0; h < dims.heads; ++h) {
          const int g = h / 2;
          double total = 0;
          std::vector<double> out(static_cast<size_t>(dims.value_dim));
          for (size_t j = 0; j < keys.size(); ++j) {
            double score = 0;
            for (int i = 0; i < dims.key_dim; ++i) {
              score += q[h * dims.key_dim + i] * keys[j][g * dims.key_dim + i];
            }
            const double weight = std::exp(score * ScaleOf(dims));
            total += weight;
            for (int i = 0; i < dims.value_dim; ++i) {
              out[i] += weight * values[j][g * dims.value_dim + i];
            }
          }
          for (const double value : out) want.push_back(value / total);
        }
      }
      const double bound =
          16 * (SumError(2 * segment + prefix) + SumError(dims.key_dim) + kFunctionError);
      EXPECT_LE(RelativeError(Outputs(*reference_, problem), want), 1e-6);
      const std::vector<double> whole = Outputs(*backend_, problem);
      EXPECT_LE(RelativeError(whole, want), bound) << segment;
      const std::vector<double> parts = FedInChunks(*backend_, problem, kTokens, {1, 7, 30, 2});
      EXPECT_LE(RelativeError(parts, want), bound) << segment;
      if (GetParam().bit_exact()) {
        EXPECT_THAT(parts, HasSameBits(whole));
      }
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceWithin256Wide) {
  ExpectReference({.dims = {4, 2, 256, 256}, .rows = {{0, 0, 70}, {1, 100, 1}}});
}

TEST_P(AttentionTest, AWindowSeesItsTokenAndThoseBeforeIt) {
  const std::vector<RowSpec> rows = {{0, 0, 100}, {1, 64, 1}, {2, 200, 70}, {3, 30, 5}, {4, 11, 1}};
  for (const int window : {1, 2, 12, 63, 64, 65, 128, 200}) {
    Dims dims{4, 2, 16, 16, window};
    dims.blocks = (window + kContextBlock - 1) / kContextBlock;
    ExpectReference({.dims = dims, .rows = rows});
  }
}

// More tokens at once than a ring has rows, and rings that went round many times.
TEST_P(AttentionTest, ARingIsReadBeforeItIsOverwritten) {
  for (const int window : {5, 64, 100}) {
    Dims dims{2, 1, 16, 8, window};
    dims.blocks = (window + kContextBlock - 1) / kContextBlock;
    ExpectReference({.dims = dims, .rows = {{0, 1000, 300}, {1, 999, 64}, {2, 1023, 1}}});
  }
}

TEST_P(AttentionTest, PositionsMayBeBeyondAMillion) {
  Dims dims{4, 2, 16, 16, 100};
  dims.blocks = 2;
  const int64_t far = (int64_t{1} << 40) + 17;
  ExpectReference({.dims = dims, .rows = {{0, 1'000'003, 70}, {1, far, 1}, {2, far + 50, 3}}});
}

// Weights from even to one position alone, and scores that f32 has no exponentials of.
TEST_P(AttentionTest, MatchesReferenceFromFlatToPeakedWeights) {
  for (const double spread : {0.0, 0.01, 4.0, 30.0, 1000.0}) {
    ExpectReference({.dims = {4, 2, 16, 16},
                     .rows = {{0, 0, 130}, {1, 200, 1}, {2, 70, 40}},
                     .spread = spread});
  }
}

TEST_P(AttentionTest, LongContextsMatchReference) {
  Dims dims{4, 2, 32, 32};
  dims.blocks = 66;
  ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 4000, 20}, {2, 1, 1}}});
}

// Nor does the step's own past: keys that are stored are those that are used at once.
TEST_P(AttentionTest, AnySplitIsTheSame) {
  for (const int window : {0, 50, 64}) {
    Dims dims{4, 2, 24, 16, window};
    dims.blocks = window > 0 ? 1 : 4;
    const Problem problem = {.dims = dims, .rows = {{0, 0, 200}}};
    const std::vector<double> whole = Outputs(*backend_, problem);
    for (const std::vector<int>& chunks : {std::vector{1}, {7, 1, 13}, {64}, {63, 2}, {199, 1}}) {
      const std::vector<double> all = FedInChunks(*backend_, problem, 200, chunks);
      EXPECT_THAT(all, IsSame(GetParam().bit_exact(), whole)) << "chunks of " << chunks[0];
    }
  }
}

TEST_P(AttentionTest, NeitherNeighboursNorThreadsChangeABit) {
  const Problem together = {.dims = {8, 2, 32, 32},
                            .rows = {{0, 100, 60}, {-1, 0, 3}, {1, 5, 1}, {2, 0, 64}, {3, 180, 1}}};
  std::vector<double> alone;
  for (const RowSpec& row : together.rows) {
    if (row.slot < 0) continue;
    const std::vector<double> one = Outputs(*backend_, {.dims = together.dims, .rows = {row}});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_THAT(Outputs(*backend_, together), IsSame(GetParam().bit_exact(), alone));
  if (GetParam().device != "cpu") return;
  for (const int threads : {1, 5}) {
    const auto other = GetParam().Make(threads);
    EXPECT_THAT(Outputs(*other, together), HasSameBits(alone)) << threads << " threads";
  }
}

// Rows that the step wrote hold its keys and values; every other byte is as it was.
TEST_P(AttentionTest, StoresTheStepsRowsAndTouchesNothingElse) {
  for (const int window : {0, 100}) {
    Dims dims{4, 2, 16, 24, window};
    dims.blocks = window > 0 ? 2 : 6;
    const Problem problem = {
        .dims = dims, .rows = {{0, 0, 1}, {1, 60, 200}, {-1, 0, 2}, {2, 100, 0}, {3, 127, 1}}};
    Workbench bench(*backend_);
    Contexts contexts(bench, dims, 5);
    problem.WritePast(contexts);
    std::vector<std::byte> want = contexts.bytes();
    Step(bench, contexts, problem, problem.rows);
    contexts.Download();
    const int64_t held = dims.blocks * kContextBlock;
    for (const RowSpec& row : problem.rows) {
      if (row.slot < 0) continue;
      const int64_t end = row.position + row.length;
      for (int64_t p = std::max(row.position, end - held); p < end; ++p) {
        EXPECT_EQ(contexts.Row(contexts.keys(), row.slot, p), problem.Keys(row.slot, p));
        EXPECT_EQ(contexts.Row(contexts.values(), row.slot, p), problem.Values(row.slot, p));
        contexts.Restore(want, row.slot, p);
      }
    }
    EXPECT_TRUE(contexts.bytes() == want) << "a byte that is nobody's was written";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

// Cases made by hand: equal scores weigh equally, and a window of one sees its own value.
class AttentionByHandTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(AttentionByHandTest, FlatScoresGiveTheMeanOfTheValues) {
  const auto backend = GetParam().Make();
  Problem problem = {.dims = {2, 1, 4, 1}, .rows = {{0, 0, 3}}, .spread = 0};
  std::vector<double> mean, v;
  for (int p = 0; p < 3; ++p) {
    v.push_back(problem.Values(0, p)[0]);
    mean.insert(mean.end(), 2, std::accumulate(v.begin(), v.end(), 0.0) / (p + 1));
  }
  EXPECT_THAT(Outputs(*backend, problem), IsWithin(8 * kUnitF32 * 4, mean));
  problem.dims.window = 1;
  EXPECT_THAT(Outputs(*backend, problem), HasSameBits({v[0], v[0], v[1], v[1], v[2], v[2]}));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionByHandTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
