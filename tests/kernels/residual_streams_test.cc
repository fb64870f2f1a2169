// Residual streams: ReadStreams against its equation, everything against the reference.
#include <algorithm>
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

using Values = std::vector<double>;
using Kind = StreamMixing::Kind;

constexpr int kTokens = 5;

struct Mixing {
  Kind kind;
  int streams, dim;
  bool writes;
  Values gain, alpha, alpha_weight, beta, beta_weight, scales, x;

  Mixing(uint64_t seed, Kind kind, int streams, int dim, bool writes)
      : kind(kind), streams(streams), dim(dim), writes(writes) {
    SeededRandom random(seed);
    gain = random.NormalValues(dim, 0.3);
    alpha = random.NormalValues(streams * (1 + streams));
    alpha_weight = random.NormalValues((1 + streams) * dim, 0.2);
    beta = random.NormalValues(streams);
    beta_weight = random.NormalValues(dim, 0.2);
    scales = random.NormalValues(3);
    x = random.NormalValues(int64_t{kTokens} * streams * dim, 2);
    std::fill_n(x.begin(), dim, 0.0);  // a stream without a direction
  }
};

struct StreamRead {
  Values input, post, streams;
};

StreamRead RunRead(Backend& backend, const Mixing& m) {
  Workbench bench(backend);
  ReadStreamsArgs args = {
      .mixing = {.kind = m.kind,
                 .gain = bench.Floats(m.gain, {m.dim}),
                 .alpha = bench.Floats(m.alpha, {m.streams, 1 + m.streams}),
                 .alpha_weight = bench.Floats(m.alpha_weight, {1 + m.streams, m.dim}),
                 .scales = bench.Floats(m.scales, {3})},
      .x = bench.Activations(m.x, {kTokens, m.streams, m.dim}),
      .y = bench.NewActivations({kTokens, m.dim})};
  if (m.writes) {
    args.mixing.beta = bench.Floats(m.beta, {m.streams});
    args.mixing.beta_weight = bench.Floats(m.beta_weight, {m.dim});
    args.post = bench.NewActivations({kTokens, m.streams});
  }
  bench.kernels().ReadStreams(args);
  return {bench.Read(args.y), m.writes ? bench.Read(args.post) : Values(), bench.Read(args.x)};
}

double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// The paper's equations, stream by stream.
StreamRead Want(const Mixing& m) {
  const int n = m.streams, dim = m.dim;
  StreamRead want{.input = Values(kTokens * dim), .post = {}, .streams = m.x};
  for (int token = 0; token < kTokens; ++token) {
    const double* x = m.x.data() + token * n * dim;
    std::vector<Values> mix(n, Values(n));
    Values pre(n);
    for (int s = 0; s < n; ++s) {
      double length = 0;
      for (int i = 0; i < dim; ++i) length += x[s * dim + i] * x[s * dim + i];
      length = std::max(std::sqrt(length), 1e-12);
      const auto project = [&](const double* weight) {
        double sum = 0;
        for (int i = 0; i < dim; ++i) {
          sum += x[s * dim + i] / length * std::sqrt(dim) * (1 + m.gain[i]) * weight[i];
        }
        return m.kind == Kind::kDynamic ? std::tanh(sum) : sum;
      };
      const auto coefficient = [&](int j) {
        return project(m.alpha_weight.data() + j * dim) * m.scales[j == 0 ? 0 : 1] +
               m.alpha[s * (1 + n) + j];
      };
      pre[s] = m.kind == Kind::kDynamic ? coefficient(0) : Sigmoid(coefficient(0));
      for (int t = 0; t < n; ++t) mix[s][t] = m.kind == Kind::kSum ? 1 : coefficient(1 + t);
      const double u = m.scales[2] * project(m.beta_weight.data()) + m.beta[s];
      if (m.writes) want.post.push_back(m.kind == Kind::kDynamic ? u : 2 * Sigmoid(u));
    }
    if (m.kind == Kind::kConstrained) {
      // What the logarithms of the largest are cancels.
      for (auto& row : mix) {
        for (double& value : row) value = std::exp(value);
      }
      for (int round = 0; round < 20; ++round) {
        for (int t = 0; t < n; ++t) {
          double sum = 0;
          for (int s = 0; s < n; ++s) sum += mix[s][t];
          for (int s = 0; s < n; ++s) mix[s][t] /= sum;
        }
        for (auto& row : mix) {
          double sum = 0;
          for (const double value : row) sum += value;
          for (double& value : row) value /= sum;
        }
      }
    }
    for (int i = 0; i < dim; ++i) {
      for (int s = 0; s < n; ++s) want.input[token * dim + i] += pre[s] * x[s * dim + i];
      for (int t = 0; m.writes && t < n; ++t) {
        double sum = 0;
        for (int s = 0; s < n; ++s) sum += mix[s][t] * x[s * dim + i];
        want.streams[(token * n + t) * dim + i] = sum;
      }
    }
  }
  return want;
}

class ResidualStreamsTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
  bool is_reference() const { return GetParam().device == "reference"; }
};

TEST_P(ResidualStreamsTest, AReadIsWhatItsEquationSays) {
  uint64_t seed = 0;
  for (const Kind kind : {Kind::kDynamic, Kind::kConstrained, Kind::kSum}) {
    for (const int streams : {1, 2, 3, 4, 7, 16}) {
      for (const int dim : {1, 17, 64, 300}) {
        for (const bool writes : {true, false}) {
          const Mixing m(++seed, kind, streams, dim, writes);
          const StreamRead want = Want(m), got = RunRead(*backend_, m);
          SCOPED_TRACE(testing::Message() << "seed " << seed << " kind " << static_cast<int>(kind)
                                          << " streams " << streams << " dim " << dim);
          // A coefficient is a sum over dim of terms of up to some 20 sqrt(dim), whose error is
          // that of the result, as sigmoid, tanh and what S does are no steeper than 1, but for
          // its exp, whose values it divides by their sums; then a sum over the streams, of 10
          // each.
          const double unit = is_reference() ? 0x1p-52 : kUnitF32;
          const double error = 64 * (SumError(dim) / kUnitF32 * unit * std::sqrt(dim) * 8 +
                                     40 * kFunctionError / kUnitF32 * unit);
          EXPECT_THAT(got.input, IsWithin(error * streams * 10, want.input));
          EXPECT_THAT(got.post, IsWithin(error, want.post));
          EXPECT_THAT(got.streams, IsWithin(error * streams * 10, want.streams));
        }
      }
    }
  }
}

TEST_P(ResidualStreamsTest, AMixingMatrixIsDoublyStochastic) {
  // Streams of ones and of zeros show sums of rows and columns.
  constexpr int kStreams = 4, kDim = 32;
  Mixing m(7, Kind::kConstrained, kStreams, kDim, /*writes=*/true);
  std::fill(m.x.begin(), m.x.end(), 1.0);
  for (const double value : RunRead(*backend_, m).streams) EXPECT_NEAR(value, 1, 1e-5);
}

TEST_P(ResidualStreamsTest, ATokenDoesNotDependOnItsNeighbours) {
  const Mixing m(3, Kind::kConstrained, 4, 50, /*writes=*/true);
  const StreamRead all = RunRead(*backend_, m);
  Mixing other = m;
  std::rotate(other.x.begin(), other.x.begin() + 4 * 50, other.x.end());
  StreamRead rotated = RunRead(*backend_, other);
  std::rotate(rotated.streams.begin(), rotated.streams.end() - 4 * 50, rotated.streams.end());
  EXPECT_THAT(rotated.streams, HasSameBits(all.streams));
}

TEST_P(ResidualStreamsTest, StreamsAreExpandedWrittenAndSummed) {
  uint64_t seed = 0;
  for (const int streams : {1, 2, 5}) {
    for (const int dim : {1, 19, 64}) {
      SeededRandom random(++seed);
      const Values x = random.NormalValues(kTokens * dim),
                   post = random.NormalValues(kTokens * streams),
                   embedding = random.NormalValues(streams * dim);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        const TensorView input = bench.Activations(x, {kTokens, dim});
        const TensorView y = bench.NewActivations({kTokens, streams, dim});
        const TensorView sum = bench.NewActivations({kTokens, dim});
        bench.kernels().ExpandStreams(
            {.x = input, .embedding = bench.Floats(embedding, {streams, dim}), .y = y});
        bench.kernels().WriteStreams(
            {.x = input, .post = bench.Activations(post, {kTokens, streams}), .y = y});
        bench.kernels().SumStreams({.x = y, .y = sum});
        Values all = bench.Read(y);
        const Values sums = bench.Read(sum);
        all.insert(all.end(), sums.begin(), sums.end());
        return all;
      };
      // Two roundings of up to 20 in each stream, and as many in their sum.
      EXPECT_THAT(run(*backend_), IsWithin(4 * streams * 20 * streams * kUnitF32, run(*reference_)))
          << "seed " << seed;
    }
  }
}

TEST_P(ResidualStreamsTest, ViewsAreWeightedSums) {
  uint64_t seed = 20;
  for (const int count : {1, 5, 30}) {
    for (const int dim : {1, 19, 64}) {
      SeededRandom random(++seed);
      constexpr int kViews = 3;
      const Values x = random.NormalValues(count * kTokens * dim),
                   weights = random.NormalValues(kTokens * kViews * count);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        const TensorView y = bench.NewActivations({kViews, kTokens, dim});
        bench.kernels().MixViews({.x = bench.Activations(x, {count, kTokens, dim}),
                                  .weights = bench.Activations(weights, {kTokens, kViews, count}),
                                  .y = y});
        return bench.Read(y);
      };
      EXPECT_THAT(run(*backend_), IsWithin(SumError(count) * count * 20, run(*reference_)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ResidualStreamsTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
