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

enum class Alias { kNone, kGate, kUp };

std::vector<double> SwiGlu(Backend& backend, const std::vector<double>& gate,
                           const std::vector<double>& up, int dim, Alias alias = Alias::kNone) {
  Workbench bench(backend);
  const Shape shape = {static_cast<int64_t>(gate.size()) / dim, dim};
  SwiGluArgs args;
  args.gate = bench.Activations(gate, shape);
  args.up = bench.Activations(up, shape);
  args.y = alias == Alias::kGate ? args.gate
           : alias == Alias::kUp ? args.up
                                 : bench.NewActivations(shape);
  bench.kernels().SwiGlu(args);
  return bench.Read(args.y);
}

// One exp, one sum, one division, two products; where exp(-gate) overflows f32 the result may be
// zero.
std::vector<double> Bound(const std::vector<double>& want, const std::vector<double>& up) {
  std::vector<double> bound;
  for (size_t i = 0; i < want.size(); ++i) {
    bound.push_back((kFunctionError + 5 * kUnitF32) * std::abs(want[i]) +
                    kTinyF32 * (1 + std::abs(up[i])));
  }
  return bound;
}

using SwiGluTest = ComparedBackendTest;

TEST_P(SwiGluTest, MatchesReference) {
  for (const int dim : {1, 15, 16, 33, 100, 256}) {
    for (const int tokens : {0, 1, 3, 40}) {
      SeededRandom random(dim);
      const std::vector<double> gate = random.NormalValues(tokens * dim, 4);
      const std::vector<double> up = random.NormalValues(tokens * dim, 2);
      const std::vector<double> want = SwiGlu(*reference_, gate, up, dim);
      EXPECT_THAT(SwiGlu(*backend_, gate, up, dim), IsWithin(Bound(want, up), want))
          << tokens << " x " << dim << " seed " << dim;
    }
  }
}

TEST_P(SwiGluTest, HoldsFromSaturationToSaturation) {
  std::vector<double> gate;
  for (double z = -200; z <= 200; z += 0.0625) gate.push_back(z);
  for (const double z : {1e4, -1e4, 1e30, -1e30, 0.0, 1e-20, -1e-20})
    gate.push_back(RoundTo(z, DType::kF32));
  const std::vector<double> up(gate.size(), 1.0);
  const int dim = static_cast<int>(gate.size());
  const std::vector<double> want = SwiGlu(*reference_, gate, up, dim);
  EXPECT_THAT(SwiGlu(*backend_, gate, up, dim), IsWithin(Bound(want, up), want));
}

TEST_P(SwiGluTest, OutputMayAliasEitherInput) {
  SeededRandom random(3);
  const std::vector<double> gate = random.NormalValues(5 * 77), up = random.NormalValues(5 * 77);
  const std::vector<double> want = SwiGlu(*backend_, gate, up, 77);
  EXPECT_THAT(SwiGlu(*backend_, gate, up, 77, Alias::kGate), HasSameBits(want));
  EXPECT_THAT(SwiGlu(*backend_, gate, up, 77, Alias::kUp), HasSameBits(want));
}

TEST_P(SwiGluTest, NeitherOtherTokensNorThreadsChangeABit) {
  SeededRandom random(4);
  for (const int dim : {5, 77, 96}) {
    const std::vector<double> gate = random.NormalValues(21 * dim, 3);
    const std::vector<double> up = random.NormalValues(21 * dim);
    const std::vector<double> want = SwiGlu(*backend_, gate, up, dim);
    EXPECT_THAT(SwiGlu(*GetParam().Make(1), gate, up, dim), HasSameBits(want)) << dim;
    EXPECT_THAT(SwiGlu(*GetParam().Make(3), gate, up, dim), HasSameBits(want)) << dim;
    for (int first = 1; first < 21; ++first) {
      const auto tail = [first, dim](const std::vector<double>& values) {
        return std::vector<double>(values.begin() + first * dim, values.end());
      };
      EXPECT_THAT(SwiGlu(*backend_, tail(gate), tail(up), dim), HasSameBits(tail(want)))
          << dim << " from token " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SwiGluTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
