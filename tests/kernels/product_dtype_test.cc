// Activations in Backend::product_dtype on a GPU: what writes them rounds what it would else have
// written, and products of them are those of the same numbers in f32.
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

std::vector<double> Rounded(std::vector<double> values) {
  for (double& value : values) value = RoundTo(value, DType::kBF16);
  return values;
}

class CudaProductDtypeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBackends()[0].device != "cuda") GTEST_SKIP() << "needs MNEME_TEST_DEVICE=cuda";
    BackendOptions options;
    options.compute_dtype = DType::kBF16;
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("cuda", options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    bench_ = std::make_unique<Workbench>(*backend_);
  }
  TensorView NewRounded(Shape shape) {
    return bench_->Values(std::vector<double>(shape.elements(), 0.0), shape, DType::kBF16);
  }

  SeededRandom random_{1};
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Workbench> bench_;
};

TEST_F(CudaProductDtypeTest, OutputsAreTheRoundedOnes) {
  Kernels& kernels = bench_->kernels();
  for (const int dim : {6, 64, 1000, 1024, 3000}) {
    SCOPED_TRACE(dim);
    const Shape shape{7, dim}, heads{7, 2, dim / 2};
    const TensorView x = bench_->Activations(random_.NormalValues(7 * dim), shape);
    const TensorView other = bench_->Activations(random_.NormalValues(7 * dim), shape);
    const TensorView weight = bench_->Floats(random_.NormalValues(dim), {dim});
    const TensorView wide = bench_->NewActivations(shape), narrow = NewRounded(shape);
    const auto expect_rounded = [&] {
      EXPECT_THAT(bench_->Read(narrow), HasSameBits(Rounded(bench_->Read(wide))));
    };
    for (const TensorView& y : {wide, narrow}) kernels.RmsNorm({.x = x, .weight = weight, .y = y});
    expect_rounded();
    for (const TensorView& y : {wide, narrow}) kernels.SwiGlu({.gate = x, .up = other, .y = y});
    expect_rounded();
    const auto by_head = [&](TensorView view) {
      view.shape = heads;
      return view;
    };
    TensorView head_weight = weight;
    head_weight.shape = {dim / 2};
    for (const bool gated : {false, true}) {
      for (const TensorView& y : {wide, narrow}) {
        kernels.GatedRmsNorm({.x = by_head(x),
                              .gate = gated ? by_head(other) : TensorView{},
                              .weight = head_weight,
                              .y = by_head(y)});
      }
      expect_rounded();
    }
  }
}

// Few rows, tiles, cuBLAS, and so many that the last group goes by itself.
TEST_F(CudaProductDtypeTest, ProductsAreThoseOfTheSameNumbers) {
  constexpr int kIn = 128, kGroups = 3;
  for (const int out : {4, 72, 128}) {
    std::vector<PackedMatrix> weights;
    for (int g = 0; g < kGroups; ++g) {
      weights.push_back(
          bench_->Pack(Rounded(random_.NormalValues(out * kIn)), out, kIn, DType::kBF16));
      ASSERT_EQ(backend_->product_dtype(weights.back()), DType::kBF16);
    }
    for (const int rows : {3, 40, 300, 4100}) {
      SCOPED_TRACE(std::to_string(out) + " outputs, " + std::to_string(rows) + " rows");
      const std::vector<double> numbers = Rounded(random_.NormalValues(rows * kIn));
      const TensorView wide = bench_->Activations(numbers, {rows, kIn});
      const TensorView narrow = bench_->Values(numbers, {rows, kIn}, DType::kBF16);
      // Every row goes to one of the first groups, and to the last.
      std::vector<int> entry_rows;
      for (int parity : {0, 1}) {
        for (int row = parity; row < rows; row += 2) entry_rows.push_back(row);
      }
      for (int row = 0; row < rows; ++row) entry_rows.push_back(row);
      const TensorView from = bench_->Ints(entry_rows);
      const TensorView offsets = bench_->Ints({0, (rows + 1) / 2, rows, 2 * rows});
      const auto run = [&](const TensorView& x, bool last_has_all) {
        const TensorView y = bench_->NewActivations({rows, out});
        const TensorView grouped = bench_->NewActivations({2 * rows, out});
        const LinearArgs products[] = {{.x = x, .weights = {weights.data(), 1}, .y = y},
                                       {.x = x,
                                        .weights = weights,
                                        .entry_rows = from,
                                        .group_offsets = offsets,
                                        .y = grouped,
                                        .last_has_all_rows = last_has_all}};
        bench_->kernels().Linear(products);
        std::vector<double> all = bench_->Read(y);
        const std::vector<double> more = bench_->Read(grouped);
        all.insert(all.end(), more.begin(), more.end());
        return all;
      };
      const std::vector<double> want = run(wide, false);
      EXPECT_THAT(run(narrow, false), HasSameBits(want));
      // Another kernel may add up in another order: 128 terms of about 1.
      EXPECT_LE(RelativeError(run(narrow, true), want), 128 * 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace mneme
