// What tokens do with engrams, against the equations in double, and on any split of a text.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using testing::Each;
using testing::ElementsAre;

class EngramTokensTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngramTokensTest()
      : backend_(GetParam().Make()), bench_(*backend_), number_(backend_->activation_dtype()) {}

  EngramKernels& kernels() { return backend_->kernels(); }
  // f32 sums of a few dozen terms.
  double bound() const { return number_ == DType::kF64 ? 1e-12 : 2e-5; }

  std::unique_ptr<Backend> backend_;
  Workbench bench_;
  DType number_;
};

TEST_P(EngramTokensTest, CrossingsAreRowsWhoseFirstTokenBeginsASegment) {
  // Padding; position 0; a crossing; within a segment; a crossing without tokens; a crossing.
  FindCrossingsArgs args = {.row_offsets = bench_.Ints({0, 1, 2, 4, 5, 5, 6}),
                            .slots = bench_.Ints({-1, 0, 1, 2, 3, 4}),
                            .positions = bench_.Longs({14, 0, 7, 8, 14, 21}),
                            .segment = 7,
                            .working = 3,
                            .attended = 5,
                            .crossings = {bench_.NewInts({4}), bench_.NewInts({4})},
                            .working_entries = bench_.NewInts({2}),
                            .attended_entries = bench_.NewInts({2})};
  kernels().FindCrossings(args);
  EXPECT_THAT(bench_.ReadInts(args.crossings.slots), ElementsAre(1, 4, -1, -1));
  EXPECT_THAT(bench_.ReadInts(args.crossings.segments), ElementsAre(1, 3, 0, 0));
  EXPECT_THAT(bench_.ReadInts(args.working_entries), ElementsAre(0, 6));
  EXPECT_THAT(bench_.ReadInts(args.attended_entries), ElementsAre(0, 10));
  args.first = 1;
  kernels().FindCrossings(args);
  EXPECT_THAT(bench_.ReadInts(args.crossings.slots), ElementsAre(4, -1, -1, -1));
  EXPECT_THAT(bench_.ReadInts(args.crossings.segments), ElementsAre(3, 0, 0, 0));
  EXPECT_THAT(bench_.ReadInts(args.working_entries), ElementsAre(0, 3));
  args.first = 2;
  kernels().FindCrossings(args);
  EXPECT_THAT(bench_.ReadInts(args.crossings.slots), Each(-1));
  EXPECT_THAT(bench_.ReadInts(args.attended_entries), ElementsAre(0, 0));
}

// More rows than threads look at at once, and no room for all.
TEST_P(EngramTokensTest, CrossingsOfManyRowsAreFoundInParts) {
  constexpr int kRows = 77;
  std::vector<int> offsets, slots, wanted;
  std::vector<int64_t> positions;
  for (int row = 0; row < kRows; ++row) {
    offsets.push_back(row);
    slots.push_back(row);
    positions.push_back(10 + row % 3);
    if (row % 3 == 2) wanted.push_back(row);
  }
  offsets.push_back(kRows);
  FindCrossingsArgs args = {.row_offsets = bench_.Ints(offsets),
                            .slots = bench_.Ints(slots),
                            .positions = bench_.Longs(positions),
                            .segment = 12,
                            .working = 2,
                            .attended = 3,
                            .crossings = {bench_.NewInts({10}), bench_.NewInts({10})},
                            .working_entries = bench_.NewInts({2}),
                            .attended_entries = bench_.NewInts({2})};
  std::vector<int> found;
  for (; args.first < 30; args.first += 10) {
    kernels().FindCrossings(args);
    for (const int slot : bench_.ReadInts(args.crossings.slots)) {
      if (slot >= 0) found.push_back(slot);
    }
  }
  EXPECT_EQ(found, wanted);
  EXPECT_THAT(bench_.ReadInts(args.working_entries), ElementsAre(0, 10)) << "five of two";
}

// The engrams of slot 1's last segment, its text fed in pieces of the sizes given, in turn, none of
// them across a boundary, beside another session.
struct EncoderProblem {
  int working, dim, segment;
  bool queries;
};

std::vector<double> Encode(EngramKernels& kernels, Workbench& bench, const EncoderProblem& problem,
                           const std::vector<double>& queries, const std::vector<double>& text,
                           const std::vector<int>& sizes, DType number) {
  const int64_t dim = problem.dim, tokens = static_cast<int64_t>(text.size()) / dim;
  SlabPool largest(bench, 2, 1, problem.working, number);
  SlabPool total(bench, 2, 1, problem.working, number);
  SlabPool sums(bench, 2, 1, problem.working * dim, number);
  const TensorView q =
      problem.queries ? bench.Floats(queries, {problem.working, dim}) : TensorView{};
  const auto rows_of = [&](int64_t begin, int64_t count) {
    return std::vector<double>(text.begin() + begin * dim, text.begin() + (begin + count) * dim);
  };
  size_t piece = 0;
  for (int64_t at = 0; at < tokens;) {
    const int64_t left = problem.segment - at % problem.segment;
    const int64_t count = std::min({int64_t{sizes[piece++ % sizes.size()]}, left, tokens - at});
    // The other session is fed the text's first token, and a padding row another.
    std::vector<double> h = rows_of(0, 2);
    const std::vector<double> own = rows_of(at, count);
    h.insert(h.end(), own.begin(), own.end());
    kernels.EncodeTokens({.h = bench.Activations(h, {count + 2, dim}),
                          .queries = q,
                          .row_offsets = bench.Ints({0, 1, 2, static_cast<int>(count) + 2}),
                          .slots = bench.Ints({0, -1, 1}),
                          .positions = bench.Longs({at == 0 ? 0 : 1, 0, at}),
                          .segment = problem.segment,
                          .largest = problem.queries ? largest.view() : StateView{},
                          .total = problem.queries ? total.view() : StateView{},
                          .sums = sums.view()});
    at += count;
  }
  const TensorView x = bench.NewActivations({2 * problem.working, dim});
  kernels.ReadEncoder({.crossings = {bench.Ints({1, -1}), bench.Ints({2, 0})},
                       .working = problem.working,
                       .total = problem.queries ? total.view() : StateView{},
                       .sums = sums.view(),
                       .x = x});
  std::vector<double> values = bench.Read(x);
  const auto behind = values.begin() + int64_t{problem.working} * dim;
  EXPECT_TRUE(std::all_of(behind, values.end(), [](double v) { return std::isnan(v); }));
  values.erase(behind, values.end());
  return values;
}

TEST_P(EngramTokensTest, EngramsAreSoftmaxMeansOfTheirSegment) {
  // The second is more than threads keep in registers.
  for (const int dim : {19, 801}) {
    const EncoderProblem problem = {.working = 5, .dim = dim, .segment = 8, .queries = true};
    SeededRandom random(1);
    const std::vector<double> queries = random.NormalValues(int64_t{5} * dim, 3 / std::sqrt(dim));
    const std::vector<double> text = random.NormalValues(int64_t{16} * dim);
    const auto run = [&](const std::vector<int>& sizes) {
      return Encode(kernels(), bench_, problem, queries, text, sizes, number_);
    };
    const std::vector<double> got = run({8});
    std::vector<double> want;
    for (int w = 0; w < problem.working; ++w) {
      std::vector<double> p;
      for (int t = 8; t < 16; ++t) {
        double score = 0;
        for (int i = 0; i < dim; ++i) score += queries[w * dim + i] * text[t * dim + i];
        p.push_back(std::exp(score));
      }
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (int i = 0; i < dim; ++i) {
        double value = 0;
        for (int t = 8; t < 16; ++t) value += p[t - 8] / sum * text[t * dim + i];
        want.push_back(value);
      }
    }
    EXPECT_LE(RelativeError(got, want), bound());
    for (const std::vector<int>& sizes : {std::vector{1}, {3}, {2, 5, 1}}) {
      EXPECT_THAT(run(sizes), HasSameBits(got));
    }
  }
}

TEST_P(EngramTokensTest, WithoutQueriesEngramsAreTheTokens) {
  const EncoderProblem problem = {.working = 6, .dim = 5, .segment = 6, .queries = false};
  SeededRandom random(2);
  const std::vector<double> text = random.NormalValues(int64_t{12} * 5);
  const std::vector<double> last(text.begin() + 30, text.end());
  for (const std::vector<int>& sizes : {std::vector{6}, {1}, {4, 1}}) {
    EXPECT_THAT(Encode(kernels(), bench_, problem, {}, text, sizes, number_), HasSameBits(last));
  }
}

class EngramAttentionTest : public EngramTokensTest {
 protected:
  struct Case {
    int heads, dim;
    int room = 21;  // for recalled engrams, 3 of which are not there
    int tokens = 6;
  };
  void Check(const Case& c, DType context);
  void CheckAll(const std::vector<Case>& cases, DType context) {
    for (const Case& c : cases) {
      SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.dim << ", room for " << c.room
                                      << " engrams, " << c.tokens << " tokens");
      Check(c, context);
    }
  }
};

void EngramAttentionTest::Check(const Case& c, DType context) {
  const int heads = c.heads, dim = c.dim, room = c.room, tokens = c.tokens;
  const int working = 4, layers = 2, segment = tokens + 4;
  const int attended = working + room;
  // Tensor cores round queries and weights, too.
  const double bound = context == DType::kBF16 ? 1e-2 : this->bound();
  const bool bit_exact = GetParam().bit_exact();
  const int64_t of_engram = int64_t{heads} * dim;
  SeededRandom random(3);
  // Slot 2 has room - 3 recalled engrams, and 3 working ones after one was forgotten; slot 0 is in
  // its first segment, slot 1 has none.
  const std::vector<double> q = random.NormalValues((tokens + 4) * of_engram);
  const std::vector<double> k = random.NormalValues(attended * of_engram, 1, context);
  const std::vector<double> v = random.NormalValues(attended * of_engram, 1, context);
  for (const bool recalled : {false, true}) {
    const int count = recalled ? room - 3 : 3, first = recalled ? working : 0;
    // `alone`: in steps without other rows.
    const auto run = [&](const std::vector<int>& sizes, std::vector<double>* weights, bool alone) {
      SlabPool keys(bench_, 3, 1, attended * of_engram, context);
      SlabPool values(bench_, 3, 1, attended * of_engram, context);
      SlabPool facts(bench_, 3, 1, kEngramFacts, DType::kI32);
      SlabPool sums(bench_, 3, layers, heads * room, number_);
      for (const int slot : {1, 2}) {
        keys.Write(slot, 0, k);
        values.Write(slot, 0, v);
        sums.Write(slot, 1, std::vector<double>(heads * room));
        std::vector<int32_t> of_store(kEngramFacts);
        of_store[kEngramsRecalled] = slot == 2 ? room - 3 : 0;
        of_store[kEngramsWorking] = slot == 2 ? 3 : 0;
        backend_->CopyFromHost(facts.view().At(slot, 0), of_store.data(),
                               static_cast<int64_t>(of_store.size() * sizeof(int32_t)));
      }
      const std::vector<std::byte> before = sums.Bytes();
      std::vector<double> out;
      size_t piece = 0;
      for (int at = 0; at < tokens;) {
        const int size = std::min(sizes[piece++ % sizes.size()], tokens - at);
        const int before = alone ? 0 : 4;
        std::vector<double> rows(q.begin(), q.begin() + before * of_engram);
        rows.insert(rows.end(), q.begin() + (4 + at) * of_engram,
                    q.begin() + (4 + at + size) * of_engram);
        const TensorView read = bench_.NewActivations({before + size, heads, dim});
        kernels().EngramAttention(
            {.q = bench_.Activations(rows, {before + size, heads, dim}),
             .row_offsets =
                 bench_.Ints(alone ? std::vector{0, size} : std::vector{0, 1, 3, 4, 4 + size}),
             .slots = bench_.Ints(alone ? std::vector{2} : std::vector{-1, 0, 1, 2}),
             .positions =
                 bench_.Longs(alone ? std::vector<int64_t>{segment + 1 + at}
                                    : std::vector<int64_t>{segment + 2, segment - 2,
                                                           2 * segment + 5, segment + 1 + at}),
             .segment = segment,
             .scale = 0.4f,
             .keys = keys.view(),
             .values = values.view(),
             .first = first,
             .most = recalled ? room : working,
             .facts = facts.view(),
             .counted = recalled ? kEngramsRecalled : kEngramsWorking,
             .sums = recalled ? sums.view() : StateView{},
             .layer = 1,
             .recalled = room,
             .out = read});
        const std::vector<double> all = bench_.Read(read);
        const auto part = [&](int from, int to) {
          return std::vector<double>(all.begin() + from * of_engram, all.begin() + to * of_engram);
        };
        if (!alone) {
          EXPECT_THAT(part(1, 3), Each(0.0)) << "the first segment";
        }
        if (!alone) {
          EXPECT_THAT(part(3, 4), Each(0.0)) << "there is none";
        }
        const std::vector<double> own = part(before, before + size);
        out.insert(out.end(), own.begin(), own.end());
        at += size;
      }
      EXPECT_TRUE(sums.OnlyTouched(
          before, [&](int slot, int layer) { return recalled && slot == 2 && layer == 1; }));
      *weights = sums.Read(2, 1);
      return out;
    };
    std::vector<double> want, want_weights(heads * room);
    for (int token = 0; token < tokens; ++token) {
      for (int head = 0; head < heads; ++head) {
        std::vector<double> p;
        for (int i = 0; i < count; ++i) {
          double score = 0;
          for (int d = 0; d < dim; ++d) {
            score += q[(4 + token) * of_engram + head * dim + d] *
                     k[(first + i) * of_engram + head * dim + d];
          }
          p.push_back(std::exp(double{0.4f} * score));
        }
        const double sum = std::accumulate(p.begin(), p.end(), 0.0);
        for (int i = 0; i < count && recalled; ++i) {
          want_weights[head * room + i] += p[i] / sum;
        }
        for (int d = 0; d < dim; ++d) {
          double value = 0;
          for (int i = 0; i < count; ++i) {
            value += p[i] / sum * v[(first + i) * of_engram + head * dim + d];
          }
          want.push_back(value);
        }
      }
    }
    std::vector<double> weights, other_weights;
    const std::vector<double> got = run({tokens}, &weights, false);
    EXPECT_LE(RelativeError(got, want), bound);
    if (recalled) {
      EXPECT_LE(RelativeError(weights, want_weights), bound);
    } else {
      EXPECT_THAT(weights, Each(0.0));
    }
    for (const std::vector<int>& sizes : {std::vector{1}, {4, 2}}) {
      for (const bool alone : {false, true}) {
        EXPECT_THAT(run(sizes, &other_weights, alone), IsSame(bit_exact, got, bound));
        if (recalled) {
          EXPECT_THAT(other_weights, IsSame(bit_exact, weights, bound));
        } else {
          EXPECT_THAT(other_weights, Each(0.0));
        }
      }
    }
  }
}

TEST_P(EngramAttentionTest, SeesEngramsAndAddsUpWhatTheyGot) {
  // Heads that can be read several numbers at a time, once and more often, and that cannot; engrams
  // for teams of blocks.
  CheckAll({{3, 7}, {2, 64}, {1, 40}, {2, 64, 300, 5}}, number_);
}

TEST_P(EngramAttentionTest, ReadsKeysAndValuesInTheDtypeOfTheContext) {
  if (GetParam().device != "cuda") GTEST_SKIP() << "keeps its context in the activations' dtype";
  CheckAll({{3, 7}, {2, 64}, {1, 40}, {3, 64, 200, 150}, {2, 96, 67, 70}, {1, 64, 64 + 3, 65}},
           DType::kBF16);
}

TEST_P(EngramTokensTest, WhatIsAddedFromAPositionOn) {
  const TensorView y = bench_.Activations({1, 2, 3, 4, 5, 6}, {3, 2});
  kernels().AddFrom({.x = bench_.Activations({10, 20, 30, 40, 50, 60}, {3, 2}),
                     .positions = bench_.Longs({4, 5, 6}),
                     .first = 5,
                     .y = y});
  EXPECT_THAT(bench_.Read(y), ElementsAre(1, 2, 33, 44, 55, 66));
}

// Keys and values of crossings go to their slabs, and to no other.
TEST_P(EngramTokensTest, ContextsOfCrossingsAreStored) {
  SlabPool keys(bench_, 3, 1, 8, number_), values(bench_, 3, 1, 8, number_);
  const std::vector<std::byte> before = keys.Bytes();
  std::vector<double> k(16), v(16);
  std::iota(k.begin(), k.end(), 0);
  std::iota(v.begin(), v.end(), 100);
  kernels().StoreEngramContext({.crossings = {bench_.Ints({2, -1}), bench_.Ints({3, 0})},
                                .k = bench_.Activations(k, {4, 2, 2}),
                                .v = bench_.Activations(v, {4, 2, 2}),
                                .keys = keys.view(),
                                .values = values.view()});
  EXPECT_THAT(keys.Read(2, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(values.Read(2, 0), ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
  EXPECT_TRUE(keys.OnlyTouched(before, [](int slot, int) { return slot == 2; }));
}

// Products of as many engrams as there are: entries behind the last group stay as they are.
TEST_P(EngramTokensTest, ProductsEndWithTheLastGroup) {
  const PackedMatrix weights[] = {bench_.Pack({1, 2, 3, 4}, 2, 2, DType::kF32)};
  const TensorView y = bench_.Activations({-1, -1, -1, -1, -1, -1, -1, -1}, {4, 2});
  for (const int entries : {2, 0}) {
    const LinearArgs product = {.x = bench_.Activations({1, 0, 0, 1, 1, 1, 1, 1}, {4, 2}),
                                .weights = weights,
                                .group_offsets = bench_.Ints({0, entries}),
                                .y = y,
                                .bias = bench_.Floats({10, 20}, {1, 2})};
    backend_->kernels().Linear({&product, 1});
    EXPECT_THAT(bench_.Read(y), ElementsAre(11, 23, 12, 24, -1, -1, -1, -1));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EngramAttentionTest, testing::ValuesIn(AllBackends()),
                         BackendName);
INSTANTIATE_TEST_SUITE_P(Backends, EngramTokensTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
