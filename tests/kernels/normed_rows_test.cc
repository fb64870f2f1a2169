// Additions to the residual stream behind a norm, on a GPU, against the operations that they stand
// for in float64.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/layer_norm_step.h"
#include "tests/support/backends.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// f32 sums of up to a few thousand terms, of norms and products.
constexpr double kExact = 2e-5;

class CudaNormedRowsTest : public CudaTest {
 protected:
  std::unique_ptr<Backend> reference_ = MakeReference();
};

StepNorm RootMeanSquare(Workbench& bench, SeededRandom& random, int dim) {
  return {.weight = bench.Floats(random.UniformValues(dim, 0.5, 1.5), {dim}),
          .eps = 1e-3f,
          .centred = false};
}

// hidden += convolution(RmsNorm(hidden)): the rows, then their windows. Row 1 is padding.
struct Convolved {
  bool fused = true;
  std::vector<double> hidden, windows;
};
Convolved Convolve(Backend& backend, int rows, int dim, int width, bool settled, bool fused) {
  Workbench bench(backend);
  SeededRandom random(static_cast<uint64_t>(dim + rows));
  const Shape shape{rows, dim};
  const TensorView hidden = bench.Activations(random.NormalValues(int64_t{rows} * dim), shape);
  const TensorView room = bench.NewActivations(shape), after = bench.NewActivations(shape);
  const StepNorm norm = RootMeanSquare(bench, random, dim);
  std::vector<SegmentSpec> specs;
  for (int row = 0; row < rows; ++row) {
    specs.push_back({.length = 1, .slot = row == 1 ? -1 : rows - row, .fresh = row == 2});
  }
  Segments segments = Upload(bench, specs);
  segments.longest = 1;
  SlabPool windows(bench, rows + 1, 1, int64_t{width - 1} * dim,
                   backend.state_format().window_dtype);
  for (const SegmentSpec& s : specs) {
    const std::vector<double> before = random.NormalValues(int64_t{width - 1} * dim);
    if (s.slot >= 0 && !s.fresh) windows.Write(s.slot, 0, before);
  }
  const ShortConvArgs convolution = {
      .x = room,
      .weight = bench.Floats(random.NormalValues(int64_t{dim} * width), {dim, width}),
      .bias = bench.Floats(random.NormalValues(dim), {dim}),
      .activation = Activation::kIdentity,
      .segments = segments,
      .window = windows.view(),
      .y = after};
  Convolved result;
  if (fused) {
    result.fused =
        LayerNormStepsOf(bench.kernels())
            ->NormedConvolutionStep(
                {.norm = norm, .hidden = hidden, .convolution = convolution, .settled = settled});
  } else {
    bench.kernels().RmsNorm({.x = hidden, .weight = norm.weight, .eps = norm.eps, .y = room});
    bench.kernels().ShortConv({&convolution, 1});
    const TensorView ones = bench.Floats(std::vector<double>(static_cast<size_t>(dim), 1), {dim});
    bench.kernels().AddScaled({.x = after, .scale = ones, .y = hidden});
  }
  const std::vector<double> all = bench.Read(hidden);
  for (int row = 0; row < rows; ++row) {
    if (row == 1) continue;
    result.hidden.insert(result.hidden.end(), all.begin() + int64_t{row} * dim,
                         all.begin() + int64_t{row + 1} * dim);
    const std::vector<double> window = windows.Read(rows - row, 0);
    result.windows.insert(result.windows.end(), window.begin(), window.end());
  }
  return result;
}

TEST_F(CudaNormedRowsTest, ConvolutionsAreOfTheirNorm) {
  const std::unique_ptr<Backend> backend = MakeCuda(DType::kBF16);
  for (const int rows : {1, 5, 64}) {
    for (const int dim : {4, 100, 1024, 2052, 8192}) {
      for (const int width : {2, 4}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(dim));
        const Convolved got = Convolve(*backend, rows, dim, width, rows == 5, true);
        const Convolved want = Convolve(*reference_, rows, dim, width, false, false);
        EXPECT_TRUE(got.fused);
        EXPECT_LE(RelativeError(got.hidden, want.hidden), kExact);
        EXPECT_LE(RelativeError(got.windows, want.windows), kExact);
      }
    }
  }
  EXPECT_FALSE(Convolve(*backend, 65, 8, 4, false, true).fused);
  EXPECT_FALSE(Convolve(*backend, 1, 8196, 4, false, true).fused);
  EXPECT_FALSE(Convolve(*backend, 1, 8, 5, false, true).fused);
}

// The rows with the product of two normed factors added; none if the backend does not fuse that.
std::vector<double> Gated(Backend& backend, int rows, int dim, bool fused) {
  Workbench bench(backend);
  SeededRandom random(static_cast<uint64_t>(dim + rows));
  const Shape shape{rows, dim};
  const TensorView hidden = bench.Activations(random.NormalValues(int64_t{rows} * dim), shape);
  NormedGateStepArgs args = {.factors = {}, .hidden = hidden};
  for (const int f : {0, 1}) {
    args.factors[f] = {
        .x = bench.Activations(random.NormalValues(int64_t{rows} * dim, 1 + f), shape),
        .norm = RootMeanSquare(bench, random, dim),
        .activation = f == 0 ? Activation::kSilu : Activation::kTanh};
  }
  if (fused) {
    if (!LayerNormStepsOf(bench.kernels())->NormedGateStep(args)) return {};
    return bench.Read(hidden);
  }
  Kernels& kernels = bench.kernels();
  for (const auto& [x, norm, activation] : args.factors) {
    kernels.RmsNorm({.x = x, .weight = norm.weight, .eps = norm.eps, .y = x});
    const ActivateArgs activate = {.x = x, .activation = activation, .y = x};
    kernels.Activate({&activate, 1});
  }
  kernels.Multiply(
      {.a = args.factors[0].x, .b = args.factors[1].x, .y = hidden, .accumulate = true});
  return bench.Read(hidden);
}

TEST_F(CudaNormedRowsTest, GatesAreOfTheirNorms) {
  const std::unique_ptr<Backend> backend = MakeCuda(DType::kBF16);
  for (const int rows : {1, 2, 64}) {
    for (const int dim : {4, 100, 1536, 8192}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(dim));
      EXPECT_LE(
          RelativeError(Gated(*backend, rows, dim, true), Gated(*reference_, rows, dim, false)),
          kExact);
    }
  }
  EXPECT_TRUE(Gated(*backend, 65, 8, true).empty());
  EXPECT_TRUE(Gated(*backend, 1, 6, true).empty());
}

}  // namespace
}  // namespace mneme
