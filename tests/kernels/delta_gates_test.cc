#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct DeltaGateValues {
  std::vector<double> log_decay, beta;
};

struct DeltaGatesProblem {
  DeltaGatesProblem(uint64_t seed, int rows, int heads) : rows(rows), heads(heads) {
    SeededRandom random(seed);
    a = random.NormalValues(rows * heads, 6);
    b = random.NormalValues(rows * heads, 6);
    // As the released models are initialised: A in (0, 16), dt_bias around softplus^-1 of 1e-3 ..
    // 0.1.
    for (int h = 0; h < heads; ++h) {
      a_log.push_back(RoundTo(std::log(random.Uniform(0.01, 16)), DType::kF32));
      dt_bias.push_back(RoundTo(random.Uniform(-7, -2), DType::kF32));
    }
  }

  DeltaGateValues Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    const int entries = entry_rows.empty() ? rows : static_cast<int>(entry_rows.size());
    DeltaGatesArgs args;
    args.a = bench.Activations(a, {rows, heads});
    args.b = bench.Activations(b, {rows, heads});
    args.a_log = bench.Floats(a_log, {heads});
    args.dt_bias = bench.Floats(dt_bias, {heads});
    if (!entry_rows.empty()) args.entry_rows = bench.Ints(entry_rows);
    args.beta_scale = beta_scale;
    args.log_decay = in_place ? args.a : bench.NewActivations({entries, heads});
    args.beta = in_place ? args.b : bench.NewActivations({entries, heads});
    bench.kernels().DeltaGates(args);
    return {bench.Read(args.log_decay), bench.Read(args.beta)};
  }

  int rows, heads;
  float beta_scale = 1;
  std::vector<double> a, b, a_log, dt_bias;
  std::vector<int> entry_rows;
};

// log_decay = -exp(A_log) log1p(exp(z)), z = a + dt_bias: three functions, the product, and the
// rounding of z, which moves softplus(z) by at most |z| u sigmoid(z). The error is relative even
// where softplus is tiny: a decay is applied a hundred thousand times, and 1 - decay is what
// counts.
std::vector<double> LogDecayBound(const DeltaGatesProblem& p, const std::vector<double>& want) {
  std::vector<double> bound;
  for (size_t i = 0; i < want.size(); ++i) {
    const int e = static_cast<int>(i) / p.heads, h = static_cast<int>(i) % p.heads;
    const int row = p.entry_rows.empty() ? e : p.entry_rows[e];
    const double z = p.a[row * p.heads + h] + p.dt_bias[h];
    const double of_z = std::exp(p.a_log[h]) * std::abs(z) * kUnitF32 / (1 + std::exp(-z));
    bound.push_back((3 * kFunctionError + 4 * kUnitF32) * std::abs(want[i]) + 2 * of_z + kTinyF32);
  }
  return bound;
}

// One exp, one sum, one division, one product.
std::vector<double> BetaBound(const std::vector<double>& want) {
  std::vector<double> bound;
  for (const double value : want) {
    bound.push_back((kFunctionError + 4 * kUnitF32) * std::abs(value) + kTinyF32);
  }
  return bound;
}

class DeltaGatesTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const DeltaGatesProblem& p) {
    const DeltaGateValues want = p.Run(*reference_), got = p.Run(*backend_);
    EXPECT_THAT(got.log_decay, IsWithin(LogDecayBound(p, want.log_decay), want.log_decay));
    EXPECT_THAT(got.beta, IsWithin(BetaBound(want.beta), want.beta));
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(DeltaGatesTest, MatchesReference) {
  for (const int heads : {1, 2, 3, 8, 15, 16, 33}) {
    for (const int rows : {0, 1, 20}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << heads << ", seed " << heads);
      ExpectMatch(DeltaGatesProblem(heads, rows, heads));
    }
  }
}

TEST_P(DeltaGatesTest, ReadsTheRowOfEachEntry) {
  DeltaGatesProblem p(40, 9, 5);
  p.entry_rows = {8, 0, 0, 3, 7, 7, 7, 1, 2, 4, 8};
  ExpectMatch(p);
}

TEST_P(DeltaGatesTest, BetaReachesTwoWithNegativeEigenvalues) {
  DeltaGatesProblem p(41, 9, 5);
  p.beta_scale = 2;
  p.b[0] = 40;
  ExpectMatch(p);
  EXPECT_EQ(p.Run(*backend_).beta[0], 2);
}

// The switch at 20, saturation on both sides, and gates that are all but closed.
TEST_P(DeltaGatesTest, HoldsOverTheWholeRange) {
  DeltaGatesProblem p(42, 0, 1);
  p.dt_bias[0] = 0;
  for (double z = -80; z <= 80; z += 0.125) {
    p.a.push_back(z);
    p.b.push_back(z);
    ++p.rows;
  }
  for (const double z : {19.99, 20.0, 20.01, 1e4, -1e4, 1e-8, -1e-8, 0.0}) {
    p.a.push_back(RoundTo(z, DType::kF32));
    p.b.push_back(RoundTo(z, DType::kF32));
    ++p.rows;
  }
  ExpectMatch(p);
  for (const double log_decay : p.Run(*backend_).log_decay) EXPECT_LE(log_decay, 0);
}

// exp(A_log) beyond f32, and softplus that f32 has no number for: a product of the two is a number
// all the same, and where it is a fair one, it is right.
TEST_P(DeltaGatesTest, ExtremeRatesMakeNoNaN) {
  const std::vector<double> logs = {100, 89, 88, 30, 0, -30, -88, -100};
  DeltaGatesProblem p(45, 0, static_cast<int>(logs.size()));
  p.a_log = logs;
  p.dt_bias.assign(logs.size(), 0.0);
  for (const double z : {-1e30, -300.0, -200.0, -120.0, -103.0, -95.0, -88.0, -87.0, -40.0, -17.5,
                         -17.0, -16.5, -5.0, 0.0, 5.0, 1e3, 1e30}) {
    p.a.insert(p.a.end(), logs.size(), RoundTo(z, DType::kF32));
    p.b.insert(p.b.end(), logs.size(), 0.0);
    ++p.rows;
  }
  const DeltaGateValues want = p.Run(*reference_), got = p.Run(*backend_);
  for (size_t i = 0; i < want.log_decay.size(); ++i) {
    const double g = want.log_decay[i], z = p.a[i], a_log = logs[i % logs.size()];
    SCOPED_TRACE(testing::Message() << "A_log " << a_log << ", z " << z);
    EXPECT_TRUE(std::isfinite(got.log_decay[i]));
    if (g < -1e30) {  // beyond f32, or nearly
      EXPECT_LT(got.log_decay[i], -1e4);
    } else {
      // As LogDecayBound, and the rounding of A_log + z.
      const double sum = std::abs(a_log) + std::abs(z) / (1 + std::exp(-z));
      const double near = z < 0 ? std::min(std::abs(z), 200.0) : 0.0;
      EXPECT_NEAR(got.log_decay[i], g,
                  (3 * kFunctionError + (6 + 2 * sum + 2 * near) * kUnitF32) * std::abs(g) + 1e-12);
    }
  }
}

TEST_P(DeltaGatesTest, OutputsMayAliasInputs) {
  const DeltaGatesProblem p(43, 11, 6);
  const DeltaGateValues want = p.Run(*backend_), got = p.Run(*backend_, true);
  EXPECT_THAT(got.log_decay, HasSameBits(want.log_decay));
  EXPECT_THAT(got.beta, HasSameBits(want.beta));
}

TEST_P(DeltaGatesTest, NeitherPlaceNorThreadsChangeABit) {
  const DeltaGatesProblem all(44, 64, 3);
  const DeltaGateValues want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    const DeltaGateValues got = all.Run(*GetParam().Make(threads));
    EXPECT_THAT(got.log_decay, HasSameBits(want.log_decay));
    EXPECT_THAT(got.beta, HasSameBits(want.beta));
  }
  for (int row = 0; row < all.rows; ++row) {
    DeltaGatesProblem one = all;
    one.entry_rows = {row};
    const DeltaGateValues got = one.Run(*backend_);
    const auto slice = [row](const std::vector<double>& v) {
      return std::vector<double>(v.begin() + row * 3, v.begin() + (row + 1) * 3);
    };
    EXPECT_THAT(got.log_decay, HasSameBits(slice(want.log_decay))) << row;
    EXPECT_THAT(got.beta, HasSameBits(slice(want.beta))) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeltaGatesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
