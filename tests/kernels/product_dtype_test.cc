// Activations in Backend::product_dtype on a GPU: what writes them rounds what it would else have
// written, and products of them are those of the same numbers in f32.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

std::vector<double> Rounded(std::vector<double> values) {
  for (double& value : values) value = RoundTo(value, DType::kBF16);
  return values;
}

class CudaProductDtypeTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    backend_ = MakeCuda(DType::kBF16);
    bench_ = std::make_unique<Workbench>(*backend_);
  }
  TensorView NewRounded(Shape shape) {
    return bench_->Values(std::vector<double>(shape.elements(), 0.0), shape, DType::kBF16);
  }
  // Writes the products of x with the first matrix to y, and those of its rows `from`, each with
  // its group's matrix, to `grouped`. Returns all of them.
  std::vector<double> Products(const TensorView& x, std::span<const PackedMatrix> weights,
                               const TensorView& from, const TensorView& offsets,
                               const TensorView& y, const TensorView& grouped) {
    const LinearArgs products[] = {
        {.x = x, .weights = weights.first(1), .y = y},
        {.x = x, .weights = weights, .entry_rows = from, .group_offsets = offsets, .y = grouped}};
    bench_->kernels().Linear(products);
    std::vector<double> all = bench_->Read(y);
    const std::vector<double> more = bench_->Read(grouped);
    all.insert(all.end(), more.begin(), more.end());
    return all;
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
    // A gate that comes rounded out of a product.
    const std::vector<double> gate = Rounded(bench_->Read(other));
    const TensorView wide_gate = bench_->Activations(gate, heads);
    const TensorView narrow_gate = bench_->Values(gate, heads, DType::kBF16);
    std::vector<std::vector<double>> results;
    for (const TensorView& g : {wide_gate, narrow_gate}) {
      kernels.GatedRmsNorm({.x = by_head(x), .gate = g, .weight = head_weight, .y = by_head(wide)});
      results.push_back(bench_->Read(wide));
    }
    EXPECT_THAT(results[1], HasSameBits(results[0]));
  }
}

TEST_F(CudaProductDtypeTest, MixedAndNormedIsOneAfterTheOther) {
  constexpr int kTokens = 37;
  Kernels& kernels = bench_->kernels();
  int fused = 0;
  for (const int head_dim : {20, 64, 256, 260}) {
    for (const int choices : {1, 3, 4, 8}) {
      SCOPED_TRACE(std::to_string(head_dim) + ", " + std::to_string(choices) + " choices");
      const int dim = 2 * head_dim, top_k = choices == 1 ? 1 : choices - 1;
      const Shape shape{kTokens, dim}, heads{kTokens, 2, head_dim};
      const auto by_head = [&](TensorView view) {
        view.shape = heads;
        return view;
      };
      const MixMemoriesArgs mix = {
          .x = bench_->Activations(random_.NormalValues(kTokens * choices * dim),
                                   {kTokens * choices, dim}),
          .token_entries = bench_->Ints(random_.Permutation(kTokens * choices), {kTokens, choices}),
          .weights =
              bench_->Activations(random_.UniformValues(kTokens * top_k, 0, 1), {kTokens, top_k}),
          .y = bench_->NewActivations(shape)};
      const std::vector<double> gate = Rounded(random_.NormalValues(kTokens * dim));
      const TensorView weight = bench_->Floats(random_.NormalValues(head_dim), {head_dim});
      for (const DType gate_dtype : {DType::kI32, DType::kF32, DType::kBF16}) {
        for (const TensorView& y : {bench_->NewActivations(shape), NewRounded(shape)}) {
          const GatedRmsNormArgs norm = {.x = by_head(mix.y),
                                         .gate = gate_dtype == DType::kI32
                                                     ? TensorView{}
                                                     : bench_->Values(gate, heads, gate_dtype),
                                         .weight = weight,
                                         .y = by_head(y)};
          kernels.MixMemories(mix);
          kernels.GatedRmsNorm(norm);
          const std::vector<double> want = bench_->Read(y);
          GatedRmsNormArgs other = norm;
          other.y =
              by_head(y.dtype == DType::kBF16 ? NewRounded(shape) : bench_->NewActivations(shape));
          if (!kernels.MixAndNorm(mix, other)) {
            EXPECT_GT(head_dim, 256);
            continue;
          }
          ++fused;
          EXPECT_THAT(bench_->Read(other.y), HasSameBits(want));
        }
      }
    }
  }
  EXPECT_EQ(fused, 3 * 4 * 6);
}

TEST_F(CudaProductDtypeTest, NormAndRouteChooseTheLargestLogits) {
  const std::unique_ptr<Backend> exact = MakeReference();
  const bool is_hopper = HasHopperKernels();
  struct Case {
    int rows, dim, memories, top_k;
    DType round_logits;
    bool forced;
  };
  for (const Case& c :
       {Case{1, 64, 1, 1, DType::kF32, false}, Case{37, 320, 4, 2, DType::kF32, false},
        Case{600, 1024, 4, 2, DType::kBF16, false}, Case{5, 1024, 8, 3, DType::kF32, true},
        Case{9, 2048, 15, 15, DType::kBF16, false}, Case{130, 3008, 15, 4, DType::kF32, false},
        Case{3, 8192, 5, 1, DType::kF32, false}, Case{4, 64, 16, 2, DType::kF32, false}}) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " rows of " << c.dim << ", " << c.top_k << " of " << c.memories);
    const Shape shape{c.rows, c.dim}, chosen{c.rows, c.top_k};
    std::vector<double> hidden = random_.NormalValues(c.rows * c.dim);
    const bool has_equal_logits = c.rows > 1;  // in the first row; else nothing is but 0
    if (has_equal_logits) std::fill_n(hidden.begin(), c.dim, 0.0);
    const std::vector<double> weight = random_.NormalValues(c.dim);
    const std::vector<double> router =
        Rounded(random_.NormalValues(c.memories * c.dim, 1 / std::sqrt(c.dim)));
    Workbench want(*exact);
    const TensorView y = want.NewActivations(shape);
    const TensorView logits = want.NewActivations({c.rows, c.memories});
    want.kernels().RmsNorm(
        {.x = want.Activations(hidden, shape), .weight = want.Floats(weight, {c.dim}), .y = y});
    const PackedMatrix exact_router = want.Pack(router, c.memories, c.dim, DType::kBF16);
    const LinearArgs product[] = {{.x = y, .weights = {&exact_router, 1}, .y = logits}};
    want.kernels().Linear(product);

    std::vector<int> forced;
    for (int i = 0; c.forced && i < c.rows * c.top_k; ++i) {
      forced.push_back((i / c.top_k + i % c.top_k) % c.memories);
    }
    const RmsNormArgs norm = {.x = bench_->Activations(hidden, shape),
                              .weight = bench_->Floats(weight, {c.dim}),
                              .y = NewRounded(shape)};
    const RouteTopKArgs route = {.round_logits = c.round_logits,
                                 .forced = c.forced ? bench_->Ints(forced, chosen) : TensorView{},
                                 .indices = bench_->NewInts(chosen),
                                 .weights = bench_->NewActivations(chosen)};
    const bool fused = bench_->kernels().NormAndRoute(
        norm, bench_->Pack(router, c.memories, c.dim, DType::kBF16), route);
    EXPECT_EQ(fused, is_hopper && c.memories <= 15);
    if (!fused) continue;

    // A norm may be one rounding to bf16 off.
    EXPECT_LE(RelativeError(bench_->Read(norm.y), want.Read(y)), 0x1p-8);
    const std::vector<int> indices = bench_->ReadInts(route.indices);
    EXPECT_TRUE(!c.forced || indices == forced);
    for (int j = 0; has_equal_logits && !c.forced && j < c.top_k; ++j) EXPECT_EQ(indices[j], j);
    const std::vector<double> got = bench_->Read(route.weights), all = want.Read(logits);
    for (int row = 0; row < c.rows; ++row) {
      const double* own = &all[row * c.memories];
      double largest = 0, smallest_chosen = INFINITY, sum = 0;
      for (int m = 0; m < c.memories; ++m) largest = std::max(largest, std::abs(own[m]));
      const double tolerance = largest * (c.round_logits == DType::kBF16 ? 0x1p-8 : 1e-5);
      std::set<int> choice;
      for (int j = 0; j < c.top_k; ++j) {
        const int memory = indices[row * c.top_k + j];
        ASSERT_TRUE(memory >= 0 && memory < c.memories && choice.insert(memory).second) << memory;
        smallest_chosen = std::min(smallest_chosen, own[memory]);
        sum += std::exp(own[memory]);
      }
      for (int m = 0; m < c.memories && !c.forced; ++m) {
        EXPECT_TRUE(choice.contains(m) || own[m] <= smallest_chosen + 2 * tolerance) << row;
      }
      for (int j = 0; j < c.top_k; ++j) {
        const double weight = std::exp(own[indices[row * c.top_k + j]]) / sum;
        EXPECT_NEAR(got[row * c.top_k + j], weight, 2 * tolerance * weight + 1e-6) << "row " << row;
      }
    }
  }
}

// The sums are the same, whichever way they are written.
TEST_F(CudaProductDtypeTest, RoundedOutputsAreTheOthersRounded) {
  constexpr int kIn = 136, kGroups = 3;
  for (const int out : {72, 128, 392}) {
    std::vector<PackedMatrix> weights;
    for (int g = 0; g < kGroups; ++g) {
      weights.push_back(
          bench_->Pack(Rounded(random_.NormalValues(out * kIn)), out, kIn, DType::kBF16));
    }
    for (const int rows : {129, 300, 2500}) {
      SCOPED_TRACE(std::to_string(out) + " outputs, " + std::to_string(rows) + " rows");
      if (backend_->output_dtype(weights, rows) != DType::kBF16) continue;  // not on this device
      const TensorView x =
          bench_->Values(Rounded(random_.NormalValues(rows * kIn)), {rows, kIn}, DType::kBF16);
      std::vector<int> entry_rows;
      for (int row = 0; row < 2 * rows; ++row) entry_rows.push_back(row * 7 % rows);
      const int cut = rows / 3;
      const TensorView from = bench_->Ints(entry_rows);
      const TensorView offsets = bench_->Ints({0, cut, cut, 2 * rows});
      const auto run = [&](DType dtype) {
        const auto make = [&](int64_t count) {
          return dtype == DType::kBF16 ? NewRounded({count, out})
                                       : bench_->NewActivations({count, out});
        };
        return Products(x, weights, from, offsets, make(rows), make(2 * rows));
      };
      EXPECT_THAT(run(DType::kBF16), HasSameBits(Rounded(run(DType::kF32))));
    }
  }
}

TEST_F(CudaProductDtypeTest, GateAndUpAtOnceAreTheProductsAndTheirSwiGlu) {
  constexpr int kIn = 136;
  for (const int out : {72, 128, 392}) {
    const PackedMatrix gate =
        bench_->Pack(Rounded(random_.NormalValues(out * kIn, 0.1)), out, kIn, DType::kBF16);
    const PackedMatrix up =
        bench_->Pack(Rounded(random_.NormalValues(out * kIn, 0.1)), out, kIn, DType::kBF16);
    for (const int rows : {129, 300, 2500}) {
      SCOPED_TRACE(std::to_string(out) + " outputs, " + std::to_string(rows) + " rows");
      const TensorView x =
          bench_->Values(Rounded(random_.NormalValues(rows * kIn)), {rows, kIn}, DType::kBF16);
      const TensorView y = NewRounded({rows, out});
      const bool fused = bench_->kernels().SwiGluProduct({.x = x, .gate = gate, .up = up, .y = y});
      EXPECT_EQ(fused, backend_->output_dtype({&gate, 1}, rows) == DType::kBF16);
      if (!fused) continue;
      const TensorView g = bench_->NewActivations({rows, out});
      const TensorView u = bench_->NewActivations({rows, out});
      const LinearArgs products[] = {{.x = x, .weights = {&gate, 1}, .y = g},
                                     {.x = x, .weights = {&up, 1}, .y = u}};
      bench_->kernels().Linear(products);
      bench_->kernels().SwiGlu({.gate = g, .up = u, .y = g});
      // One rounding to bf16, of unit roundoff 2^-9; sums of 136 terms may be in another order.
      EXPECT_LE(RelativeError(bench_->Read(y), bench_->Read(g)), 0x1p-9 + 2 * 136 * 0x1p-24);
    }
  }
}

// Few rows, tiles, cuBLAS, bulk.
TEST_F(CudaProductDtypeTest, ProductsAreThoseOfTheSameNumbers) {
  constexpr int kIn = 128, kGroups = 3;
  for (const int out : {4, 72, 128}) {
    std::vector<PackedMatrix> weights;
    for (int g = 0; g < kGroups; ++g) {
      weights.push_back(
          bench_->Pack(Rounded(random_.NormalValues(out * kIn)), out, kIn, DType::kBF16));
      ASSERT_EQ(backend_->product_dtype(weights.back(), 3), DType::kBF16);
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
      const auto run = [&](const TensorView& x) {
        return Products(x, weights, from, offsets, bench_->NewActivations({rows, out}),
                        bench_->NewActivations({2 * rows, out}));
      };
      EXPECT_THAT(run(narrow), HasSameBits(run(wide)));
    }
  }
}

// What a layer of decoded rows projects, in one call: of several sizes, narrow ones and some that
// are not whole tiles, to f32 and to bf16, with biases and without.
TEST_F(CudaProductDtypeTest, ProductsOfAStepAreThoseOfEachAlone) {
  constexpr int kIn = 192;
  for (const int rows : {3, 17, 40, 80, 100, 200, 256, 300}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const std::vector<double> numbers = Rounded(random_.NormalValues(int64_t{rows} * kIn));
    const TensorView x = bench_->Values(numbers, {rows, kIn}, DType::kBF16);
    std::vector<PackedMatrix> weights;
    std::vector<std::vector<double>> values;
    std::vector<LinearArgs> products;
    std::vector<int> outs = {64, 8, 128, 4, 3, 200, 16, 64, 68};
    for (const int out : outs) {
      values.push_back(Rounded(random_.NormalValues(int64_t{out} * kIn, 0.1)));
      weights.push_back(bench_->Pack(values.back(), out, kIn, DType::kBF16));
    }
    std::vector<std::vector<double>> biases(outs.size());
    for (size_t i = 0; i < outs.size(); ++i) {
      const int out = outs[i];
      LinearArgs args = {.x = x, .weights = {&weights[i], 1}};
      const DType dtype = i % 2 == 0 ? backend_->step_output_dtype(weights[i], rows) : DType::kF32;
      args.y =
          dtype == DType::kBF16 ? NewRounded({rows, out}) : bench_->NewActivations({rows, out});
      biases[i].assign(out, 0.0);
      if (i % 2 == 1) {
        biases[i] = random_.NormalValues(out);
        args.bias = bench_->Floats(biases[i], {1, out});
      }
      products.push_back(args);
    }
    bench_->kernels().Linear(products);
    for (size_t i = 0; i < outs.size(); ++i) {
      SCOPED_TRACE(std::to_string(outs[i]) + " outputs");
      std::vector<double> want;
      for (int row = 0; row < rows; ++row) {
        for (int o = 0; o < outs[i]; ++o) {
          double sum = biases[i][o];
          for (int k = 0; k < kIn; ++k) {
            sum += numbers[int64_t{row} * kIn + k] * values[i][int64_t{o} * kIn + k];
          }
          want.push_back(sum);
        }
      }
      const bool rounded = products[i].y.dtype == DType::kBF16;
      EXPECT_LE(RelativeError(bench_->Read(products[i].y), want),
                (rounded ? 0x1p-9 : 0) + 2 * kIn * 0x1p-24);
    }
  }
}

// Into a residual: whole tiles, and others.
TEST_F(CudaProductDtypeTest, ProductsOfAStepAddUp) {
  constexpr int kIn = 320;
  for (const int out : {64, 192, 72, 20}) {
    const std::vector<double> w = Rounded(random_.NormalValues(int64_t{out} * kIn, 0.1));
    const PackedMatrix weights = bench_->Pack(w, out, kIn, DType::kBF16);
    for (const int rows : {3, 17, 80, 200}) {
      SCOPED_TRACE(std::to_string(out) + " outputs, " + std::to_string(rows) + " rows");
      const std::vector<double> numbers = Rounded(random_.NormalValues(int64_t{rows} * kIn));
      const std::vector<double> old = random_.NormalValues(int64_t{rows} * out);
      const LinearArgs args[] = {{.x = bench_->Values(numbers, {rows, kIn}, DType::kBF16),
                                  .weights = {&weights, 1},
                                  .y = bench_->Activations(old, {rows, out}),
                                  .accumulate = true}};
      bench_->kernels().Linear(args);
      std::vector<double> want = old;
      for (int row = 0; row < rows; ++row) {
        for (int o = 0; o < out; ++o) {
          for (int k = 0; k < kIn; ++k) {
            want[int64_t{row} * out + o] +=
                numbers[int64_t{row} * kIn + k] * w[int64_t{o} * kIn + k];
          }
        }
      }
      EXPECT_LE(RelativeError(bench_->Read(args[0].y), want), 2 * kIn * 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace mneme
