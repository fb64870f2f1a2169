#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

constexpr DecayGate kGates[] = {DecayGate::kLogSigmoid, DecayGate::kForget, DecayGate::kSoftplus,
                                DecayGate::kBounded, DecayGate::kExponential};

struct DecayGateValues {
  std::vector<double> log_decay, complement;
};

struct DecayGatesProblem {
  DecayGatesProblem(uint64_t seed, DecayGate gate, int rows, int heads, int dim)
      : gate(gate), rows(rows), heads(heads), dim(dim) {
    SeededRandom random(seed);
    x = random.NormalValues(static_cast<int64_t>(rows) * heads * dim, 4);
    if (gate == DecayGate::kForget) {
      for (int i = 0; i < heads * dim; ++i) {
        // From what forgets at will to what hardly may.
        lower.push_back(random.Chance(0.2) ? 0 : RoundTo(1 - random.Uniform(1e-4, 1), DType::kF32));
      }
    }
    if (gate == DecayGate::kSoftplus || gate == DecayGate::kBounded) {
      for (int h = 0; h < heads; ++h) {
        a_log.push_back(RoundTo(std::log(random.Uniform(0.5, 16)), DType::kF32));
      }
      dt_bias = random.UniformValues(heads * dim, -7, -1);
    }
  }

  DecayGateValues Run(Backend& backend, bool complement = true, bool in_place = false) const {
    Workbench bench(backend);
    const int entries = entry_rows.empty() ? rows : static_cast<int>(entry_rows.size());
    DecayGatesArgs args;
    args.gate = gate;
    args.x = bench.Activations(x, {rows, heads, dim});
    if (!entry_rows.empty()) args.entry_rows = bench.Ints(entry_rows);
    args.normalizer = static_cast<float>(normalizer);
    args.least = static_cast<float>(least);
    args.lower_bound = static_cast<float>(lower_bound);
    if (!lower.empty()) args.lower = bench.Floats(lower, {heads, dim});
    if (!a_log.empty()) args.a_log = bench.Floats(a_log, {heads});
    if (!dt_bias.empty()) args.dt_bias = bench.Floats(dt_bias, {heads, dim});
    args.log_decay = in_place ? args.x : bench.NewActivations({entries, heads, dim});
    if (complement) args.complement = bench.NewActivations({entries, heads, dim});
    bench.kernels().DecayGates(args);
    DecayGateValues gates = {bench.Read(args.log_decay), {}};
    if (complement) gates.complement = bench.Read(args.complement);
    return gates;
  }

  // Errors are relative even where a gate is all but closed: a decay is applied a hundred thousand
  // times, and 1 - decay is what counts.
  //
  // kLogSigmoid: exp, log, two roundings. kForget: the complement c = (1 - lower) sigmoid(-x) has
  // one exp, a division and three roundings; log(1 - c) has twice that up to c = 1/2, and beyond,
  // where it is at least log 2, that of 1 - c. kSoftplus: three functions, and the rounding of z =
  // x + dt_bias, which moves softplus(z) by |z| u sigmoid(z). kBounded: that of y = exp(a_log) z,
  // one function and two roundings, which moves sigmoid(y), relatively, by sigmoid(-y) of itself.
  // kExponential: one function.
  // 1 - exp(g) moves by exp(g) of g's error, and has one function of its own.
  DecayGateValues Bound(const DecayGateValues& want) const {
    DecayGateValues bound;
    for (size_t i = 0; i < want.log_decay.size(); ++i) {
      const size_t width = static_cast<size_t>(heads) * dim, e = i / width, j = i % width;
      const size_t row = entry_rows.empty() ? e : static_cast<size_t>(entry_rows[e]);
      const double value = x[row * width + j], g = std::abs(want.log_decay[i]);
      double error = 0;
      switch (gate) {
        case DecayGate::kLogSigmoid:
          error = (2 * kFunctionError + 4 * kUnitF32) * g;
          break;
        case DecayGate::kForget:
          error = 5 * (kFunctionError + 4 * kUnitF32) * g;
          break;
        case DecayGate::kSoftplus: {
          const double z = value + dt_bias[j];
          error = (3 * kFunctionError + 4 * kUnitF32) * g +
                  2 * std::exp(a_log[j / dim]) * std::abs(z) * kUnitF32 / (1 + std::exp(-z));
          break;
        }
        case DecayGate::kBounded: {
          const double y = std::exp(a_log[j / dim]) * (value + dt_bias[j]);
          error = (kFunctionError + 4 * kUnitF32) * g +
                  1.1 * (kFunctionError + 3 * kUnitF32) * std::abs(y) / (1 + std::exp(y)) * g;
          break;
        }
        case DecayGate::kExponential:
          error = (kFunctionError + 2 * kUnitF32) * g;
          break;
      }
      bound.log_decay.push_back(error + kTinyF32 * std::max(1.0, std::abs(lower_bound)));
      if (want.complement.empty()) continue;
      const double own = (kFunctionError + 6 * kUnitF32) * want.complement[i];
      bound.complement.push_back(own + std::exp(-g) * error + kTinyF32);
    }
    return bound;
  }

  std::string Describe() const {
    return "gate " + std::to_string(static_cast<int>(gate)) + ", " + std::to_string(rows) + " x " +
           std::to_string(heads) + " x " + std::to_string(dim);
  }

  DecayGate gate;
  int rows, heads, dim;
  double normalizer = 16, least = -std::numeric_limits<double>::infinity(), lower_bound = -5;
  std::vector<double> x, lower, a_log, dt_bias;
  std::vector<int> entry_rows;
};

class DecayGatesTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const DecayGatesProblem& p) {
    SCOPED_TRACE(p.Describe());
    const DecayGateValues want = p.Run(*reference_), got = p.Run(*backend_), bound = p.Bound(want);
    EXPECT_THAT(got.log_decay, IsWithin(bound.log_decay, want.log_decay));
    EXPECT_THAT(got.complement, IsWithin(bound.complement, want.complement));
    for (const double log_decay : got.log_decay) EXPECT_LE(log_decay, 0);
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(DecayGatesTest, MatchesReference) {
  for (const DecayGate gate : kGates) {
    for (const int dim : {1, 3, 16, 33, 65, 128}) {
      for (const int rows : {0, 1, 9}) ExpectMatch(DecayGatesProblem(dim, gate, rows, 3, dim));
    }
  }
}

TEST_P(DecayGatesTest, ReadsTheRowOfEachEntry) {
  for (const DecayGate gate : kGates) {
    DecayGatesProblem p(40, gate, 9, 2, 20);
    p.entry_rows = {8, 0, 0, 3, 7, 7, 7, 1, 2, 4, 8};
    ExpectMatch(p);
  }
}

TEST_P(DecayGatesTest, ALogDecayIsNotBelowTheLeast) {
  DecayGatesProblem p(41, DecayGate::kLogSigmoid, 20, 2, 33);
  p.normalizer = 1;
  p.least = -0.5;
  ExpectMatch(p);
  const std::vector<double> got = p.Run(*backend_).log_decay;
  EXPECT_EQ(*std::min_element(got.begin(), got.end()), -0.5);
}

TEST_P(DecayGatesTest, WithoutALowerBoundItIsZero) {
  DecayGatesProblem p(42, DecayGate::kForget, 20, 2, 33);
  std::fill(p.lower.begin(), p.lower.end(), 0.0);
  const DecayGateValues want = p.Run(*backend_);
  p.lower.clear();
  ExpectMatch(p);
  const DecayGateValues got = p.Run(*backend_), bound = p.Bound(want);
  EXPECT_THAT(got.log_decay, IsWithin(bound.log_decay, want.log_decay));
  EXPECT_THAT(got.complement, IsWithin(bound.complement, want.complement));
}

// Saturation on both sides, the switches within, and gates that are all but open or closed.
TEST_P(DecayGatesTest, HoldsOverTheWholeRange) {
  for (const DecayGate gate : kGates) {
    DecayGatesProblem p(43, gate, 0, 1, 4);
    p.a_log.assign(p.a_log.size(), 0.0);
    p.dt_bias.assign(p.dt_bias.size(), 0.0);
    if (gate == DecayGate::kForget) p.lower = {0, RoundTo(1e-6, DType::kF32), 0.5, 1 - 0x1p-20};
    std::vector<double> values;
    for (double z = -80; z <= 80; z += 0.125) values.push_back(z);
    for (const double z : {19.99, 20.01, 1e4, -1e4, 2e5, -2e5, 1e-8, -1e-8, 1e30, -1e30}) {
      values.push_back(RoundTo(z, DType::kF32));
    }
    for (const double value : values) p.x.insert(p.x.end(), 4, value);
    p.rows = static_cast<int>(values.size());
    ExpectMatch(p);
    const DecayGateValues got = p.Run(*backend_);
    for (const double value : got.log_decay) EXPECT_TRUE(std::isfinite(value));
    if (gate == DecayGate::kForget) {
      EXPECT_EQ(*std::min_element(got.log_decay.begin(), got.log_decay.end()), kLeastLogDecay);
    }
  }
}

// exp(A_log) beyond f32, and softplus that f32 has no number for.
TEST_P(DecayGatesTest, ExtremeRatesMakeNoNaN) {
  for (const DecayGate gate : {DecayGate::kSoftplus, DecayGate::kBounded}) {
    for (const double a_log : {100.0, 89.0, 88.0, -100.0}) {
      DecayGatesProblem p(46, gate, 0, 1, 1);
      p.a_log = {a_log};
      p.dt_bias = {0.0};
      for (const double z : {-1e30, -300.0, -200.0, -103.0, -95.0, -87.0, -40.0, 0.0, 5.0, 1e30}) {
        p.x.push_back(RoundTo(z, DType::kF32));
        ++p.rows;
      }
      SCOPED_TRACE(testing::Message() << p.Describe() << ", A_log " << a_log);
      const DecayGateValues want = p.Run(*reference_), got = p.Run(*backend_);
      for (size_t i = 0; i < want.log_decay.size(); ++i) {
        EXPECT_TRUE(std::isfinite(got.log_decay[i])) << p.x[i];
        EXPECT_NEAR(std::exp(got.log_decay[i]), std::exp(want.log_decay[i]), 1e-4) << p.x[i];
        EXPECT_NEAR(got.complement[i], want.complement[i], 1e-4) << p.x[i];
      }
    }
  }
}

TEST_P(DecayGatesTest, TheOutputMayAliasTheInputAndComplementsMayBeLeftOut) {
  for (const DecayGate gate : kGates) {
    const DecayGatesProblem p(44, gate, 11, 3, 33);
    const DecayGateValues want = p.Run(*backend_), got = p.Run(*backend_, true, true);
    EXPECT_THAT(got.log_decay, HasSameBits(want.log_decay));
    EXPECT_THAT(got.complement, HasSameBits(want.complement));
    EXPECT_THAT(p.Run(*backend_, false).log_decay, HasSameBits(want.log_decay));
    EXPECT_THAT(p.Run(*backend_, false, true).log_decay, HasSameBits(want.log_decay));
  }
}

TEST_P(DecayGatesTest, NeitherPlaceNorThreadsChangeABit) {
  for (const DecayGate gate : kGates) {
    const DecayGatesProblem all(45, gate, 64, 2, 33);
    const DecayGateValues want = all.Run(*backend_);
    for (const int threads : {1, 3}) {
      const DecayGateValues got = all.Run(*GetParam().Make(threads));
      EXPECT_THAT(got.log_decay, HasSameBits(want.log_decay));
      EXPECT_THAT(got.complement, HasSameBits(want.complement));
    }
    for (const int row : {0, 17, 63}) {
      DecayGatesProblem one = all;
      one.entry_rows = {row};
      const DecayGateValues got = one.Run(*backend_);
      const auto slice = [row](const std::vector<double>& v) {
        return std::vector<double>(v.begin() + row * 66, v.begin() + (row + 1) * 66);
      };
      EXPECT_THAT(got.log_decay, HasSameBits(slice(want.log_decay))) << row;
      EXPECT_THAT(got.complement, HasSameBits(slice(want.complement))) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DecayGatesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
