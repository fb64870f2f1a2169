// The fused steps of networks with LayerNorm, on a GPU, against the operations that they stand for
// in float64.
#include "kernels/layer_norm_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// f32 sums of up to a few thousand terms, of norms and products.
constexpr double kExact = 2e-5;
// Activations are rounded before a product, and where it ends in bf16.
constexpr double kRounded = kUnitBF16 / 2 + kUnitBF16 / 2;

struct Sizes {
  int rows, dim;
  std::vector<int> outs;
  bool biases = true;
  bool centred = true;  // else RmsNorm
};

std::string Describe(const Sizes& sizes) {
  std::string text = std::to_string(sizes.rows) + " rows of " + std::to_string(sizes.dim) + " to";
  for (const int out : sizes.outs) text += " " + std::to_string(out);
  return text + (sizes.biases ? "" : " without biases") + (sizes.centred ? "" : ", RmsNorm");
}

// Residuals off zero, as LayerNorm is for, norms that no model has, and small weights.
struct Numbers {
  Numbers(const Sizes& sizes, DType weights, uint64_t seed) {
    SeededRandom random(seed);
    for (int row = 0; row < sizes.rows; ++row) {
      const double mean = random.Normal(), scale = random.Uniform(0.1, 3);
      for (int i = 0; i < sizes.dim; ++i) {
        hidden.push_back(RoundTo(mean + scale * random.Normal(), DType::kF32));
      }
    }
    norm = random.UniformValues(sizes.dim, 0.5, 1.5);
    norm_bias = random.NormalValues(sizes.dim, 0.3);
    for (const int out : sizes.outs) {
      matrices.push_back(
          random.NormalValues(int64_t{out} * sizes.dim, 1 / std::sqrt(sizes.dim), weights));
      biases.push_back(random.NormalValues(out));
    }
  }
  std::vector<double> hidden, norm, norm_bias;
  std::vector<std::vector<double>> matrices, biases;
};

class CudaLayerNormStepTest : public CudaTest {
 protected:
  static StepNorm NormOf(Workbench& bench, const Sizes& sizes, const Numbers& numbers) {
    return {.weight = bench.Floats(numbers.norm, {sizes.dim}),
            .bias = sizes.biases && sizes.centred ? bench.Floats(numbers.norm_bias, {sizes.dim})
                                                  : TensorView{},
            .eps = 1e-3f,
            .centred = sizes.centred};
  }
  static StepProduct ProductOf(Workbench& bench, const Sizes& sizes, const Numbers& numbers,
                               size_t i, DType dtype) {
    const int out = sizes.outs[i];
    return {.weights = bench.Pack(numbers.matrices[i], out, sizes.dim, dtype),
            .bias = sizes.biases ? bench.Floats(numbers.biases[i], {1, out}) : TensorView{}};
  }

  // All outputs, of the parts or of the fused step; nothing if there is none.
  static std::vector<double> Products(Backend& backend, const Sizes& sizes, const Numbers& numbers,
                                      DType weights, DType y_dtype, Activation activation,
                                      bool fused) {
    Workbench bench(backend);
    Kernels& kernels = bench.kernels();
    const Shape shape{sizes.rows, sizes.dim};
    const TensorView hidden = bench.Activations(numbers.hidden, shape);
    const StepNorm norm = NormOf(bench, sizes, numbers);
    std::vector<NormedProductsStepArgs::Product> products;
    for (size_t i = 0; i < sizes.outs.size(); ++i) {
      const Shape y_shape{sizes.rows, sizes.outs[i]};
      const TensorView y =
          y_dtype == DType::kBF16
              ? bench.Values(std::vector<double>(static_cast<size_t>(y_shape.elements())), y_shape,
                             y_dtype)
              : bench.NewActivations(y_shape);
      products.push_back({ProductOf(bench, sizes, numbers, i, weights), y});
    }
    if (fused) {
      if (!LayerNormStepsOf(kernels)->NormedProductsStep(
              {.norm = norm, .hidden = hidden, .products = products, .activation = activation})) {
        return {};
      }
      EXPECT_THAT(bench.Read(hidden), HasSameBits(numbers.hidden));
    } else {
      const TensorView x = bench.NewActivations(shape);
      if (sizes.centred) {
        kernels.LayerNorm(
            {.x = hidden, .weight = norm.weight, .bias = norm.bias, .eps = norm.eps, .y = x});
      } else {
        kernels.RmsNorm({.x = hidden, .weight = norm.weight, .eps = norm.eps, .y = x});
      }
      for (const auto& [product, y] : products) {
        const LinearArgs linear = {
            .x = x, .weights = {&product.weights, 1}, .y = y, .bias = product.bias};
        kernels.Linear({&linear, 1});
        const ActivateArgs activate = {.x = y, .activation = activation, .y = y};
        kernels.Activate({&activate, 1});
      }
    }
    std::vector<double> all;
    for (const auto& [product, y] : products) {
      const std::vector<double> values = bench.Read(y);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  void ExpectProducts(const Sizes& sizes, DType compute, DType weights, DType y_dtype,
                      Activation activation, bool is_fused) {
    SCOPED_TRACE(Describe(sizes));
    const Numbers numbers(sizes, weights, ++seed_);
    const std::unique_ptr<Backend> backend = MakeCuda(compute);
    const std::vector<double> got =
        Products(*backend, sizes, numbers, weights, y_dtype, activation, true);
    EXPECT_EQ(!got.empty(), is_fused);
    if (got.empty()) return;
    const std::vector<double> want =
        Products(*reference_, sizes, numbers, weights, DType::kF64, activation, false);
    const double bound = sizes.rows > 2 ? kRounded : kExact;
    const double error = RelativeError(got, want);
    EXPECT_LE(error, bound) << "seed " << seed_;
    std::printf("  %s: relative error %.1e, bound %.1e\n", Describe(sizes).c_str(), error, bound);
  }

  // What a product adds to the rows at positions from 100 on; nothing if no step is fused.
  static std::vector<double> Added(Backend& backend, const Sizes& sizes, const Numbers& numbers,
                                   DType weights, DType x_dtype, bool from, bool fused) {
    Workbench bench(backend);
    const int out = sizes.outs[0];
    SeededRandom random(7);
    const std::vector<double> before = random.NormalValues(int64_t{sizes.rows} * out);
    std::vector<int64_t> positions;
    for (int row = 0; row < sizes.rows; ++row) positions.push_back(101 - row % 3);
    const TensorView hidden = bench.Activations(before, {sizes.rows, out});
    const Shape shape{sizes.rows, sizes.dim};
    const TensorView x = x_dtype == DType::kBF16 && fused
                             ? bench.Values(numbers.hidden, shape, x_dtype)
                             : bench.Activations(numbers.hidden, shape);
    const StepProduct product = ProductOf(bench, sizes, numbers, 0, weights);
    const TensorView at = bench.Longs(positions);
    if (fused) {
      if (!LayerNormStepsOf(bench.kernels())
               ->ResidualProductStep({.x = x,
                                      .product = product,
                                      .positions = from ? at : TensorView{},
                                      .first = from ? 100 : 0,
                                      .hidden = hidden})) {
        return {};
      }
    } else {
      const TensorView y = bench.NewActivations(hidden.shape);
      const LinearArgs linear = {
          .x = x, .weights = {&product.weights, 1}, .y = y, .bias = product.bias};
      bench.kernels().Linear({&linear, 1});
      bench.kernels().AddFrom({.x = y, .positions = at, .first = from ? 100 : 0, .y = hidden});
    }
    std::vector<double> added = bench.Read(hidden);
    for (int row = 0; row < sizes.rows; ++row) {
      for (int i = row * out; i < (row + 1) * out; ++i) {
        const bool kept = from && positions[static_cast<size_t>(row)] < 100;
        if (kept) {
          EXPECT_EQ(added[static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
        }
        added[static_cast<size_t>(i)] -= before[static_cast<size_t>(i)];
      }
    }
    return added;
  }

  void ExpectAdded(const Sizes& sizes, DType compute, DType weights, DType x_dtype, bool is_fused,
                   bool only_some = false) {
    for (const bool from : {false, true}) {
      SCOPED_TRACE(Describe(sizes) + (from ? ", some of the rows" : ""));
      Numbers numbers(sizes, weights, ++seed_);
      for (double& x : numbers.hidden) x = RoundTo(x, DType::kBF16);
      const std::unique_ptr<Backend> backend = MakeCuda(compute);
      const std::vector<double> got = Added(*backend, sizes, numbers, weights, x_dtype, from, true);
      EXPECT_EQ(!got.empty(), is_fused && (from || !only_some));
      if (got.empty()) continue;
      const std::vector<double> want =
          Added(*reference_, sizes, numbers, weights, x_dtype, from, false);
      EXPECT_LE(RelativeError(got, want), kExact) << "seed " << seed_;
    }
  }

  std::unique_ptr<Backend> reference_ = MakeReference();
  uint64_t seed_ = 0;
};

TEST_F(CudaLayerNormStepTest, ProductsOfOneAndTwoRowsAreOfTheirNorm) {
  for (const DType weights : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const int rows : {1, 2}) {
        for (const Sizes& sizes :
             {Sizes{rows, 768, {768, 768, 768}}, Sizes{rows, 768, {3072}}, Sizes{rows, 64, {13, 5}},
              Sizes{rows, 1000, {7}, false}, Sizes{rows, 1600, {33}}, Sizes{rows, 8, {1, 2, 3, 4}},
              Sizes{rows, 2048, {18}}}) {
          ExpectProducts(sizes, compute, weights, DType::kF32, Activation::kIdentity, true);
        }
        ExpectProducts({rows, 96, {50}}, compute, weights, DType::kF32, Activation::kGeluTanh,
                       true);
      }
    }
  }
  ExpectProducts({1, 2056, {8}}, DType::kBF16, DType::kBF16, DType::kF32, Activation::kIdentity,
                 false);
  ExpectProducts({1, 63, {8}}, DType::kBF16, DType::kBF16, DType::kF32, Activation::kIdentity,
                 false);
}

TEST_F(CudaLayerNormStepTest, ProductsOfOneAndTwoRowsAreOfTheirRmsNorm) {
  const bool hopper = HasHopperKernels();
  for (const int rows : {1, 2}) {
    for (const std::vector<int>& outs :
         {std::vector{1024, 1024, 1024, 1024, 16, 16, 16}, {13, 700}}) {
      for (const int dim : {8, 1024, 2816, 4096}) {
        ExpectProducts({rows, dim, outs, rows == 1, false}, DType::kBF16, DType::kBF16, DType::kF32,
                       Activation::kIdentity, hopper);
      }
    }
  }
  const auto takes_not = [&](const Sizes& sizes, DType compute, DType weights, Activation to) {
    ExpectProducts(sizes, compute, weights, DType::kF32, to, false);
  };
  const Activation as_is = Activation::kIdentity;
  takes_not({3, 96, {50}, true, false}, DType::kBF16, DType::kBF16, as_is);
  takes_not({1, 4104, {8}, true, false}, DType::kBF16, DType::kBF16, as_is);
  takes_not({1, 96, {50}, true, false}, DType::kF32, DType::kBF16, as_is);
  takes_not({1, 96, {50}, true, false}, DType::kBF16, DType::kF16, as_is);
  takes_not({1, 96, {50}, true, false}, DType::kBF16, DType::kBF16, Activation::kRelu);
}

TEST_F(CudaLayerNormStepTest, OneRowHasTheSameBitsBesideAnother) {
  for (const bool centred : {true, false}) {
    if (!centred && !HasHopperKernels()) continue;
    const Sizes both = {2, 768, {768}, true, centred};
    const Numbers numbers(both, DType::kBF16, 1);
    const std::unique_ptr<Backend> backend = MakeCuda(DType::kBF16);
    const auto run = [&](const Sizes& sizes, const Numbers& of) {
      return Products(*backend, sizes, of, DType::kBF16, DType::kF32,
                      centred ? Activation::kGelu : Activation::kIdentity, true);
    };
    std::vector<double> alone;
    for (const int row : {0, 1}) {
      Numbers own = numbers;
      own.hidden.assign(numbers.hidden.begin() + row * 768,
                        numbers.hidden.begin() + row * 768 + 768);
      const std::vector<double> values = run({1, 768, {768}, true, centred}, own);
      alone.insert(alone.end(), values.begin(), values.end());
    }
    ASSERT_FALSE(alone.empty());
    EXPECT_THAT(run(both, numbers), HasSameBits(alone));
  }
}

TEST_F(CudaLayerNormStepTest, ProductsOfMoreRowsAreOfTheirNorm) {
  const bool hopper = HasHopperKernels();
  for (const int rows : {3, 16, 17, 33, 49, 100, 129, 200, 256, 257}) {
    const bool fused = hopper && rows <= 256;
    for (const Sizes& sizes : {Sizes{rows, 768, {768, 768, 768}}, Sizes{rows, 768, {768}},
                               Sizes{rows, 256, {72, 4}, false}}) {
      ExpectProducts(sizes, DType::kBF16, DType::kBF16, DType::kF32, Activation::kIdentity, fused);
    }
    for (const DType y : {DType::kF32, DType::kBF16}) {
      ExpectProducts({rows, 768, {3072}}, DType::kBF16, DType::kBF16, y, Activation::kGeluTanh,
                     fused);
    }
  }
  ExpectProducts({5, 768, {768}}, DType::kF32, DType::kBF16, DType::kF32, Activation::kIdentity,
                 false);
  ExpectProducts({5, 768, {64}}, DType::kBF16, DType::kBF16, DType::kF32, Activation::kRelu, false);
  ExpectProducts({5, 100, {64}}, DType::kBF16, DType::kBF16, DType::kF32, Activation::kIdentity,
                 false);
}

TEST_F(CudaLayerNormStepTest, ProductsAreAddedToTheRowsFromAPositionOn) {
  const bool hopper = HasHopperKernels();
  for (const bool biases : {true, false}) {
    for (const int rows : {1, 2}) {
      for (const DType weights : {DType::kBF16, DType::kF16, DType::kF32}) {
        ExpectAdded({rows, 3072, {768}, biases}, DType::kBF16, weights, DType::kF32, true);
        ExpectAdded({rows, 27, {13}, biases}, DType::kF32, weights, DType::kF32, true);
      }
    }
    for (const int rows : {3, 16, 17, 64, 65, 256, 257}) {
      const bool fused = hopper && rows <= 256;
      for (const DType x : {DType::kF32, DType::kBF16}) {
        ExpectAdded({rows, 768, {768}, biases}, DType::kBF16, DType::kBF16, x, fused);
        // With many rows cuBLAS takes the longer sums, if they are of all rows.
        ExpectAdded({rows, 3072, {768}, biases}, DType::kBF16, DType::kBF16, x, fused, rows >= 65);
      }
    }
  }
}

// Attention to engrams with the query that it is of.
struct EngramSizes {
  int rows, dim, heads, head_dim, most, count;
};

struct EngramResult {
  bool fused = true;
  std::vector<double> read, sums;
};

EngramResult ReadEngrams(Backend& backend, const EngramSizes& sizes, DType out_dtype, bool sums,
                         bool fused) {
  constexpr int kLayers = 2, kFirst = 3, kSegment = 10;
  const int heads = sizes.heads, head_dim = sizes.head_dim, width = heads * head_dim;
  const int attended = kFirst + sizes.most;
  const Sizes of_query = {sizes.rows, sizes.dim, {width}};
  const Numbers numbers(of_query, DType::kBF16, 20);
  const DType act = backend.activation_dtype();
  const DType context = act == DType::kF64 ? act : DType::kBF16;
  Workbench bench(backend);
  SeededRandom random(21);
  SlabPool keys(bench, 3, 1, int64_t{attended} * width, context);
  SlabPool values(bench, 3, 1, int64_t{attended} * width, context);
  SlabPool facts(bench, 3, 1, kEngramFacts, DType::kI32);
  SlabPool added(bench, 3, kLayers, int64_t{heads} * sizes.most, act);
  // Row 0 has slot 2, row 1 slot 0, which is in its first segment.
  const std::vector<double> k = random.NormalValues(int64_t{attended} * width, 1, DType::kBF16);
  const std::vector<double> v = random.NormalValues(int64_t{attended} * width, 1, DType::kBF16);
  keys.Write(2, 0, k);
  values.Write(2, 0, v);
  added.Write(2, 1, random.NormalValues(int64_t{heads} * sizes.most));
  std::vector<int32_t> of_store(kEngramFacts);
  of_store[kEngramsRecalled] = of_store[kEngramsWorking] = sizes.count;
  for (const int slot : {0, 2}) {
    backend.CopyFromHost(facts.view().At(slot, 0), of_store.data(),
                         static_cast<int64_t>(of_store.size() * sizeof(int32_t)));
  }
  const std::vector<std::byte> before = added.Bytes();
  std::vector<int> offsets = {0}, slots;
  std::vector<int64_t> positions;
  for (int row = 0; row < sizes.rows; ++row) {
    offsets.push_back(row + 1);
    slots.push_back(row == 0 ? 2 : 0);
    positions.push_back(row == 0 ? kSegment + 3 : kSegment - 1);
  }
  const Shape shape{sizes.rows, heads, head_dim};
  const TensorView out =
      out_dtype == DType::kBF16 && fused
          ? bench.Values(std::vector<double>(static_cast<size_t>(shape.elements())), shape,
                         out_dtype)
          : bench.NewActivations(shape);
  EngramReadStepArgs args = {
      .norm = {.weight = bench.Floats(numbers.norm, {sizes.dim}),
               .bias = bench.Floats(numbers.norm_bias, {sizes.dim}),
               .eps = 1e-3f},
      .hidden = bench.Activations(numbers.hidden, {sizes.rows, sizes.dim}),
      .q = {.weights = bench.Pack(numbers.matrices[0], width, sizes.dim, DType::kBF16),
            .bias = bench.Floats(numbers.biases[0], {1, width})},
      .engrams = {.q = bench.NewActivations(shape),
                  .row_offsets = bench.Ints(offsets),
                  .slots = bench.Ints(slots),
                  .positions = bench.Longs(positions),
                  .segment = kSegment,
                  .scale = 0.4f,
                  .keys = keys.view(),
                  .values = values.view(),
                  .first = kFirst,
                  .most = sizes.most,
                  .facts = facts.view(),
                  .counted = sums ? kEngramsRecalled : kEngramsWorking,
                  .sums = sums ? added.view() : StateView{},
                  .layer = 1,
                  .recalled = sizes.most,
                  .out = out}};
  EngramResult result;
  if (fused) {
    result.fused = LayerNormStepsOf(bench.kernels())->EngramReadStep(args);
    if (!result.fused) return result;
  } else {
    const TensorView x = bench.NewActivations(args.hidden.shape);
    bench.kernels().LayerNorm({.x = args.hidden,
                               .weight = args.norm.weight,
                               .bias = args.norm.bias,
                               .eps = args.norm.eps,
                               .y = x});
    TensorView q = args.engrams.q;
    q.shape = {sizes.rows, width};
    const LinearArgs linear = {
        .x = x, .weights = {&args.q.weights, 1}, .y = q, .bias = args.q.bias};
    bench.kernels().Linear({&linear, 1});
    bench.kernels().EngramAttention(args.engrams);
  }
  result.read = bench.Read(out);
  EXPECT_TRUE(added.OnlyTouched(
      before, [&](int slot, int layer) { return sums && slot == 2 && layer == 1; }));
  result.sums = added.Read(2, 1);
  return result;
}

TEST_F(CudaLayerNormStepTest, EngramsAreReadWithTheQueryOfTheResidual) {
  const std::unique_ptr<Backend> backend = MakeCuda(DType::kBF16);
  for (const int rows : {1, 2}) {
    for (const EngramSizes& sizes :
         {EngramSizes{rows, 768, 12, 64, 100, 93}, EngramSizes{rows, 1024, 3, 64, 300, 300},
          EngramSizes{rows, 256, 2, 32, 5, 1}, EngramSizes{rows, 8, 1, 8, 40, 40},
          EngramSizes{rows, 512, 5, 40, 64, 17}}) {
      for (const bool sums : {false, true}) {
        for (const DType out : {DType::kF32, DType::kBF16}) {
          const EngramResult got = ReadEngrams(*backend, sizes, out, sums, true);
          ASSERT_TRUE(got.fused);
          const EngramResult want = ReadEngrams(*reference_, sizes, out, sums, false);
          const double error = RelativeError(got.read, want.read);
          EXPECT_LE(error, out == DType::kBF16 ? kUnitBF16 / 2 : kExact);
          EXPECT_LE(RelativeError(got.sums, want.sums), kExact);
          std::printf("  %d rows, %d of %d engrams: relative error %.1e\n", rows, sizes.count,
                      sizes.most, error);
        }
      }
    }
  }
  EXPECT_FALSE(ReadEngrams(*backend, {3, 768, 12, 64, 100, 93}, DType::kF32, true, true).fused);
  EXPECT_FALSE(ReadEngrams(*backend, {1, 1032, 12, 64, 100, 93}, DType::kF32, true, true).fused);
}

}  // namespace
}  // namespace mneme
