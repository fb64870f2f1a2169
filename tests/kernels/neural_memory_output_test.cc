// NeuralMemoryOutput on a GPU against the operations it stands for, on the same GPU and in float64.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// Relative in norm: sums of some hundred terms, and functions of a few ulp.
constexpr double kOutputBound = 1e-5;

class CudaNeuralMemoryOutputTest : public CudaTest {};

// A memory's answer on its way out: of 5 tokens, of which one is no entry of the memory's.
struct NeuralOutputProblem {
  int heads = 3, dim = 64;
  bool by_token = false;  // LayerNorm, then the gate
  bool rounded = false;   // gate and result of the fused operation are bf16
  bool diverged = false;  // entry 3 has an answer that is not finite

  struct Result {
    bool fused = false;
    std::vector<double> y, surprise;
  };
  Result Run(Backend& backend, bool fuse) const {
    const int entries = 7, tokens = 5;
    SeededRandom random(2900 + static_cast<uint64_t>(dim));
    const auto values = [&](int64_t count) {
      std::vector<double> list = random.NormalValues(count);
      for (double& value : list) value = rounded ? RoundTo(value, DType::kBF16) : value;
      return list;
    };
    const int64_t width = int64_t{heads} * dim;
    const Shape shape{entries, width};
    std::vector<double> read = values(entries * width);
    if (diverged) read[static_cast<size_t>(3 * width + width - 1)] = INFINITY;
    Workbench bench(backend);
    const DType given = rounded && fuse ? DType::kBF16 : backend.activation_dtype();
    const TensorView answer = bench.Activations(read, shape);
    const TensorView gate = bench.Values(values(entries * width), shape, given);
    const TensorView gated = bench.NewActivations(shape), between = bench.NewActivations(shape);
    const TensorView y = bench.Values(std::vector<double>(entries * width), shape, given);
    const auto by_head = [&](TensorView rows) {
      rows.shape = {int64_t{entries} * heads, dim};
      return rows;
    };
    NeuralMemoryOutputArgs args = {
        .gate = {.x = gate, .activation = Activation::kSilu, .y = gated}};
    if (by_token) {
      args.gate.activation = Activation::kGeluTanh;
      args.norm = LayerNormArgs{.x = answer,
                                .weight = bench.Floats(random.NormalValues(width), {width}),
                                .bias = bench.Floats(random.NormalValues(width), {width}),
                                .eps = 1e-3f,
                                .y = between};
      args.product = {.a = gated, .b = between, .y = y};
    } else {
      args.product = {.a = answer, .b = gated, .y = between};
      args.norm = RmsNormArgs{.x = by_head(between),
                              .weight = bench.Floats(random.NormalValues(dim), {dim}),
                              .eps = 1e-3f,
                              .y = by_head(y)};
    }
    TensorView by_entry = answer;
    by_entry.shape = {entries, heads, dim};
    args.surprise = {
        .loss = bench.Activations(random.UniformValues(entries * heads, 0, 1), {entries, heads}),
        .read = by_entry,
        .places = bench.Ints({0, 3, 6, 5, entries, 1}),
        .outer = bench.Ints({5, 1, 4, 2, 0}),
        .surprise = bench.Floats(std::vector<double>(tokens, -1), {tokens})};
    Result result;
    Kernels& kernels = bench.kernels();
    result.fused = fuse && kernels.NeuralMemoryOutput(args);
    if (!result.fused) {
      kernels.Surprise(args.surprise);
      kernels.Activate({&args.gate, 1});
      if (by_token) kernels.LayerNorm(std::get<LayerNormArgs>(args.norm));
      kernels.Multiply(args.product);
      if (!by_token) kernels.RmsNorm(std::get<RmsNormArgs>(args.norm));
    }
    result.y = bench.Read(y);
    result.surprise = bench.Read(args.surprise.surprise);
    return result;
  }
};

TEST_F(CudaNeuralMemoryOutputTest, OutputAgreesWithItsParts) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kBF16);
  const std::unique_ptr<Backend> reference = MakeReferenceBackend({});
  for (const bool by_token : {false, true}) {
    for (const int dim : {4, 64, 96, 132, 256}) {
      for (const bool rounded : {false, true}) {
        const NeuralOutputProblem p = {.dim = dim, .by_token = by_token, .rounded = rounded};
        SCOPED_TRACE(std::string(by_token ? "tokens, " : "") + "heads of " + std::to_string(dim) +
                     (rounded ? ", bf16" : ""));
        const NeuralOutputProblem::Result got = p.Run(*backend, true),
                                          parts = p.Run(*backend, false);
        const NeuralOutputProblem::Result exact = p.Run(*reference, false);
        EXPECT_TRUE(got.fused);
        EXPECT_LE(RelativeError(got.y, parts.y), rounded ? kUnitBF16 : kOutputBound);
        EXPECT_LE(RelativeError(got.y, exact.y), rounded ? kUnitBF16 : kOutputBound);
        EXPECT_THAT(got.surprise, HasSameBits(parts.surprise));
        EXPECT_EQ(got.surprise[2], -1);
      }
    }
  }
  EXPECT_FALSE((NeuralOutputProblem{.dim = 30}.Run(*backend, true).fused));
  EXPECT_FALSE((NeuralOutputProblem{.dim = 260}.Run(*backend, true).fused));
  EXPECT_FALSE(
      (NeuralOutputProblem{.heads = 9, .dim = 256, .by_token = true}.Run(*backend, true).fused));
}

TEST_F(CudaNeuralMemoryOutputTest, OutputTellsOfWhatIsNotFinite) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kF32);
  const NeuralOutputProblem p = {.heads = 4, .diverged = true};
  const NeuralOutputProblem::Result got = p.Run(*backend, true);
  EXPECT_TRUE(got.fused);
  for (size_t token = 0; token < got.surprise.size(); ++token) {
    EXPECT_EQ(std::isnan(got.surprise[token]), token == 1);
  }
}

}  // namespace
}  // namespace mneme
