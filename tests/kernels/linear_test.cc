// The matrix product: close to float64 within the rounding of one sum per output, and the same bits
// whatever else is computed with it.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/recurrent_steps.h"
#include "tests/kernels/compared_backend.h"
#include "tests/kernels/linear_problem.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using LinearTest = ComparedBackendTest;

TEST_P(LinearTest, MatchesReferenceForEveryShapeAndDtype) {
  uint64_t seed = 100;
  for (const DType dtype : kWeightTypes) {
    for (const int in_features : {1, 2, 7, 16, 17, 31, 33, 64, 96, 129, 500}) {
      for (const int out_features : {1, 2, 4, 15, 16, 31, 33, 64, 97}) {
        const int rows = static_cast<int>(seed % 7) + (seed % 5 == 0 ? 30 : 1);
        const LinearProblem p(++seed, rows, in_features, out_features, dtype);
        EXPECT_THAT(p.Run(*backend_), IsWithin(p.Bound(SumError(in_features)), p.Run(*reference_)))
            << "seed " << seed << ", " << rows << " rows, " << out_features << " x " << in_features
            << " " << Name(dtype);
      }
    }
  }
}

TEST_P(LinearTest, AccumulateAddsToWhatIsThere) {
  for (const DType dtype : kWeightTypes) {
    const LinearProblem p(7, 5, 70, 33, dtype);
    std::vector<double> bound = p.Bound(SumError(70));
    const std::vector<double> want = p.Run(*reference_, true);
    // One more rounding, of the final sum.
    for (size_t i = 0; i < bound.size(); ++i) {
      bound[i] += 2 * kUnitF32 * (std::abs(want[i]) + std::abs(p.y[i]));
    }
    EXPECT_THAT(p.Run(*backend_, true), IsWithin(bound, want)) << Name(dtype);
  }
}

// Each activation moves by at most kUnitBF16 of itself; the products are exact in f32 and summed
// there.
TEST_P(LinearTest, ComputingInBF16StaysWithinItsStatedBound) {
  const std::unique_ptr<Backend> rounding = GetParam().Make(2, DType::kBF16);
  EXPECT_EQ(rounding->compute_dtype(), DType::kBF16);
  uint64_t seed = 200;
  for (const DType dtype : kWeightTypes) {
    for (const int in_features : {1, 17, 33, 64, 96, 500}) {
      for (const int rows : {1, 3, 8, 40}) {
        const LinearProblem p(++seed, rows, in_features, 35, dtype);
        EXPECT_THAT(p.Run(*rounding),
                    IsWithin(p.Bound(kUnitBF16 + (1 + kUnitBF16) * SumError(in_features)),
                             p.Run(*reference_)))
            << "seed " << seed << ", " << rows << " rows, 35 x " << in_features << " "
            << Name(dtype);
      }
    }
  }
}

TEST_P(LinearTest, TheNumberOfRowsChangesNoBit) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  struct Case {
    int in_features, out_features;
  };
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      for (const Case c : {Case{96, 40}, Case{257, 33}}) {
        const LinearProblem p(11, 70, c.in_features, c.out_features, dtype);
        std::vector<double> one_by_one;
        for (int r = 0; r < p.rows; ++r) {
          const std::vector<double> row = p.Run(*backend, r, 1);
          one_by_one.insert(one_by_one.end(), row.begin(), row.end());
        }
        for (int rows = 1; rows <= p.rows; ++rows) {
          // From the end, so that a row's place among the others differs as well.
          const int first = p.rows - rows;
          EXPECT_THAT(p.Run(*backend, first, rows),
                      HasSameBits(LinearProblem::Rows(one_by_one, c.out_features, first, rows)))
              << rows << " rows, " << c.out_features << " x " << c.in_features << " " << Name(dtype)
              << ", compute " << Name(compute);
        }
      }
    }
  }
}

TEST_P(LinearTest, ManyRowsOfALargeMatrixChangeNoBit) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      const LinearProblem p(12, 530, 640, 130, dtype);
      const std::vector<double> all = p.Run(*backend);
      for (const int rows : {1, 5, 16, 63, 64, 128, 200, 257}) {
        const int first = 530 - rows;
        EXPECT_THAT(p.Run(*backend, first, rows),
                    HasSameBits(LinearProblem::Rows(all, p.out_features, first, rows)))
            << rows << " rows " << Name(dtype) << ", compute " << Name(compute);
      }
    }
  }
}

TEST_P(LinearTest, TheNumberOfThreadsChangesNoBit) {
  for (const DType dtype : kWeightTypes) {
    for (const int rows : {1, 4, 37}) {
      const LinearProblem p(13, rows, 321, 75, dtype);
      const std::vector<double> one = p.Run(*GetParam().Make(1));
      EXPECT_THAT(p.Run(*GetParam().Make(2)), HasSameBits(one)) << rows << " " << Name(dtype);
      EXPECT_THAT(p.Run(*GetParam().Make(3)), HasSameBits(one)) << rows << " " << Name(dtype);
    }
  }
}

// Denormals count as zero on all threads or on none.
TEST_P(LinearTest, DenormalsChangeNoBit) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  for (const DType dtype : kWeightTypes) {
    LinearProblem p(16, 37, 64, 200, dtype);
    for (double& x : p.x) x = RoundTo(x * 0x1p-127, DType::kF32);
    const std::vector<double> one = p.Run(*GetParam().Make(1));
    EXPECT_THAT(p.Run(*GetParam().Make(3)), HasSameBits(one)) << Name(dtype);
    EXPECT_THAT(p.Run(*backend_, 36, 1), HasSameBits(LinearProblem::Rows(one, 200, 36, 1)))
        << Name(dtype);
    EXPECT_THAT(one, IsWithin(kTinyF32, p.Run(*reference_))) << Name(dtype);
  }
}

TEST_P(LinearTest, ARowOfNaNSpoilsNoOther) {
  for (const DType dtype : kWeightTypes) {
    LinearProblem p(14, 9, 65, 20, dtype);
    const std::vector<double> clean = p.Run(*backend_);
    for (int i = 0; i < p.in_features; ++i) p.x[4 * p.in_features + i] = i % 2 ? NAN : INFINITY;
    const std::vector<double> got = p.Run(*backend_);
    for (int r = 0; r < p.rows; ++r) {
      if (r == 4) continue;
      EXPECT_THAT(LinearProblem::Rows(got, p.out_features, r, 1),
                  HasSameBits(LinearProblem::Rows(clean, p.out_features, r, 1)))
          << "row " << r << " " << Name(dtype);
    }
    EXPECT_TRUE(std::isnan(got[4 * p.out_features]));
  }
}

TEST_P(LinearTest, NoRowsAreNoWork) {
  const LinearProblem p(15, 0, 40, 8, DType::kBF16);
  EXPECT_TRUE(p.Run(*backend_).empty());
}

// Sizes at which backends may go over to other algorithms.
TEST_P(LinearTest, ManyRowsStayWithinTheirBounds) {
  struct Case {
    int rows, in_features, out_features;
  };
  uint64_t seed = 250;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      for (const Case c : {Case{12, 64, 200}, Case{20, 72, 40}, Case{40, 1032, 24},
                           Case{65, 200, 130}, Case{100, 99, 33}, Case{300, 264, 70}}) {
        const LinearProblem p(++seed, c.rows, c.in_features, c.out_features, dtype);
        EXPECT_THAT(p.Run(*backend),
                    IsWithin(p.Bound(RelativeBound(compute, c.in_features)), p.Run(*reference_)))
            << "seed " << seed << ", " << c.rows << " rows, " << c.out_features << " x "
            << c.in_features << " " << Name(dtype) << ", compute " << Name(compute);
      }
    }
  }
}

// Steps of so many rows and outputs that a GPU takes them in many tiles of few rows, and of more.
TEST_P(LinearTest, WideOutputsStayWithinTheirBounds) {
  const std::unique_ptr<Backend> backend = GetParam().Make(2, DType::kBF16);
  constexpr int kInFeatures = 264;
  uint64_t seed = 280;
  for (const auto& [rows, out_features] :
       {std::pair{100, 1540}, {129, 1028}, {200, 2564}, {257, 130}, {320, 324}}) {
    const LinearProblem p(++seed, rows, kInFeatures, out_features, DType::kBF16);
    EXPECT_THAT(p.Run(*backend),
                IsWithin(p.Bound(RelativeBound(DType::kBF16, kInFeatures)), p.Run(*reference_)))
        << "seed " << seed << ", " << rows << " rows, " << out_features << " outputs";
  }
}

// Products of as many rows that are added to what is there: short sums, and long ones, which may be
// taken in parts.
TEST_P(LinearTest, RowsOfAStepAddWithinTheirBounds) {
  const std::unique_ptr<Backend> backend = GetParam().Make(2, DType::kBF16);
  uint64_t seed = 290;
  for (const int rows : {129, 192, 256, 320}) {
    for (const auto& [in_features, out_features] : {std::pair{72, 192}, {2752, 64}}) {
      const LinearProblem p(++seed, rows, in_features, out_features, DType::kBF16);
      const std::vector<double> want = p.Run(*reference_, true);
      std::vector<double> bound = p.Bound(RelativeBound(DType::kBF16, in_features));
      // One more rounding, of the final sum.
      for (size_t i = 0; i < bound.size(); ++i) {
        bound[i] += 2 * kUnitF32 * (std::abs(want[i]) + std::abs(p.y[i]));
      }
      EXPECT_THAT(p.Run(*backend, true), IsWithin(bound, want))
          << "seed " << seed << ", " << rows << " rows of " << in_features;
    }
  }
}

TEST_P(LinearTest, ProductsInOneCallEqualThoseOfSeparateCalls) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  const LinearProblem a(31, 6, 64, 40, DType::kBF16), b(32, 1, 17, 3, DType::kF32),
      c(33, 6, 64, 1, DType::kF16);
  const GroupedProblem d(34, 48, 12, DType::kBF16, {2, 0, 7});
  Workbench bench(*backend_);
  std::vector<LinearArgs> products;
  std::vector<std::vector<PackedMatrix>> weights;
  for (const LinearProblem* p : {&a, &b, &c}) {
    weights.push_back({bench.Pack(p->w, p->out_features, p->in_features, p->dtype)});
    LinearArgs args;
    args.x = bench.Activations(p->x, {p->rows, p->in_features});
    args.y = bench.NewActivations({p->rows, p->out_features});
    products.push_back(args);
  }
  weights.emplace_back();
  for (const auto& w : d.weights) {
    weights.back().push_back(bench.Pack(w, d.out_features, d.in_features, d.dtype));
  }
  LinearArgs grouped;
  grouped.x = bench.Activations(d.x, {GroupedProblem::kRows, d.in_features});
  grouped.entry_rows = bench.Ints(d.entry_rows);
  grouped.group_offsets = bench.Ints(d.offsets);
  grouped.y = bench.NewActivations({d.offsets.back(), d.out_features});
  products.push_back(grouped);
  for (size_t i = 0; i < products.size(); ++i) products[i].weights = weights[i];

  bench.kernels().Linear(products);
  EXPECT_THAT(bench.Read(products[0].y), HasSameBits(a.Run(*backend_)));
  EXPECT_THAT(bench.Read(products[1].y), HasSameBits(b.Run(*backend_)));
  EXPECT_THAT(bench.Read(products[2].y), HasSameBits(c.Run(*backend_)));
  EXPECT_THAT(bench.Read(products[3].y), HasSameBits(d.Run(*backend_)));
}

// As a layer of memories asks for them: some take the same activations, some are grouped, some have
// few outputs.
TEST_P(LinearTest, ProductsInOneCallStayWithinTheirBounds) {
  uint64_t seed = 400;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      for (const int rows : {1, 2, 5, 30, 90, 200}) {
        const LinearProblem q(++seed, rows, 72, 40, dtype);
        LinearProblem with_x_of_q(++seed, rows, 72, 130, dtype);
        with_x_of_q.x = q.x;
        const LinearProblem& g = with_x_of_q;
        const GroupedProblem k(++seed, 72, 40, dtype, {rows, 0, 2 * rows, 1});
        const GroupedProblem a(++seed, 72, 4, dtype, {rows, 0, 2 * rows, 1});
        Workbench bench(*backend);
        std::vector<std::vector<PackedMatrix>> weights;
        std::vector<LinearArgs> products(4);
        for (const LinearProblem* p : {&q, &g}) {
          LinearArgs& args = products[weights.size()];
          weights.push_back({bench.Pack(p->w, p->out_features, p->in_features, dtype)});
          args.x = p == &g ? products[0].x : bench.Activations(p->x, {rows, p->in_features});
          args.y = bench.NewActivations({rows, p->out_features});
        }
        for (const GroupedProblem* p : {&k, &a}) {
          LinearArgs& args = products[weights.size()];
          auto& packed = weights.emplace_back();
          for (const auto& w : p->weights) {
            packed.push_back(bench.Pack(w, p->out_features, p->in_features, dtype));
          }
          args.x = bench.Activations(p->x, {GroupedProblem::kRows, p->in_features});
          args.entry_rows = bench.Ints(p->entry_rows);
          args.group_offsets = bench.Ints(p->offsets);
          args.y = bench.NewActivations({p->offsets.back(), p->out_features});
        }
        for (size_t i = 0; i < products.size(); ++i) products[i].weights = weights[i];
        bench.kernels().Linear(products);

        const double relative = RelativeBound(compute, 72);
        const auto where = [&] {
          return "rows " + std::to_string(rows) + " " + Name(dtype) + ", compute " + Name(compute);
        };
        EXPECT_THAT(bench.Read(products[0].y), IsWithin(q.Bound(relative), q.Run(*reference_)))
            << where();
        EXPECT_THAT(bench.Read(products[1].y), IsWithin(g.Bound(relative), g.Run(*reference_)))
            << where();
        EXPECT_THAT(bench.Read(products[2].y), IsWithin(k.Bound(relative), k.Run(*reference_)))
            << where();
        EXPECT_THAT(bench.Read(products[3].y), IsWithin(a.Bound(relative), a.Run(*reference_)))
            << where();
      }
    }
  }
}

// Gate and up of a row or two in one launch, which leaves more of them to others.
TEST_P(LinearTest, GateAndUpOfFewRowsAreProductsAndSwiGlu) {
  const std::unique_ptr<Backend> backend = GetParam().Make(2, DType::kBF16);
  uint64_t seed = 700;
  for (const int rows : {1, 2, 3}) {
    for (const int out_features : {20, 2730}) {
      for (const bool biased : {false, true}) {
        Workbench bench(*backend);
        SeededRandom random(++seed);
        const auto biases = [&] {
          return biased ? random.NormalValues(out_features, 1, DType::kF32)
                        : std::vector<double>(static_cast<size_t>(out_features));
        };
        LinearProblem gate(++seed, rows, 200, out_features, DType::kBF16);
        LinearProblem up(++seed, rows, 200, out_features, DType::kBF16);
        up.x = gate.x;
        const std::vector<double> gate_bias = biases(), up_bias = biases();
        SwiGluProductArgs args = {.x = bench.Activations(gate.x, {rows, 200}),
                                  .gate = bench.Pack(gate.w, out_features, 200, DType::kBF16),
                                  .up = bench.Pack(up.w, out_features, 200, DType::kBF16),
                                  .y = bench.NewActivations({rows, out_features})};
        if (biased) {
          args.gate_bias = bench.Floats(gate_bias, {1, out_features});
          args.up_bias = bench.Floats(up_bias, {1, out_features});
        }
        const bool fused = bench.kernels().SwiGluProduct(args);
        if (GetParam().device == "cuda") {
          EXPECT_EQ(fused, rows < 3);
        }
        if (!fused) continue;
        std::vector<double> want = gate.Run(*reference_), bound;
        const std::vector<double> factors = up.Run(*reference_);
        for (size_t i = 0; i < want.size(); ++i) {
          const double g = want[i] + gate_bias[i % out_features];
          const double u = factors[i] + up_bias[i % out_features];
          want[i] = g / (1 + std::exp(-g)) * u;
          bound.push_back(1e-4 * (1 + std::abs(g)) * (1 + std::abs(u)));
        }
        EXPECT_THAT(bench.Read(args.y), IsWithin(bound, want))
            << rows << " rows, " << out_features << " outputs, biased " << biased;
      }
    }
  }
}

// Products of any number of features in one launch, some of them with activations behind them.
TEST_P(LinearTest, ActivatedProductsAreProductsAndActivations) {
  struct Wanted {
    int in_features, out_features;
    Activation activation;
    DType y;
  };
  const Wanted list[] = {{1024, 1088, Activation::kIdentity, DType::kF32},
                         {64, 300, Activation::kTanh, DType::kBF16},
                         {200, 132, Activation::kSigmoid, DType::kF32},
                         {16, 256, Activation::kIdentity, DType::kBF16},
                         {600, 64, Activation::kSquaredRelu, DType::kBF16}};
  const std::unique_ptr<Backend> backend = GetParam().Make(2, DType::kBF16);
  RecurrentSteps* const steps = RecurrentStepsOf(backend->kernels());
  if (steps == nullptr) GTEST_SKIP() << "the backend fuses no such products";
  uint64_t seed = 800;
  for (const int rows : {3, 30, 60, 129, 200, 256, 320}) {
    Workbench bench(*backend);
    std::vector<LinearProblem> problems;
    std::vector<PackedMatrix> weights;
    std::vector<ActivatedProduct> products;
    for (const Wanted& wanted : list) {
      LinearProblem& p = problems.emplace_back(++seed, rows, wanted.in_features,
                                               wanted.out_features, DType::kBF16);
      p.x = SeededRandom(seed).NormalValues(static_cast<int64_t>(rows) * p.in_features, 1,
                                            DType::kBF16);
      weights.push_back(bench.Pack(p.w, p.out_features, p.in_features, DType::kBF16));
    }
    for (size_t i = 0; i < problems.size(); ++i) {
      const Shape shape = {rows, list[i].out_features};
      const std::vector<double> nothing(static_cast<size_t>(shape.elements()), -1);
      products.push_back(
          {.product = {.x = bench.Values(problems[i].x, {rows, list[i].in_features}, DType::kBF16),
                       .weights = {&weights[i], 1},
                       .y = bench.Values(nothing, shape, list[i].y)},
           .activation = list[i].activation});
    }
    if (!steps->ActivatedProducts(products)) GTEST_SKIP() << "not on this device";
    for (size_t i = 0; i < problems.size(); ++i) {
      std::vector<double> want = problems[i].Run(*reference_), bound;
      for (double& y : want) {
        const double sum = y;
        switch (list[i].activation) {
          case Activation::kTanh:
            y = std::tanh(sum);
            break;
          case Activation::kSigmoid:
            y = 1 / (1 + std::exp(-sum));
            break;
          case Activation::kSquaredRelu:
            y = sum > 0 ? sum * sum : 0;
            break;
          default:
            break;
        }
        // Sums in f32 of products of some units, and the rounding of what is stored.
        const double steepness =
            list[i].activation == Activation::kSquaredRelu ? 2 * std::abs(sum) : 1;
        bound.push_back(1e-4 * (1 + steepness) +
                        (list[i].y == DType::kBF16 ? std::abs(y) / 256 : 0));
      }
      EXPECT_THAT(bench.Read(products[i].product.y), IsWithin(bound, want))
          << "rows " << rows << ", product " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
