// Softmax of heads, and the feature maps, of which one is a softmax.
#include <algorithm>
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

constexpr int kMappedDims[] = {1, 2, 3, 4, 5, 16, 17, 33, 64, 65, 128, 300};

struct MapProblem {
  MapProblem(uint64_t seed, int entries, int heads, int dim, double size = 1)
      : entries(entries), heads(heads), dim(dim) {
    x = SeededRandom(seed).NormalValues(static_cast<int64_t>(entries) * heads * dim, size);
  }

  std::vector<double> Softmax(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    SoftmaxArgs args;
    args.x = bench.Activations(x, {entries, heads, dim});
    args.y = in_place ? args.x : bench.NewActivations({entries, heads, dim});
    bench.kernels().Softmax(args);
    return bench.Read(args.y);
  }
  std::vector<double> Map(Backend& backend, FeatureMap map) const {
    Workbench bench(backend);
    FeatureMapArgs args;
    args.map = map;
    args.x = bench.Activations(x, {entries, heads, dim});
    args.y = bench.NewActivations({entries, heads, FeaturesOf(map) * dim});
    bench.kernels().MapFeatures(args);
    return bench.Read(args.y);
  }

  // The error of a softmax of rows of `features`, of numbers that differ by at most `range`: the
  // difference of each to the largest is rounded, which moves its exponential by u of that
  // difference; exp; and the same of the terms of the sum; the sum; a division.
  static std::vector<double> SoftmaxBound(const std::vector<double>& want, int features,
                                          double range) {
    const double relative =
        2 * (range * kUnitF32 + kFunctionError) + SumError(features) + kFunctionError;
    std::vector<double> bound;
    for (const double value : want) bound.push_back(relative * value + kTinyF32);
    return bound;
  }
  double Range() const {
    if (x.empty()) return 0;
    return *std::max_element(x.begin(), x.end()) - *std::min_element(x.begin(), x.end());
  }
  double Largest() const {
    double largest = 0;
    for (const double value : x) largest = std::max(largest, std::abs(value));
    return largest;
  }

  int entries, heads, dim;
  std::vector<double> x;
};

using FeatureMapsTest = ComparedBackendTest;

TEST_P(FeatureMapsTest, SoftmaxMatchesReference) {
  for (const int dim : kMappedDims) {
    for (const double size : {0.01, 1.0, 40.0}) {
      const MapProblem p(dim, 4, 3, dim, size);
      const std::vector<double> want = p.Softmax(*reference_);
      EXPECT_THAT(p.Softmax(*backend_),
                  IsWithin(MapProblem::SoftmaxBound(want, dim, p.Range()), want))
          << dim << " size " << size;
    }
  }
}

// The largest number may be anywhere, and no sum of exponentials overflows.
TEST_P(FeatureMapsTest, SoftmaxTakesNumbersOfAnySize) {
  for (const int dim : {3, 16, 33, 65}) {
    for (const double base : {-1e4, 1e4, -1e30, 1e30}) {
      MapProblem p(1, dim, 1, dim);
      for (int row = 0; row < dim; ++row) {
        for (int i = 0; i < dim; ++i) {
          p.x[row * dim + i] = RoundTo(i == row ? base : base - std::abs(base), DType::kF32);
        }
      }
      std::vector<double> want(static_cast<size_t>(dim) * dim, 0.0);
      for (int row = 0; row < dim; ++row) want[row * dim + row] = 1;
      EXPECT_THAT(p.Softmax(*backend_), IsWithin(kFunctionError, want)) << dim << " at " << base;
    }
  }
}

TEST_P(FeatureMapsTest, HedgehogMatchesReference) {
  for (const int dim : kMappedDims) {
    for (const double size : {0.01, 1.0, 20.0}) {
      const MapProblem p(dim, 4, 3, dim, size);
      const std::vector<double> want = p.Map(*reference_, FeatureMap::kHedgehog);
      EXPECT_THAT(p.Map(*backend_, FeatureMap::kHedgehog),
                  IsWithin(MapProblem::SoftmaxBound(want, 2 * dim, 4 * p.Largest()), want))
          << dim << " size " << size;
    }
  }
}

// Products of two numbers as they are: one rounding.
TEST_P(FeatureMapsTest, DpfpMatchesReference) {
  for (const int dim : kMappedDims) {
    const MapProblem p(dim, 4, 3, dim);
    const std::vector<double> want = p.Map(*reference_, FeatureMap::kDpfp);
    std::vector<double> bound;
    for (const double value : want) bound.push_back(kUnitF32 * std::abs(value));
    EXPECT_THAT(p.Map(*backend_, FeatureMap::kDpfp), IsWithin(bound, want)) << dim;
  }
}

TEST_P(FeatureMapsTest, OutputsMayAliasInputs) {
  for (const int dim : {3, 33, 64}) {
    const MapProblem p(2, 6, 4, dim);
    EXPECT_THAT(p.Softmax(*backend_, true), HasSameBits(p.Softmax(*backend_)));
  }
}

TEST_P(FeatureMapsTest, NeitherThreadsNorOtherTokensChangeABit) {
  const MapProblem all(3, 37, 3, 65);
  MapProblem last = all;
  last.entries = 1;
  last.x.assign(all.x.end() - 3 * 65, all.x.end());
  const auto tail = [](const std::vector<double>& values, int features) {
    return std::vector<double>(values.end() - 3 * 65 * features, values.end());
  };
  for (const int threads : {1, 2, 3}) {
    const std::unique_ptr<Backend> other = GetParam().Make(threads);
    const std::vector<double> softmax = all.Softmax(*backend_);
    EXPECT_THAT(all.Softmax(*other), HasSameBits(softmax));
    EXPECT_THAT(last.Softmax(*other), HasSameBits(tail(softmax, 1)));
    for (const FeatureMap map : {FeatureMap::kHedgehog, FeatureMap::kDpfp}) {
      const std::vector<double> want = all.Map(*backend_, map);
      EXPECT_THAT(all.Map(*other, map), HasSameBits(want));
      EXPECT_THAT(last.Map(*other, map), HasSameBits(tail(want, FeaturesOf(map))));
    }
  }
}

TEST_P(FeatureMapsTest, NoTokensAreNoWork) {
  const MapProblem p(4, 0, 2, 16);
  EXPECT_TRUE(p.Softmax(*backend_).empty());
  EXPECT_TRUE(p.Map(*backend_, FeatureMap::kHedgehog).empty());
  EXPECT_TRUE(p.Map(*backend_, FeatureMap::kDpfp).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, FeatureMapsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
