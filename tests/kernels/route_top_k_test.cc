// The router: which memories a token goes to, and with what weights.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct Routing {
  std::vector<int> indices;
  std::vector<double> weights;
};

struct RouteProblem {
  Routing Run(Backend& backend) const {
    const int tokens = static_cast<int>(logits.size()) / memories;
    Workbench bench(backend);
    RouteTopKArgs args;
    std::vector<double> rounded;
    for (const double logit : logits) rounded.push_back(RoundTo(logit, DType::kF32));
    args.logits = bench.Activations(rounded, {tokens, memories});
    args.round_logits = round_logits;
    if (!forced.empty()) args.forced = bench.Ints(forced, {tokens, top_k});
    args.indices = bench.NewInts({tokens, top_k});
    args.weights = bench.NewActivations({tokens, top_k});
    bench.kernels().RouteTopK(args);
    return {bench.ReadInts(args.indices), bench.Read(args.weights)};
  }

  int memories = 0, top_k = 0;
  std::vector<double> logits;
  DType round_logits = DType::kF32;
  std::vector<int> forced;
};

// weight = exp(l - largest) / sum: two functions, a sum of top_k positive terms, and the rounding
// of l - largest, which moves exp by that difference times u, in numerator and sum.
std::vector<double> WeightBound(const RouteProblem& p, const Routing& want) {
  std::vector<double> bound;
  for (size_t i = 0; i < want.weights.size(); ++i) {
    const size_t token = i / p.top_k;
    double low = INFINITY, high = -INFINITY;
    for (int j = 0; j < p.top_k; ++j) {
      const double logit = p.logits[token * p.memories + want.indices[token * p.top_k + j]];
      low = std::min(low, logit);
      high = std::max(high, logit);
    }
    const double spread = std::min(high - low, 110.0) + 1;
    bound.push_back((2 * kFunctionError + SumError(p.top_k) + (2 * spread + 4) * kUnitF32) *
                        want.weights[i] +
                    kTinyF32);
  }
  return bound;
}

class RouteTopKTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const RouteProblem& p) {
    const Routing want = p.Run(*reference_), got = p.Run(*backend_);
    EXPECT_EQ(got.indices, want.indices);
    EXPECT_THAT(got.weights, IsWithin(WeightBound(p, want), want.weights));
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(RouteTopKTest, MatchesReference) {
  uint64_t seed = 0;
  for (const int memories : {1, 2, 4, 8, 17, 64}) {
    for (const int top_k : {1, 2, 3, 8, 64}) {
      if (top_k > memories) continue;
      for (const int tokens : {0, 1, 50}) {
        RouteProblem p{memories, top_k, SeededRandom(++seed).NormalValues(tokens * memories, 3)};
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << tokens << " tokens, " << top_k
                                        << " of " << memories);
        ExpectMatch(p);
      }
    }
  }
}

TEST_P(RouteTopKTest, AgreesWithASortOfTheLogits) {
  SeededRandom random(77);
  RouteProblem p{6, 3, {}};
  for (int i = 0; i < 2000 * 6; ++i) p.logits.push_back(random.Int(-2, 2));  // many ties
  const Routing got = p.Run(*backend_);
  for (int t = 0; t < 2000; ++t) {
    std::vector<int> order = {0, 1, 2, 3, 4, 5};
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return p.logits[t * 6 + a] > p.logits[t * 6 + b]; });
    double sum = 0;
    for (int j = 0; j < 3; ++j) sum += std::exp(p.logits[t * 6 + order[j]]);
    for (int j = 0; j < 3; ++j) {
      ASSERT_EQ(got.indices[t * 3 + j], order[j]) << "token " << t;
      ASSERT_NEAR(got.weights[t * 3 + j], std::exp(p.logits[t * 6 + order[j]]) / sum, 1e-6);
    }
  }
}

TEST_P(RouteTopKTest, TiesGoToTheLowerIndex) {
  RouteProblem p{4, 2, {5, 5, 5, 5, 0, 7, 7, 7, -0.0, 0.0, -1, -1}};
  const Routing got = p.Run(*backend_);
  EXPECT_EQ(got.indices, (std::vector<int>{0, 1, 1, 2, 0, 1}));
  EXPECT_THAT(got.weights, IsWithin(kFunctionError, {.5, .5, .5, .5, .5, .5}));
}

// exp underflows for all but the largest, yet the memories are those of the largest logits.
TEST_P(RouteTopKTest, AHugeGapLeavesTheChoiceToTheLogits) {
  RouteProblem p{5, 3, {-500, -300, 1000, -400, -200, 0, -1e30, -1e20, -1e10, -1e25}};
  const Routing got = p.Run(*backend_);
  EXPECT_EQ(got.indices, (std::vector<int>{2, 4, 1, 0, 3, 2}));
  EXPECT_THAT(got.weights, IsWithin(kTinyF32, {1, 0, 0, 1, 0, 0}));
}

TEST_P(RouteTopKTest, OneMemoryHasWeightOne) {
  RouteProblem p{1, 1, {-3e4, 0, 17, 3e38}};
  EXPECT_THAT(p.Run(*backend_).weights, IsWithin(0, {1, 1, 1, 1}));
  RouteProblem top1{3, 1, {0.1, 0.3, 0.2, 1e30, 0, 0}};
  const Routing got = top1.Run(*backend_);
  EXPECT_EQ(got.indices, (std::vector<int>{1, 0}));
  EXPECT_THAT(got.weights, IsWithin(0, {1, 1}));
}

TEST_P(RouteTopKTest, RoundingToBF16DecidesNearTies) {
  // 1 + 2^-8 rounds to 1, 1 + 3 * 2^-8 to 1 + 2^-6.
  RouteProblem p{3, 2, {1, 1 + 0x1p-8, 0, 1 + 0x1p-7, 1, 1 + 3 * 0x1p-8}};
  EXPECT_EQ(p.Run(*backend_).indices, (std::vector<int>{1, 0, 2, 0}));
  p.round_logits = DType::kBF16;
  const Routing got = p.Run(*backend_);
  EXPECT_EQ(got.indices, (std::vector<int>{0, 1, 2, 0}));
  const double first = 1 / (1 + std::exp(0x1p-7 - 0x1p-6));
  EXPECT_THAT(got.weights, IsWithin(2 * kFunctionError, {.5, .5, first, 1 - first}));
}

TEST_P(RouteTopKTest, RoundingEqualsRoundedLogits) {
  SeededRandom random(9);
  RouteProblem p{8, 2, random.NormalValues(500 * 8, 2)};
  RouteProblem rounded = p;
  for (double& logit : rounded.logits) logit = RoundTo(logit, DType::kBF16);
  p.round_logits = DType::kBF16;
  const Routing got = p.Run(*backend_), want = rounded.Run(*backend_);
  EXPECT_EQ(got.indices, want.indices);
  EXPECT_THAT(got.weights, HasSameBits(want.weights));
  EXPECT_EQ(got.indices, p.Run(*reference_).indices);
}

TEST_P(RouteTopKTest, ForcedIndicesGetTheirOwnWeights) {
  RouteProblem p{4, 2, {0, 1, 2, 3, 0, -400, 400, 9}};
  p.forced = {2, 0, 0, 1};
  const Routing got = p.Run(*backend_);
  EXPECT_EQ(got.indices, p.forced);
  const double second = 1 / (1 + std::exp(2.0));
  EXPECT_THAT(got.weights, IsWithin(4 * kFunctionError, {1 - second, second, 1, 0}));
}

TEST_P(RouteTopKTest, ForcingTheOwnChoiceChangesNoBit) {
  RouteProblem p{16, 4, SeededRandom(10).NormalValues(300 * 16, 2)};
  const Routing free = p.Run(*backend_);
  p.forced = free.indices;
  const Routing forced = p.Run(*backend_);
  EXPECT_EQ(forced.indices, free.indices);
  EXPECT_THAT(forced.weights, HasSameBits(free.weights));
}

TEST_P(RouteTopKTest, NaNLogitsStillGiveDistinctMemories) {
  SeededRandom random(11);
  RouteProblem p{5, 3, {}};
  for (int i = 0; i < 200 * 5; ++i) {
    const int kind = random.Int(0, 3);
    p.logits.push_back(kind == 0 ? NAN : kind == 1 ? -INFINITY : kind == 2 ? INFINITY : 1.0);
  }
  const Routing got = p.Run(*backend_);
  for (int t = 0; t < 200; ++t) {
    std::set<int> distinct(got.indices.begin() + t * 3, got.indices.begin() + (t + 1) * 3);
    ASSERT_EQ(distinct.size(), 3u) << "token " << t;
    ASSERT_GE(*distinct.begin(), 0);
    ASSERT_LT(*distinct.rbegin(), 5);
  }
}

TEST_P(RouteTopKTest, NeitherThreadsNorOtherTokensChangeABit) {
  RouteProblem all{4, 2, SeededRandom(12).NormalValues(65 * 4, 2)};
  const Routing want = all.Run(*backend_);
  EXPECT_THAT(all.Run(*GetParam().Make(3)).weights, HasSameBits(want.weights));
  for (int t = 0; t < 65; ++t) {
    RouteProblem one{4, 2, {all.logits.begin() + t * 4, all.logits.begin() + (t + 1) * 4}};
    EXPECT_THAT(one.Run(*backend_).weights,
                HasSameBits({want.weights.begin() + t * 2, want.weights.begin() + (t + 1) * 2}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RouteTopKTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
