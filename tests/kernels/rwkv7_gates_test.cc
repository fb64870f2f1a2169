// Rwkv7Gates, ValueResidual and Rwkv7Output.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/compared_backend.h"
#include "tests/kernels/rwkv_problems.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Rwkv7GatesTest = ComparedBackendTest;

struct RwkvGateValues {
  Values log_decay, c, e, k;
};

struct RwkvGatesProblem {
  RwkvGatesProblem(uint64_t seed, int entries, int heads, int dim)
      : entries(entries), heads(heads), dim(dim) {
    SeededRandom random(seed);
    const int64_t n = int64_t{entries} * heads * dim;
    decay = random.NormalValues(n, 6);
    rate = random.NormalValues(n, 6);
    k = random.NormalValues(n);
    decay_bias = random.NormalValues(heads * dim);
    rate_bias = random.NormalValues(heads * dim);
    k_k = random.NormalValues(heads * dim);
    k_a = random.NormalValues(heads * dim);
  }

  RwkvGateValues Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    const Shape shape = {entries, heads, dim}, channels = {heads, dim};
    Rwkv7GatesArgs args;
    args.decay = bench.Activations(decay, shape);
    args.rate = bench.Activations(rate, shape);
    args.k = bench.Activations(k, shape);
    args.decay_bias = bench.Floats(decay_bias, channels);
    args.rate_bias = bench.Floats(rate_bias, channels);
    args.k_k = bench.Floats(k_k, channels);
    args.k_a = bench.Floats(k_a, channels);
    args.eps = eps;
    args.least = least;
    args.log_decay = in_place ? args.decay : bench.NewActivations(shape);
    args.e = in_place ? args.rate : bench.NewActivations(shape);
    args.c = bench.NewActivations(shape);
    bench.kernels().Rwkv7Gates(args);
    return {bench.Read(args.log_decay), bench.Read(args.c), bench.Read(args.e), bench.Read(args.k)};
  }

  // A sigmoid of z has a function, and the rounding of z, which moves it, relatively, by at most
  // |z| u sigmoid(-z). The norm is as of L2Norm, of products. k (1 + (a - 1) k_a) is relative to
  // the terms.
  RwkvGateValues Bound(const RwkvGateValues& want) const {
    RwkvGateValues bound;
    for (size_t i = 0; i < want.c.size(); ++i) {
      const size_t channel = i % (static_cast<size_t>(heads) * dim);
      const auto sigmoid_error = [](double x, double bias) {
        const double z = x + bias;
        return kFunctionError + 4 * kUnitF32 + 2 * std::abs(z) * kUnitF32 / (1 + std::exp(z));
      };
      const double decays = sigmoid_error(decay[i], decay_bias[channel]);
      const double rates = sigmoid_error(rate[i], rate_bias[channel]);
      const double norms = SumError(dim) / 2 + 8 * kUnitF32 + kFunctionError;
      bound.log_decay.push_back((decays + 2 * kUnitF32) * std::abs(want.log_decay[i]) + kTinyF32);
      bound.c.push_back(norms * std::abs(want.c[i]) + kTinyF32);
      bound.e.push_back((norms + rates + kUnitF32) * std::abs(want.e[i]) + kTinyF32);
      bound.k.push_back(std::abs(k[i]) * (rates + 4 * kUnitF32) * (1 + 2 * std::abs(k_a[channel])));
    }
    return bound;
  }

  int entries, heads, dim;
  float eps = 1e-6f, least = 0;
  Values decay, rate, k, decay_bias, rate_bias, k_k, k_a;
};

void ExpectGates(const RwkvGateValues& got, const RwkvGateValues& want,
                 const RwkvGateValues& bound) {
  EXPECT_THAT(got.log_decay, IsWithin(bound.log_decay, want.log_decay));
  EXPECT_THAT(got.c, IsWithin(bound.c, want.c));
  EXPECT_THAT(got.e, IsWithin(bound.e, want.e));
  EXPECT_THAT(got.k, IsWithin(bound.k, want.k));
}
void ExpectSameGates(const RwkvGateValues& got, const RwkvGateValues& want) {
  EXPECT_THAT(got.log_decay, HasSameBits(want.log_decay));
  EXPECT_THAT(got.c, HasSameBits(want.c));
  EXPECT_THAT(got.e, HasSameBits(want.e));
  EXPECT_THAT(got.k, HasSameBits(want.k));
}

TEST_P(Rwkv7GatesTest, GatesMatchReference) {
  for (const int dim : kRwkvDims) {
    for (const int entries : {0, 1, 7}) {
      SCOPED_TRACE(testing::Message() << entries << " x 3 x " << dim);
      const RwkvGatesProblem p(dim, entries, 3, dim);
      const RwkvGateValues want = p.Run(*reference_), got = p.Run(*backend_);
      ExpectGates(got, want, p.Bound(want));
      ExpectSameGates(p.Run(*backend_, /*in_place=*/true), got);
    }
  }
}

// RwkvGateValues that are all but open or shut, keys of any size, none at all, and both kinds of
// norm.
TEST_P(Rwkv7GatesTest, GatesHoldOverTheWholeRange) {
  for (const float least : {0.0f, 1e-12f}) {
    for (const double scale : {0.0, 1e-15, 1e-6, 1.0, 1e6}) {
      SCOPED_TRACE(testing::Message() << "least " << least << " scale " << scale);
      RwkvGatesProblem p(3, 41, 1, 33);
      p.least = least;
      p.eps = least > 0 ? 0 : 1e-6f;
      for (size_t i = 0; i < p.k.size(); ++i) {
        p.k[i] = RoundTo(p.k[i] * scale, DType::kF32);
        p.decay[i] = -80 + 4.0 * static_cast<double>(i / 33);
        p.rate[i] = -p.decay[i];
      }
      const RwkvGateValues want = p.Run(*reference_), got = p.Run(*backend_);
      ExpectGates(got, want, p.Bound(want));
      for (const Values* values : {&got.log_decay, &got.c, &got.e, &got.k}) {
        for (const double value : *values) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST_P(Rwkv7GatesTest, NeitherThreadsNorOtherTokensChangeABitOfAGate) {
  const RwkvGatesProblem all(5, 50, 4, 33);
  const RwkvGateValues want = all.Run(*backend_);
  for (const int threads : {1, 3}) ExpectSameGates(all.Run(*GetParam().Make(threads)), want);
  const auto tail = [](const Values& v) { return Values(v.end() - 4 * 33, v.end()); };
  RwkvGatesProblem one = all;
  one.entries = 1;
  one.decay = tail(all.decay);
  one.rate = tail(all.rate);
  one.k = tail(all.k);
  ExpectSameGates(one.Run(*backend_),
                  {tail(want.log_decay), tail(want.c), tail(want.e), tail(want.k)});
}

// --- ValueResidual -------------------------------------------------------------------------------

TEST_P(Rwkv7GatesTest, ValueResidualMatchesReference) {
  for (const int dim : kRwkvDims) {
    for (const int entries : {0, 1, 70}) {
      SeededRandom random(dim);
      const int64_t n = int64_t{entries} * dim;
      const Values first = random.NormalValues(n), gate = random.NormalValues(n, 8);
      const Values bias = random.NormalValues(dim), v = random.NormalValues(n);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        ValueResidualArgs args;
        args.first = bench.Activations(first, {entries, dim});
        args.gate = bench.Activations(gate, {entries, dim});
        args.bias = bench.Floats(bias, {dim});
        args.v = bench.Activations(v, {entries, dim});
        bench.kernels().ValueResidual(args);
        return bench.Read(args.v);
      };
      const Values want = run(*reference_), got = run(*backend_);
      Values bound;
      for (int64_t i = 0; i < n; ++i) {
        // The sigmoid's argument is off by |z| u, its slope is at most 1/4.
        const double z = std::abs(gate[i]) + std::abs(bias[i % dim]);
        bound.push_back((std::abs(first[i]) + std::abs(v[i])) *
                            (kFunctionError + 6 * kUnitF32 + z / 4 * kUnitF32) +
                        kTinyF32);
      }
      EXPECT_THAT(got, IsWithin(bound, want)) << entries << " x " << dim;
      EXPECT_THAT(run(*GetParam().Make(3)), HasSameBits(got));
    }
  }
}

// --- Rwkv7Output ---------------------------------------------------------------------------------

struct RwkvOutputProblem {
  RwkvOutputProblem(uint64_t seed, int entries, int heads, int key_dim, int value_dim)
      : entries(entries), heads(heads), key_dim(key_dim), value_dim(value_dim) {
    SeededRandom random(seed);
    const int64_t keys = int64_t{entries} * heads * key_dim;
    const int64_t values = int64_t{entries} * heads * value_dim;
    x = random.NormalValues(values);
    r = random.NormalValues(keys);
    k = random.NormalValues(keys);
    v = random.NormalValues(values);
    gate = random.NormalValues(values);
    weight = random.NormalValues(heads * value_dim);
    bias = random.NormalValues(heads * value_dim);
    r_k = random.NormalValues(heads * key_dim);
  }

  enum class Alias { kNone, kX, kGate };
  Values Run(Backend& backend, Alias alias = Alias::kNone) const {
    Workbench bench(backend);
    const Shape keys = {entries, heads, key_dim}, values = {entries, heads, value_dim};
    Rwkv7OutputArgs args;
    args.x = bench.Activations(x, values);
    args.weight = bench.Floats(weight, {heads, value_dim});
    args.bias = bench.Floats(bias, {heads, value_dim});
    args.eps = 64e-5f;
    args.r = bench.Activations(r, keys);
    args.k = bench.Activations(k, keys);
    args.r_k = bench.Floats(r_k, {heads, key_dim});
    args.v = bench.Activations(v, values);
    args.gate = bench.Activations(gate, values);
    args.y = alias == Alias::kX      ? args.x
             : alias == Alias::kGate ? args.gate
                                     : bench.NewActivations(values);
    bench.kernels().Rwkv7Output(args);
    return bench.Read(args.y);
  }

  // The norm of a row that is about as large as its deviation from its mean; the bonus, relative to
  // its terms; two sums and a product.
  Values Bound() const {
    Values bound;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t row = i / value_dim, channel = i % (static_cast<size_t>(heads) * value_dim);
      double mean = 0, variance = 0, magnitude = 0, terms = 0;
      for (int j = 0; j < value_dim; ++j) {
        mean += x[row * value_dim + j] / value_dim;
        magnitude += std::abs(x[row * value_dim + j]) / value_dim;
      }
      for (int j = 0; j < value_dim; ++j) {
        variance += std::pow(x[row * value_dim + j] - mean, 2) / value_dim;
      }
      for (int j = 0; j < key_dim; ++j) {
        terms +=
            std::abs(r[row * key_dim + j] * k[row * key_dim + j] * r_k[row % heads * key_dim + j]);
      }
      const double deviation = std::sqrt(variance + 64e-5);
      const double shift = (SumError(value_dim) + 4 * kUnitF32) * magnitude / deviation;
      const double normed = std::abs(x[i] - mean) / deviation * std::abs(weight[channel]);
      const double error =
          1.1 * shift * (std::abs(weight[channel]) + normed) +
          (SumError(value_dim) / 2 + 10 * kUnitF32 + kFunctionError) * normed +
          (SumError(key_dim) + 4 * kUnitF32) * terms * std::abs(v[i]) +
          4 * kUnitF32 * (normed + std::abs(bias[channel]) + terms * std::abs(v[i]));
      bound.push_back(error * std::abs(gate[i]) + kTinyF32);
    }
    return bound;
  }

  int entries, heads, key_dim, value_dim;
  Values x, r, k, v, gate, weight, bias, r_k;
};

TEST_P(Rwkv7GatesTest, OutputMatchesReference) {
  using Alias = RwkvOutputProblem::Alias;
  for (const int value_dim : {2, 16, 33, 64, 128}) {
    for (const int key_dim : {1, 16, 33, 64}) {
      for (const int entries : {0, 1, 7}) {
        SCOPED_TRACE(testing::Message() << entries << " x 3, " << key_dim << ", " << value_dim);
        const RwkvOutputProblem p(value_dim + key_dim, entries, 3, key_dim, value_dim);
        const Values got = p.Run(*backend_);
        EXPECT_THAT(got, IsWithin(p.Bound(), p.Run(*reference_)));
        EXPECT_THAT(p.Run(*backend_, Alias::kX), HasSameBits(got));
        EXPECT_THAT(p.Run(*backend_, Alias::kGate), HasSameBits(got));
        EXPECT_THAT(p.Run(*reference_, Alias::kGate), HasSameBits(p.Run(*reference_)));
      }
    }
  }
}

TEST_P(Rwkv7GatesTest, NeitherThreadsNorOtherTokensChangeABitOfAnOutput) {
  const RwkvOutputProblem all(5, 50, 4, 33, 20);
  const Values want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    EXPECT_THAT(all.Run(*GetParam().Make(threads)), HasSameBits(want));
  }
  const auto tail = [](const Values& v, int width) { return Values(v.end() - 4 * width, v.end()); };
  RwkvOutputProblem one = all;
  one.entries = 1;
  one.x = tail(all.x, 20);
  one.v = tail(all.v, 20);
  one.gate = tail(all.gate, 20);
  one.r = tail(all.r, 33);
  one.k = tail(all.k, 33);
  EXPECT_THAT(one.Run(*backend_), HasSameBits(tail(want, 20)));
}

INSTANTIATE_TEST_SUITE_P(Backends, Rwkv7GatesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
