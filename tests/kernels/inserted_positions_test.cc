// Positions that are no tokens: where ExpandRows puts them, and what goes by their numbers.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/compared_backend.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using InsertedPositionsTest = ComparedBackendTest;

// Segment by segment: tokens, and behind a full segment what is inserted, once a token follows.
std::vector<int> Session(const InsertedPositions& inserted, int tokens) {
  std::vector<int> all;  // the tokens' numbers, -1 - j of the j-th that is inserted
  for (int t = 0; t < tokens; ++t) {
    if (t > 0 && t % inserted.every == 0) {
      for (int j = 0; j < inserted.count; ++j) all.push_back(-1 - j);
    }
    all.push_back(t);
  }
  return all;
}

TEST_P(InsertedPositionsTest, EveryRowIsAPieceOfItsSession) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SeededRandom random(seed);
    const InsertedPositions inserted{.every = random.Int(1, 8), .count = random.Int(1, 4)};
    const int count = random.Int(1, 6);
    std::vector<int> offsets = {0}, slots;
    std::vector<int64_t> positions;
    int64_t exact = 0;
    for (int r = 0; r < count; ++r) {
      const int length = random.Chance(0.2) ? 0 : random.Int(1, 20);
      offsets.push_back(offsets.back() + length);
      slots.push_back(random.Chance(0.2) ? -1 : r);
      positions.push_back(random.Int(0, 30));
      if (slots.back() >= 0) {
        exact += inserted.Between(positions.back(), positions.back() + length);
      }
    }
    const int tokens = offsets.back();
    if (tokens == 0) continue;
    std::vector<int> picks;
    for (int t = 0; t < tokens; ++t) {
      if (random.Chance(0.5)) picks.push_back(t);
    }
    picks.push_back(tokens - 1);
    EXPECT_LE(exact, inserted.Most(tokens, count));
    for (const int64_t more : {exact, inserted.Most(tokens, count)}) {
      Workbench bench(*backend_);
      const auto room = tokens + more;
      const ExpandRowsArgs args = {
          .row_offsets = bench.Ints(offsets),
          .slots = bench.Ints(slots),
          .positions = bench.Longs(positions),
          .tokens = tokens,
          .inserted = inserted,
          .picks = bench.Ints(picks),
          .wide_offsets = bench.NewInts({count + 2}),
          .wide_slots = bench.NewInts({count + 1}),
          .wide_positions = bench.NewLongs({count + 1}),
          .sources = bench.NewInts({room}),
          .wide_picks = bench.NewInts({static_cast<int64_t>(picks.size())}),
          .places = more == exact ? TensorView{} : bench.NewInts({tokens})};
      bench.kernels().ExpandRows(args);
      const auto wide_offsets = bench.ReadInts(args.wide_offsets);
      const auto wide_slots = bench.ReadInts(args.wide_slots);
      const auto wide_positions = bench.ReadLongs(args.wide_positions);
      const auto sources = bench.ReadInts(args.sources);
      const auto wide_picks = bench.ReadInts(args.wide_picks);
      for (int r = 0; r < count; ++r) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " row " << r);
        ASSERT_EQ(wide_slots[r], slots[r]);
        std::vector<int> want;
        const int length = offsets[r + 1] - offsets[r];
        if (slots[r] < 0) {
          for (int i = 0; i < length; ++i) want.push_back(offsets[r] + i);
        } else {
          const auto first = static_cast<int>(positions[r]);
          const std::vector<int> before = Session(inserted, first);
          const std::vector<int> after = Session(inserted, first + length);
          EXPECT_EQ(wide_positions[r], static_cast<int64_t>(before.size()));
          for (size_t i = before.size(); i < after.size(); ++i) {
            want.push_back(after[i] < 0 ? tokens - 1 - after[i] : offsets[r] + after[i] - first);
          }
        }
        EXPECT_EQ(std::vector<int>(sources.begin() + wide_offsets[r],
                                   sources.begin() + wide_offsets[r + 1]),
                  want);
      }
      EXPECT_EQ(wide_offsets[count + 1], room);
      EXPECT_EQ(wide_slots[count], -1);
      for (int64_t i = wide_offsets[count]; i < room; ++i) EXPECT_EQ(sources[i], 0);
      for (size_t i = 0; i < picks.size(); ++i) EXPECT_EQ(sources[wide_picks[i]], picks[i]);
      if (args.places.empty()) continue;
      const auto places = bench.ReadInts(args.places);
      for (int t = 0; t < tokens; ++t) EXPECT_EQ(sources[places[t]], t);
    }
  }
}

TEST_P(InsertedPositionsTest, PositionsAreLookedUpByThePeriodAndCountedInPeriods) {
  SeededRandom random(9);
  constexpr int kTokens = 7, kPeriod = 5;
  for (const int dim : {1, 18, 64}) {
    std::vector<int64_t> positions;
    for (int t = 0; t < kTokens; ++t) positions.push_back(random.Int(0, 1000));
    const auto table = random.NormalValues(kPeriod * dim), y = random.NormalValues(kTokens * dim),
               weight = random.NormalValues(dim, 0.01), bias = random.NormalValues(dim);
    const auto run = [&](Backend& backend, bool layer) {
      Workbench bench(backend);
      const TensorView out = bench.Activations(y, {kTokens, dim});
      if (layer) {
        bench.kernels().PositionLayer({.positions = bench.Longs(positions),
                                       .period = kPeriod,
                                       .weight = bench.Floats(weight, {dim}),
                                       .bias = bench.Floats(bias, {dim}),
                                       .y = out});
      } else {
        bench.kernels().AddPositions({.positions = bench.Longs(positions),
                                      .period = kPeriod,
                                      .table = bench.Floats(table, {kPeriod, dim}),
                                      .y = out});
      }
      return bench.Read(out);
    };
    std::vector<double> added = y, layer;
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < dim; ++i) {
        added[t * dim + i] += table[positions[t] % kPeriod * dim + i];
        const double z = weight[i] * static_cast<double>(positions[t] / kPeriod) + bias[i];
        layer.push_back(z / (1 + std::exp(-z)));
      }
    }
    // Sums of up to 10; z of up to 20, times what silu adds.
    EXPECT_THAT(run(*backend_, false), IsWithin(kUnitF32 * 10, added));
    EXPECT_THAT(run(*backend_, true), IsWithin((4 * kUnitF32 + kFunctionError) * 20, layer));
  }
}

// One factor or one gate serves all channels of a head.
TEST_P(InsertedPositionsTest, HeadsAreScaledAndMixedByANumberEach) {
  SeededRandom random(10);
  constexpr int kTokens = 3, kHeads = 4;
  for (const int width : {2, 16, 21}) {
    const int dim = kHeads * width;
    const auto a = random.NormalValues(kTokens * dim), first = random.NormalValues(kTokens * dim),
               factor = random.NormalValues(kTokens * kHeads), bias = random.NormalValues(kHeads);
    Workbench bench(*backend_);
    const TensorView product = bench.Activations(a, {kTokens, dim});
    const TensorView mixed = bench.Activations(a, {kTokens, dim});
    const TensorView factors = bench.Activations(factor, {kTokens, kHeads});
    bench.kernels().Multiply({.a = product, .b = factors, .y = product});
    bench.kernels().ValueResidual({.first = bench.Activations(first, {kTokens, dim}),
                                   .gate = factors,
                                   .bias = bench.Floats(bias, {kHeads}),
                                   .v = mixed});
    std::vector<double> want_product, want_mixed;
    for (int i = 0; i < kTokens * dim; ++i) {
      const int head = i / width;
      want_product.push_back(a[i] * factor[head]);
      const double gate = 1 / (1 + std::exp(-factor[head] - bias[head % kHeads]));
      want_mixed.push_back(a[i] + (first[i] - a[i]) * gate);
    }
    EXPECT_THAT(bench.Read(product), IsWithin(kUnitF32 * 20, want_product));
    EXPECT_THAT(bench.Read(mixed), IsWithin((4 * kUnitF32 + kFunctionError) * 10, want_mixed));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, InsertedPositionsTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
