// RmsNorm, LayerNorm, L2Norm, GatedRmsNorm, SumNorm and Divide.
#include <cmath>
#include <string>
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

// A sum of `dim` squares, all positive, so its relative error is SumError; the root halves it. Then
// at most a division, the root itself and the multiplications: eight roundings and one
// approximation.
double NormError(int dim) { return SumError(dim) / 2 + 8 * kUnitF32 + kFunctionError; }

std::vector<double> RelativeBound(const std::vector<double>& want, double relative) {
  std::vector<double> bound;
  for (const double value : want) bound.push_back(relative * std::abs(value) + kTinyF32);
  return bound;
}

struct NormProblem {
  NormProblem(uint64_t seed, int tokens, int heads, int dim, double scale = 1)
      : tokens(tokens), heads(heads), dim(dim) {
    SeededRandom random(seed);
    const int64_t n = static_cast<int64_t>(tokens) * heads * dim;
    x = random.NormalValues(n, scale);
    gate = random.NormalValues(n, 4);
    weight = random.NormalValues(dim);
    channel_weights = random.NormalValues(heads * dim);
    channel_biases = random.NormalValues(heads * dim);
    divisors = random.UniformValues(tokens * heads, 0.01, 3);
  }

  std::vector<double> RmsNorm(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    RmsNormArgs args;
    args.x = bench.Activations(x, {tokens * heads, dim});
    args.weight = bench.Floats(weight, {dim});
    args.eps = 1e-5f;
    args.y = in_place ? args.x : bench.NewActivations({tokens * heads, dim});
    bench.kernels().RmsNorm(args);
    return bench.Read(args.y);
  }

  // With `heads`, a weight and a bias for each head's channels.
  std::vector<double> LayerNorm(Backend& backend, bool biased, bool in_place = false) const {
    Workbench bench(backend);
    const Shape shape = heads > 1 ? Shape{tokens, heads, dim} : Shape{tokens, dim};
    const Shape channels = heads > 1 ? Shape{heads, dim} : Shape{dim};
    LayerNormArgs args;
    args.x = bench.Activations(x, shape);
    args.weight = bench.Floats(channel_weights, channels);
    if (biased) args.bias = bench.Floats(channel_biases, channels);
    args.eps = 1e-5f;
    args.y = in_place ? args.x : bench.NewActivations(shape);
    bench.kernels().LayerNorm(args);
    return bench.Read(args.y);
  }

  // The mean that is subtracted is off by as much as the largest sum of the row's numbers is, in
  // units of the row's deviation; all other errors are relative to what is left.
  std::vector<double> LayerNormBound(const std::vector<double>& unbiased,
                                     const std::vector<double>& biased) const {
    std::vector<double> bound;
    for (size_t row = 0; row < static_cast<size_t>(tokens) * heads; ++row) {
      double magnitude = 0, mean = 0, variance = 0;
      for (int i = 0; i < dim; ++i) {
        magnitude += std::abs(x[row * dim + i]) / dim;
        mean += x[row * dim + i] / dim;
      }
      for (int i = 0; i < dim; ++i) {
        variance += std::pow(x[row * dim + i] - mean, 2) / dim;
      }
      // A row of one number is its own mean, exactly.
      const double off =
          dim == 1 ? 0 : (SumError(dim) + 4 * kUnitF32) * magnitude / std::sqrt(variance + 1e-5);
      EXPECT_LT(off, 0.05) << "a row whose numbers are all but equal";
      for (int i = 0; i < dim; ++i) {
        const size_t at = row * dim + i;
        const double weight = std::abs(channel_weights[at % channel_weights.size()]);
        // An error of the mean moves each number by it, and the deviation by less than it.
        bound.push_back(1.1 * off * (weight + std::abs(unbiased[at])) +
                        NormError(dim) * std::abs(unbiased[at]) + kUnitF32 * std::abs(biased[at]) +
                        kTinyF32);
      }
    }
    return bound;
  }

  std::vector<double> L2Norm(Backend& backend, bool in_place = false, float eps = 1e-6f) const {
    Workbench bench(backend);
    L2NormArgs args;
    args.x = bench.Activations(x, {tokens, heads, dim});
    args.scale = 0.125f;
    args.eps = eps;
    args.y = in_place ? args.x : bench.NewActivations({tokens, heads, dim});
    bench.kernels().L2Norm(args);
    return bench.Read(args.y);
  }

  void GiveEachHeadWeights(uint64_t seed) {
    weight_by_head = true;
    weight = SeededRandom(seed).NormalValues(heads * dim);
  }

  enum class Alias { kNone, kX, kGate };
  std::vector<double> GatedRmsNorm(Backend& backend, bool gated, Alias alias = Alias::kNone) const {
    Workbench bench(backend);
    const Shape shape = {tokens, heads, dim};
    GatedRmsNormArgs args;
    args.x = bench.Activations(x, shape);
    if (gated) args.gate = bench.Activations(gate, shape);
    args.weight = bench.Floats(weight, weight_by_head ? Shape{heads, dim} : Shape{dim});
    args.activation = activation;
    args.y = alias == Alias::kX      ? args.x
             : alias == Alias::kGate ? args.gate
                                     : bench.NewActivations(shape);
    bench.kernels().GatedRmsNorm(args);
    return bench.Read(args.y);
  }

  std::vector<double> SumNorm(Backend& backend, bool in_place = false, float eps = 1e-3f) const {
    Workbench bench(backend);
    SumNormArgs args;
    args.x = bench.Activations(x, {tokens, heads, dim});
    args.eps = eps;
    args.y = in_place ? args.x : bench.NewActivations({tokens, heads, dim});
    bench.kernels().SumNorm(args);
    return bench.Read(args.y);
  }

  std::vector<double> Divide(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    DivideArgs args;
    args.x = bench.Activations(x, {tokens, heads, dim});
    args.z = bench.Activations(divisors, {tokens, heads});
    args.eps = 1e-3f;
    args.y = in_place ? args.x : bench.NewActivations({tokens, heads, dim});
    bench.kernels().Divide(args);
    return bench.Read(args.y);
  }

  // Where terms cancel, the error of a sum is small beside the terms, not beside the sum.
  std::vector<double> SumNormBound(const std::vector<double>& want) const {
    std::vector<double> bound;
    for (size_t i = 0; i < want.size(); ++i) {
      double sum = 1e-3, magnitude = 0;
      for (int j = 0; j < dim; ++j) {
        sum += x[i / dim * dim + j];
        magnitude += std::abs(x[i / dim * dim + j]);
      }
      const double off = (SumError(dim) * magnitude + kUnitF32 * std::abs(sum)) / std::abs(sum);
      EXPECT_LT(off, 0.05) << "a seed whose terms cancel";
      bound.push_back((1.1 * off + kFunctionError) * std::abs(want[i]) + kTinyF32);
    }
    return bound;
  }

  std::string Describe() const {
    return std::to_string(tokens) + " x " + std::to_string(heads) + " x " + std::to_string(dim);
  }

  int tokens, heads, dim;
  std::vector<double> x, gate, weight, channel_weights, channel_biases, divisors;
  bool weight_by_head = false;
  Activation activation = Activation::kSilu;
};

constexpr int kNormedDims[] = {1,  2,  3,  15, 16,  17,  20,  24,   32,   33,  48,
                               64, 65, 80, 96, 128, 250, 256, 1000, 2048, 5004};

using NormsTest = ComparedBackendTest;

TEST_P(NormsTest, RmsNormMatchesReference) {
  for (const int dim : kNormedDims) {
    // Scales at which eps is everything, something, nothing.
    for (const double scale : {1e-5, 3e-3, 1.0, 1e4}) {
      const NormProblem p(dim, 7, 1, dim, scale);
      const std::vector<double> want = p.RmsNorm(*reference_);
      EXPECT_THAT(p.RmsNorm(*backend_), IsWithin(RelativeBound(want, NormError(dim)), want))
          << p.Describe() << " seed " << dim << " scale " << scale;
    }
  }
}

TEST_P(NormsTest, LayerNormMatchesReference) {
  for (const int dim : kNormedDims) {
    for (const double scale : {1e-5, 3e-3, 1.0, 1e4}) {
      for (const double mean : {0.0, 10.0}) {  // in deviations
        for (const int heads : {1, 5}) {
          NormProblem p(dim, 3, heads, dim, scale);
          for (double& value : p.x) value = RoundTo(value + mean * scale, DType::kF32);
          const std::vector<double> unbiased = p.LayerNorm(*reference_, false);
          const std::vector<double> biased = p.LayerNorm(*reference_, true);
          EXPECT_THAT(p.LayerNorm(*backend_, false),
                      IsWithin(p.LayerNormBound(unbiased, unbiased), unbiased))
              << p.Describe() << " seed " << dim << " scale " << scale << " mean " << mean;
          EXPECT_THAT(p.LayerNorm(*backend_, true),
                      IsWithin(p.LayerNormBound(unbiased, biased), biased))
              << p.Describe() << " seed " << dim << " scale " << scale << " mean " << mean;
        }
      }
    }
  }
}

TEST_P(NormsTest, L2NormMatchesReference) {
  for (const int dim : kNormedDims) {
    for (const double scale : {1e-5, 3e-3, 1.0, 1e4}) {
      for (const float eps : {1e-6f, 1e-2f}) {
        const NormProblem p(dim, 3, 5, dim, scale);
        const std::vector<double> want = p.L2Norm(*reference_, false, eps);
        EXPECT_THAT(p.L2Norm(*backend_, false, eps),
                    IsWithin(RelativeBound(want, NormError(dim)), want))
            << p.Describe() << " seed " << dim << " scale " << scale << " eps " << eps;
      }
    }
  }
}

TEST_P(NormsTest, GatedRmsNormMatchesReference) {
  for (const int dim : kNormedDims) {
    for (const bool gated : {false, true}) {
      for (const Activation activation : {Activation::kSilu, Activation::kSigmoid}) {
        NormProblem p(dim, 4, 3, dim);
        p.activation = activation;
        const std::vector<double> want = p.GatedRmsNorm(*reference_, gated);
        // silu and sigmoid add an exp, a sum and a division.
        const double relative = NormError(dim) + (gated ? kFunctionError + 4 * kUnitF32 : 0);
        EXPECT_THAT(p.GatedRmsNorm(*backend_, gated), IsWithin(RelativeBound(want, relative), want))
            << p.Describe() << " seed " << dim << (gated ? " gated" : "")
            << (activation == Activation::kSilu ? " by silu" : " by sigmoid");
      }
    }
  }
}

TEST_P(NormsTest, HeadsMayEachHaveTheirWeights) {
  for (const int dim : kNormedDims) {
    for (const bool gated : {false, true}) {
      NormProblem p(dim, 4, 3, dim);
      p.GiveEachHeadWeights(/*seed=*/dim + 1);
      const std::vector<double> want = p.GatedRmsNorm(*reference_, gated);
      const double relative = NormError(dim) + (gated ? kFunctionError + 4 * kUnitF32 : 0);
      EXPECT_THAT(p.GatedRmsNorm(*backend_, gated), IsWithin(RelativeBound(want, relative), want))
          << p.Describe() << (gated ? " gated" : "");
      // Head 1 of each token, as if its weights were those of all.
      NormProblem one = p;
      one.weight_by_head = false;
      one.weight = {p.weight.begin() + dim, p.weight.begin() + 2 * dim};
      const std::vector<double> other = one.GatedRmsNorm(*reference_, gated);
      for (int token = 0; token < 4; ++token) {
        for (int i = 0; i < dim; ++i) {
          const size_t at = (static_cast<size_t>(token) * 3 + 1) * dim + i;
          EXPECT_EQ(want[at], other[at]) << p.Describe();
        }
      }
    }
  }
}

TEST_P(NormsTest, SumNormMatchesReference) {
  for (const int dim : kNormedDims) {
    NormProblem p(dim, 3, 5, dim);
    // Numbers of either sign, positive on the whole, as silu makes of keys; and all positive, by
    // sigmoid.
    for (double& value : p.x) value = RoundTo(value + 4, DType::kF32);
    const std::vector<double> mixed = p.SumNorm(*reference_);
    EXPECT_THAT(p.SumNorm(*backend_), IsWithin(p.SumNormBound(mixed), mixed)) << p.Describe();
    for (double& value : p.x) value = std::abs(value) * 0x1p-20;
    const std::vector<double> want = p.SumNorm(*reference_);
    EXPECT_THAT(p.SumNorm(*backend_), IsWithin(p.SumNormBound(want), want)) << p.Describe();
  }
}

TEST_P(NormsTest, DivideMatchesReference) {
  for (const int dim : kNormedDims) {
    const NormProblem p(dim, 3, 5, dim);
    const std::vector<double> want = p.Divide(*reference_);
    EXPECT_THAT(p.Divide(*backend_),
                IsWithin(RelativeBound(want, kFunctionError + 2 * kUnitF32), want))
        << p.Describe();
  }
}

TEST_P(NormsTest, AZeroVectorStaysZero) {
  NormProblem p(1, 2, 2, 33);
  p.x.assign(p.x.size(), 0.0);
  const std::vector<double> zeros(p.x.size(), 0.0);
  EXPECT_THAT(p.RmsNorm(*backend_), IsWithin(0, zeros));
  EXPECT_THAT(p.LayerNorm(*backend_, false), IsWithin(0, zeros));
  EXPECT_THAT(p.L2Norm(*backend_), IsWithin(0, zeros));
  EXPECT_THAT(p.GatedRmsNorm(*backend_, true), IsWithin(0, zeros));
  EXPECT_THAT(p.SumNorm(*backend_), IsWithin(0, zeros));
  EXPECT_THAT(p.SumNorm(*backend_, /*in_place=*/false, /*eps=*/0), IsWithin(0, zeros));
  EXPECT_THAT(p.SumNorm(*reference_, /*in_place=*/false, /*eps=*/0), IsWithin(0, zeros));
  EXPECT_THAT(p.Divide(*backend_), IsWithin(0, zeros));
}

TEST_P(NormsTest, OutputsMayAliasInputs) {
  for (const int dim : {20, 64, 129}) {
    const NormProblem p(5, 6, 4, dim);
    using Alias = NormProblem::Alias;
    EXPECT_THAT(p.RmsNorm(*backend_, true), HasSameBits(p.RmsNorm(*backend_)));
    EXPECT_THAT(p.LayerNorm(*backend_, true, true), HasSameBits(p.LayerNorm(*backend_, true)));
    EXPECT_THAT(p.L2Norm(*backend_, true), HasSameBits(p.L2Norm(*backend_)));
    EXPECT_THAT(p.SumNorm(*backend_, true), HasSameBits(p.SumNorm(*backend_)));
    EXPECT_THAT(p.Divide(*backend_, true), HasSameBits(p.Divide(*backend_)));
    const std::vector<double> gated = p.GatedRmsNorm(*backend_, true);
    EXPECT_THAT(p.GatedRmsNorm(*backend_, true, Alias::kX), HasSameBits(gated));
    EXPECT_THAT(p.GatedRmsNorm(*backend_, true, Alias::kGate), HasSameBits(gated));
  }
}

TEST_P(NormsTest, NeitherThreadsNorOtherTokensChangeABit) {
  const NormProblem all(6, 37, 3, 80);
  NormProblem last = all;
  const int width = 3 * 80;
  last.tokens = 1;
  last.x.assign(all.x.end() - width, all.x.end());
  last.gate.assign(all.gate.end() - width, all.gate.end());
  last.divisors.assign(all.divisors.end() - 3, all.divisors.end());
  const auto tail = [&](const std::vector<double>& values) {
    return std::vector<double>(values.end() - width, values.end());
  };
  for (const int threads : {1, 2, 3}) {
    const std::unique_ptr<Backend> other = GetParam().Make(threads);
    EXPECT_THAT(all.RmsNorm(*other), HasSameBits(all.RmsNorm(*backend_)));
    EXPECT_THAT(all.LayerNorm(*other, true), HasSameBits(all.LayerNorm(*backend_, true)));
    EXPECT_THAT(all.L2Norm(*other), HasSameBits(all.L2Norm(*backend_)));
    EXPECT_THAT(all.GatedRmsNorm(*other, true), HasSameBits(all.GatedRmsNorm(*backend_, true)));
    EXPECT_THAT(all.SumNorm(*other), HasSameBits(all.SumNorm(*backend_)));
    EXPECT_THAT(all.Divide(*other), HasSameBits(all.Divide(*backend_)));
    EXPECT_THAT(last.SumNorm(*other), HasSameBits(tail(all.SumNorm(*backend_))));
    EXPECT_THAT(last.Divide(*other), HasSameBits(tail(all.Divide(*backend_))));
    EXPECT_THAT(last.RmsNorm(*other), HasSameBits(tail(all.RmsNorm(*backend_))));
    EXPECT_THAT(last.LayerNorm(*other, true), HasSameBits(tail(all.LayerNorm(*backend_, true))));
    EXPECT_THAT(last.L2Norm(*other), HasSameBits(tail(all.L2Norm(*backend_))));
    EXPECT_THAT(last.GatedRmsNorm(*other, true),
                HasSameBits(tail(all.GatedRmsNorm(*backend_, true))));
  }
}

TEST_P(NormsTest, NoTokensAreNoWork) {
  const NormProblem p(7, 0, 2, 16);
  EXPECT_TRUE(p.RmsNorm(*backend_).empty());
  EXPECT_TRUE(p.LayerNorm(*backend_, true).empty());
  EXPECT_TRUE(p.L2Norm(*backend_).empty());
  EXPECT_TRUE(p.GatedRmsNorm(*backend_, true).empty());
  EXPECT_TRUE(p.SumNorm(*backend_).empty());
  EXPECT_TRUE(p.Divide(*backend_).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, NormsTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
