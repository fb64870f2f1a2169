// What a step of a neural memory takes of its tokens, and what it says of them: KeepGate,
// ChunkMean, ChunkPool and Surprise.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

constexpr int kSlots = 4;

class MemoryGatesTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> reference_ = MakeReference();
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(MemoryGatesTest, KeepGateMatchesReference) {
  uint64_t seed = 600;
  for (const int heads : {1, 3, 16, 21}) {
    for (const bool gdn : {false, true}) {
      const int entries = 9;
      SeededRandom random(++seed);
      const auto x = random.NormalValues(entries * heads, 4);
      const auto a_log = random.NormalValues(heads), dt_bias = random.NormalValues(heads);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        KeepGateArgs args{.x = bench.Activations(x, {entries, heads})};
        if (gdn) args.a_log = bench.Floats(a_log, {heads});
        if (gdn) args.dt_bias = bench.Floats(dt_bias, {heads});
        args.y = args.x;
        bench.kernels().KeepGate(args);
        return bench.Read(args.y);
      };
      const std::vector<double> want = run(*reference_);
      std::vector<double> bound;
      for (size_t i = 0; i < want.size(); ++i) {
        // The exponent's own relative error counts as often as the exponent is large.
        const double exponent = 4 + std::abs(x[i]) - std::log(std::max(want[i], 1e-30));
        bound.push_back(want[i] * exponent * kFunctionError + kTinyF32);
      }
      EXPECT_THAT(run(*backend_), IsWithin(bound, want)) << "seed " << seed;
    }
  }
}

// exp(A_log) beyond f32, and softplus that f32 has no number for.
TEST_P(MemoryGatesTest, ExtremeRatesMakeNoNaN) {
  const std::vector<double> logs = {100, 89, 88, -100};
  std::vector<double> x;
  int entries = 0;
  for (const double z : {-300.0, -200.0, -103.0, -95.0, -87.0, -40.0, 0.0, 5.0, 1e3}) {
    x.insert(x.end(), logs.size(), z);
    ++entries;
  }
  const auto run = [&](Backend& backend) {
    Workbench bench(backend);
    const auto heads = static_cast<int64_t>(logs.size());
    KeepGateArgs args{.x = bench.Activations(x, {entries, heads}),
                      .a_log = bench.Floats(logs, {heads}),
                      .dt_bias = bench.Floats(std::vector<double>(logs.size()), {heads})};
    args.y = args.x;
    bench.kernels().KeepGate(args);
    return bench.Read(args.y);
  };
  const std::vector<double> want = run(*reference_), got = run(*backend_);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-4) << "A_log " << logs[i % logs.size()] << ", x " << x[i];
  }
}

TEST_P(MemoryGatesTest, ChunkMeanGoesOnWhereItStopped) {
  const int dim = 21, length = 30, chunk = 7;
  SeededRandom random(700);
  const auto x = random.NormalValues(length * dim);
  const auto run = [&](Backend& backend, const std::vector<int>& sizes) {
    Workbench bench(backend);
    SlabPool sums(bench, kSlots, 1, dim, backend.activation_dtype());
    std::vector<double> all;
    int done = 0;
    for (const int size : sizes) {
      std::vector<int64_t> positions;
      for (int i = 0; i < size; ++i) positions.push_back(14 + done + i);
      ChunkMeanArgs args{
          .x = bench.Activations({x.begin() + done * dim, x.begin() + (done + size) * dim},
                                 {size, dim}),
          .chunk = chunk,
          .positions = bench.Longs(positions),
          .segments = Upload(bench, {{.length = size, .slot = 3}}),
          .sums = sums.view()};
      args.y = args.x;
      bench.kernels().ChunkMean(args);
      const auto rows = bench.Read(args.y);
      all.insert(all.end(), rows.begin(), rows.end());
      done += size;
    }
    return all;
  };
  const std::vector<double> whole = run(*backend_, {length}), want = run(*reference_, {length});
  EXPECT_THAT(run(*backend_, {1, 12, 1, 16}), HasSameBits(whole));
  EXPECT_LE(RelativeError(whole, want), SumError(chunk));
  for (int i = 0; i < dim; ++i) {
    double mean = 0;
    for (int t = chunk; t < 2 * chunk; ++t) mean += x[t * dim + i] / chunk;
    EXPECT_NEAR(want[(2 * chunk - 1) * dim + i], mean, 1e-12);
  }
}

TEST_P(MemoryGatesTest, ChunkPoolGoesOnWhereItStopped) {
  const int dim = 21, length = 30, chunk = 7, start = 16;
  SeededRandom random(800);
  const auto x = random.NormalValues(length * dim), logits = random.NormalValues(length * dim, 4);
  const auto run = [&](Backend& backend, const std::vector<int>& sizes) {
    Workbench bench(backend);
    SlabPool sums(bench, kSlots, 1, 3 * dim, backend.activation_dtype());
    // What two tokens left that came before.
    std::vector<double> before(3 * dim, 0.5);
    sums.Write(2, 0, before);
    std::vector<double> all;
    int done = 0;
    for (const int size : sizes) {
      std::vector<int64_t> positions;
      for (int i = 0; i < size; ++i) positions.push_back(start + done + i);
      const auto rows = [&](const std::vector<double>& values) {
        return bench.Activations(
            {values.begin() + done * dim, values.begin() + (done + size) * dim}, {size, dim});
      };
      ChunkPoolArgs args{.x = rows(x),
                         .logits = rows(logits),
                         .chunk = chunk,
                         .positions = bench.Longs(positions),
                         .segments = Upload(bench, {{.length = size, .slot = 2}}),
                         .sums = sums.view()};
      args.y = args.x;
      bench.kernels().ChunkPool(args);
      const auto pooled = bench.Read(args.y);
      all.insert(all.end(), pooled.begin(), pooled.end());
      done += size;
    }
    return all;
  };
  const std::vector<double> whole = run(*backend_, {length}), want = run(*reference_, {length});
  EXPECT_THAT(run(*backend_, {1, 12, 1, 16}), HasSameBits(whole));
  // Logits differ by up to some 16 within a chunk; that many exponents' own relative errors, twice.
  EXPECT_LE(RelativeError(whole, want), 2 * 16 * (SumError(chunk) + kFunctionError));
  for (int i = 0; i < dim; ++i) {
    double total = 0, weighted = 0;
    for (int t = 21 - start; t < 28 - start; ++t) {
      total += std::exp(logits[t * dim + i]);
      weighted += std::exp(logits[t * dim + i]) * x[t * dim + i];
    }
    EXPECT_NEAR(want[(27 - start) * dim + i], weighted / total, 1e-12);
  }
}

// Prompts that begin and end anywhere in a chunk, beside each other and a padded one.
TEST_P(MemoryGatesTest, ChunksOfOneSegmentDoNotSeeThoseOfOthers) {
  const int dim = 300, chunk = 4;
  struct Prompt {
    int length, slot;
    int64_t start;
  };
  const std::vector<Prompt> prompts = {{33, 2, 5}, {1, 0, 8}, {3, -1, 1}, {6, 3, 7}, {19, 1, 0}};
  SeededRandom random(750);
  std::vector<std::vector<double>> x, logits;
  for (const Prompt& prompt : prompts) {
    x.push_back(random.NormalValues(prompt.length * dim));
    logits.push_back(random.NormalValues(prompt.length * dim));
  }
  const auto before = random.NormalValues(3 * dim);
  struct Output {
    std::vector<double> means, pooled, sums;
  };
  const auto run = [&](const std::vector<int>& which) {
    Workbench bench(*backend_);
    SlabPool sums(bench, kSlots, 1, dim, backend_->activation_dtype());
    SlabPool parts(bench, kSlots, 1, 3 * dim, backend_->activation_dtype());
    std::vector<SegmentSpec> specs;
    std::vector<double> values, weights;
    std::vector<int64_t> positions;
    for (const int n : which) {
      const Prompt& prompt = prompts[n];
      specs.push_back({.length = prompt.length, .slot = prompt.slot});
      values.insert(values.end(), x[n].begin(), x[n].end());
      weights.insert(weights.end(), logits[n].begin(), logits[n].end());
      for (int i = 0; i < prompt.length; ++i) positions.push_back(prompt.start + i);
      if (prompt.slot < 0) continue;
      sums.Write(prompt.slot, 0, {before.begin(), before.begin() + dim});
      parts.Write(prompt.slot, 0, before);
    }
    const int entries = static_cast<int>(positions.size());
    const Segments segments = Upload(bench, specs);
    const TensorView in = bench.Activations(values, {entries, dim}),
                     means = bench.Activations(values, {entries, dim}),
                     pooled = bench.Activations(weights, {entries, dim}),
                     at = bench.Longs(positions);
    bench.kernels().ChunkMean({.x = in,
                               .chunk = chunk,
                               .positions = at,
                               .segments = segments,
                               .sums = sums.view(),
                               .y = means});
    bench.kernels().ChunkPool({.x = in,
                               .logits = pooled,
                               .chunk = chunk,
                               .positions = at,
                               .segments = segments,
                               .sums = parts.view(),
                               .y = pooled});
    Output output{.means = bench.Read(means), .pooled = bench.Read(pooled), .sums = {}};
    for (const int n : which) {
      if (prompts[n].slot < 0) continue;
      for (SlabPool* const pool : {&sums, &parts}) {
        const auto left = pool->Read(prompts[n].slot, 0);
        output.sums.insert(output.sums.end(), left.begin(), left.end());
      }
    }
    return output;
  };
  const Output together = run({0, 1, 2, 3, 4});
  size_t entry = 0, sum = 0;
  for (int n = 0; n < static_cast<int>(prompts.size()); ++n) {
    const size_t end = entry + prompts[n].length * dim;
    const auto part = [](const std::vector<double>& all, size_t from, size_t to) {
      return std::vector<double>(all.begin() + static_cast<int64_t>(from),
                                 all.begin() + static_cast<int64_t>(to));
    };
    if (prompts[n].slot >= 0) {
      const Output alone = run({n});
      EXPECT_THAT(part(together.means, entry, end), HasSameBits(alone.means)) << "prompt " << n;
      EXPECT_THAT(part(together.pooled, entry, end), HasSameBits(alone.pooled)) << "prompt " << n;
      EXPECT_THAT(part(together.sums, sum, sum + 4 * dim), HasSameBits(alone.sums))
          << "prompt " << n;
      sum += 4 * dim;
    }
    entry = end;
  }
}

TEST_P(MemoryGatesTest, SurpriseIsTheMeanLossAndNaNWhereAnythingIsNotFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const int entries = 9, pairs = 70, heads = 2, dim = 37;
  SeededRandom random(800);
  std::vector<double> loss, read;
  for (const double x : random.NormalValues(entries * pairs)) {
    loss.push_back(static_cast<float>(x * x));
  }
  read = random.NormalValues(entries * heads * dim);
  loss[2 * pairs + 69] = kInf;
  loss[3 * pairs] = kNaN;
  read[4 * heads * dim + heads * dim - 1] = -kInf;
  read[5 * heads * dim] = kNaN;
  const std::vector<int> bad = {2, 3, 4, 5};
  // The entry of each place; that of place 3 comes in another call. And the place of each token.
  const std::vector<int> some = {8, 2, 0, entries, 5}, others = {4, 3, 0};
  struct Case {
    std::vector<int> places, outer;
  };
  for (const auto& [places, outer] :
       {Case{}, Case{some, {}}, Case{some, others}, Case{{}, {5, 7, 0}}}) {
    const int tokens = static_cast<int>(!outer.empty()    ? outer.size()
                                        : !places.empty() ? places.size()
                                                          : entries);
    const auto run = [&, &places = places, &outer = outer](Backend& backend) {
      Workbench bench(backend);
      SurpriseArgs args{.loss = bench.Activations(loss, {entries, pairs}),
                        .read = bench.Activations(read, {entries, heads, dim}),
                        .surprise = bench.Floats(std::vector<double>(tokens, -1), {tokens})};
      if (!places.empty()) args.places = bench.Ints(places);
      if (!outer.empty()) args.outer = bench.Ints(outer);
      bench.kernels().Surprise(args);
      return bench.Read(args.surprise);
    };
    const std::vector<double> got = run(*backend_), want = run(*reference_);
    for (int t = 0; t < tokens; ++t) {
      const int place = outer.empty() ? t : outer[t];
      const int entry = places.empty() ? place : places[place];
      if (entry == entries) {
        EXPECT_EQ(got[t], -1) << "token " << t;
        continue;
      }
      if (std::find(bad.begin(), bad.end(), entry) != bad.end()) {
        EXPECT_TRUE(std::isnan(got[t]) && std::isnan(want[t])) << "token " << t;
        continue;
      }
      double mean = 0;
      for (int i = 0; i < pairs; ++i) mean += loss[entry * pairs + i] / pairs;
      EXPECT_NEAR(want[t], mean, mean * 2 * kUnitF32);
      EXPECT_NEAR(got[t], mean, mean * SumError(pairs));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoryGatesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
