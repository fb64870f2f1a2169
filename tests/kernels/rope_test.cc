#include <cmath>
#include <cstdint>
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

struct RopeProblem {
  RopeProblem(uint64_t seed, std::vector<int64_t> at, int heads, int dim)
      : positions(std::move(at)), heads(heads), dim(dim) {
    SeededRandom random(seed);
    x = random.NormalValues(static_cast<int64_t>(positions.size()) * heads * dim);
    for (int j = 0; j < dim / 2; ++j) {
      frequencies.push_back(RoundTo(std::pow(10000.0, -2.0 * j / dim), DType::kF32));
    }
  }

  std::vector<double> Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    const Shape shape = {static_cast<int64_t>(positions.size()), heads, dim};
    RopeArgs args;
    args.x = bench.Activations(x, shape);
    args.positions = bench.Longs(positions);
    args.frequencies = bench.Floats(frequencies, {dim / 2});
    if (in_two) {
      std::vector<double> parts = frequencies;
      for (const double frequency : frequencies) {
        parts.push_back(RoundTo(frequency * 0x1.23p-25, DType::kF32));
      }
      args.frequencies = bench.Floats(parts, {2, dim / 2});
    }
    args.period = period;
    args.interleaved = interleaved;
    args.y = in_place ? args.x : bench.NewActivations(shape);
    bench.kernels().Rope(args);
    return bench.Read(args.y);
  }

  // Sine and cosine are one function each; two products and a sum. The angle's own rounding, to
  // float64, is the same everywhere, or differs by one in its last place.
  std::vector<double> Bound() const {
    std::vector<double> bound;
    const int half = dim / 2;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t j = i % dim;
      const size_t other = interleaved                     ? i ^ 1
                           : j < static_cast<size_t>(half) ? i + half
                                                           : i - half;
      const double angle = static_cast<double>(positions[i / dim / heads]) *
                           frequencies[interleaved ? j / 2 : j % half];
      bound.push_back((kFunctionError + 3 * kUnitF32 + angle * 0x1p-52) *
                          (std::abs(x[i]) + std::abs(x[other])) +
                      kTinyF32);
    }
    return bound;
  }

  std::vector<int64_t> positions;
  int heads, dim;
  bool in_two = false, interleaved = false;
  int64_t period = 0;
  std::vector<double> x, frequencies;
};

using RopeTest = ComparedBackendTest;

TEST_P(RopeTest, MatchesReference) {
  for (const int dim : {2, 6, 32, 66, 128, 130, 300}) {
    for (const int heads : {1, 3}) {
      const RopeProblem p(dim, {0, 1, 7, 2047, 3, 100000}, heads, dim);
      EXPECT_THAT(p.Run(*backend_), IsWithin(p.Bound(), p.Run(*reference_)))
          << heads << " x " << dim;
    }
  }
}

// In f32 an angle of a million has no digit left behind the point.
TEST_P(RopeTest, AnglesAreExactFarOut) {
  const RopeProblem p(1, {999999, 16777217, 1234567890123, (int64_t{1} << 40) + 1}, 2, 64);
  EXPECT_THAT(p.Run(*backend_), IsWithin(p.Bound(), p.Run(*reference_)));
}

TEST_P(RopeTest, PositionZeroChangesNothing) {
  const RopeProblem p(2, {0, 0}, 3, 34);
  EXPECT_THAT(p.Run(*backend_), IsWithin(0, p.x));
}

TEST_P(RopeTest, OutputMayAliasInput) {
  const RopeProblem p(3, {5, 6, 70000}, 2, 66);
  EXPECT_THAT(p.Run(*backend_, true), HasSameBits(p.Run(*backend_)));
}

TEST_P(RopeTest, NeitherThreadsNorOtherTokensChangeABit) {
  std::vector<int64_t> positions;
  for (int t = 0; t < 40; ++t) positions.push_back(31 * t);
  const RopeProblem all(4, positions, 3, 66);
  const std::vector<double> want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    EXPECT_THAT(all.Run(*GetParam().Make(threads)), HasSameBits(want));
  }
  RopeProblem last = all;
  last.positions = {positions.back()};
  last.x.assign(all.x.end() - 3 * 66, all.x.end());
  EXPECT_THAT(last.Run(*backend_), HasSameBits({want.end() - 3 * 66, want.end()}));
}

TEST_P(RopeTest, NoTokensAreNoWork) {
  EXPECT_TRUE(RopeProblem(5, {}, 2, 16).Run(*backend_).empty());
}

TEST_P(RopeTest, NeighboursAsPairsPositionsThatBeginAnewAndExactFrequencies) {
  const auto reference = MakeReference();
  uint64_t seed = 900;
  for (const int dim : {2, 6, 32, 130}) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t period : {int64_t{0}, int64_t{16}}) {
        RopeProblem problem(++seed, {0, 1, 15, 16, 40, (int64_t{1} << 24) + 5}, 3, dim);
        problem.interleaved = interleaved;
        problem.period = period;
        problem.in_two = true;
        const std::vector<double> want = problem.Run(*reference);
        EXPECT_THAT(problem.Run(*backend_), IsWithin(problem.Bound(), want)) << "seed " << seed;
        EXPECT_THAT(problem.Run(*backend_, /*in_place=*/true), HasSameBits(problem.Run(*backend_)));
        if (period == 0) continue;
        RopeProblem within = problem;
        within.period = 0;
        for (int64_t& position : within.positions) position %= period;
        EXPECT_THAT(problem.Run(*backend_), HasSameBits(within.Run(*backend_)));
      }
    }
  }
  // Two heads' halves of a number side by side: pairs of neighbours are pairs half a head apart.
  RopeProblem apart(950, {3}, 1, 4);
  RopeProblem neighbours = apart;
  neighbours.interleaved = true;
  neighbours.x = {apart.x[0], apart.x[2], apart.x[1], apart.x[3]};
  const std::vector<double> y = apart.Run(*backend_), z = neighbours.Run(*backend_);
  EXPECT_LE(RelativeError({z[0], z[2], z[1], z[3]}, y), 4 * kUnitF32);
}

INSTANTIATE_TEST_SUITE_P(Backends, RopeTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
