// A stack of residual blocks, delta rule and MLP, made of kernels alone: how far rounded and exact
// arithmetic come out after many products in a row. docs/numerics.md, "Compute dtype bf16".
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

constexpr int kStackTokens = 40, kDim = 96, kHeads = 3, kHeadDim = 32, kHidden = 160, kVocab = 64;

struct BlockWeights {
  std::vector<double> norm, q, k, v, a, b, gate, out, a_log, dt_bias, head_norm;
  std::vector<double> mlp_norm, mlp_gate, mlp_up, mlp_down;
};

struct Stack {
  Stack(uint64_t seed, int layers) {
    SeededRandom random(seed);
    const auto matrix = [&random](int out, int in) {
      return random.NormalValues(out * in, 1 / std::sqrt(in), DType::kBF16);
    };
    const auto ones = [&random](int n) { return random.UniformValues(n, 0.5, 1.5); };
    for (int i = 0; i < layers; ++i) {
      blocks.push_back({ones(kDim), matrix(kDim, kDim), matrix(kDim, kDim), matrix(kDim, kDim),
                        matrix(kHeads, kDim), matrix(kHeads, kDim), matrix(kDim, kDim),
                        matrix(kDim, kDim), random.UniformValues(kHeads, -2, 2),
                        random.UniformValues(kHeads, -6, -2), ones(kHeadDim), ones(kDim),
                        matrix(kHidden, kDim), matrix(kHidden, kDim), matrix(kDim, kHidden)});
    }
    norm = ones(kDim);
    head = matrix(kVocab, kDim);
    x = random.NormalValues(kStackTokens * kDim);
  }

  // Logits of all tokens.
  std::vector<double> Run(Backend& backend) const {
    Workbench bench(backend);
    Kernels& kernels = bench.kernels();
    const auto linear = [&](const std::vector<double>& w, const TensorView& in, int out_features,
                            const TensorView* sum = nullptr) {
      const int in_features = static_cast<int>(in.shape[1]);
      const PackedMatrix packed = bench.Pack(w, out_features, in_features, DType::kBF16);
      LinearArgs args;
      args.x = in;
      args.weights = {&packed, 1};
      args.y = sum != nullptr ? *sum : bench.NewActivations({kStackTokens, out_features});
      args.accumulate = sum != nullptr;
      kernels.Linear({&args, 1});
      return args.y;
    };
    const auto rms = [&](const TensorView& in, const std::vector<double>& weight) {
      RmsNormArgs args{in, bench.Floats(weight, {kDim}), 1e-6f,
                       bench.NewActivations({kStackTokens, kDim})};
      kernels.RmsNorm(args);
      return args.y;
    };
    const auto heads = [](TensorView t) {
      t.shape = {kStackTokens, kHeads, kHeadDim};
      return t;
    };
    const auto flat = [](TensorView t) {
      t.shape = {kStackTokens, kDim};
      return t;
    };

    const TensorView h = bench.Activations(x, {kStackTokens, kDim});
    const Segments segments = Upload(bench, {{kStackTokens, 0, 0, true}});
    for (const BlockWeights& w : blocks) {
      const TensorView n = rms(h, w.norm);
      TensorView q = heads(linear(w.q, n, kDim)), k = heads(linear(w.k, n, kDim));
      const TensorView v = heads(linear(w.v, n, kDim));
      kernels.L2Norm({.x = q, .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)), .y = q});
      kernels.L2Norm({.x = k, .y = k});
      DeltaGatesArgs gates;
      gates.a = gates.log_decay = linear(w.a, n, kHeads);
      gates.b = gates.beta = linear(w.b, n, kHeads);
      gates.a_log = bench.Floats(w.a_log, {kHeads});
      gates.dt_bias = bench.Floats(w.dt_bias, {kHeads});
      kernels.DeltaGates(gates);
      SlabPool slab(bench, 1, 1, kHeads * kHeadDim * kHeadDim, backend.state_format().memory_dtype);
      const MatrixMemoryArgs rule = {.q = q,
                                     .k = k,
                                     .v = v,
                                     .log_decay = gates.log_decay,
                                     .beta = gates.beta,
                                     .segments = segments,
                                     .state = slab.view(),
                                     .out = v};
      kernels.MatrixMemory(rule);
      kernels.GatedRmsNorm({.x = v,
                            .gate = heads(linear(w.gate, n, kDim)),
                            .weight = bench.Floats(w.head_norm, {kHeadDim}),
                            .y = v});
      linear(w.out, flat(v), kDim, &h);

      const TensorView m = rms(h, w.mlp_norm);
      const TensorView gate = linear(w.mlp_gate, m, kHidden);
      kernels.SwiGlu({gate, linear(w.mlp_up, m, kHidden), gate});
      linear(w.mlp_down, gate, kDim, &h);
    }
    return bench.Read(linear(head, rms(h, norm), kVocab));
  }

  std::vector<BlockWeights> blocks;
  std::vector<double> norm, head, x;
};

class BF16StackTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(BF16StackTest, RoundedActivationsStayWithinTheEstimate) {
  const std::unique_ptr<Backend> reference = MakeReference();
  const std::unique_ptr<Backend> rounding = GetParam().Make(2, DType::kBF16);
  for (const int layers : {1, 3, 12}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const Stack stack(seed, layers);
      const double error = RelativeError(stack.Run(*rounding), stack.Run(*reference));
      const double estimate = kUnitBF16 / 2 * (4 * layers + 1);
      EXPECT_LE(error, estimate) << layers << " layers, seed " << seed;
      RecordProperty("error_over_estimate_" + std::to_string(layers) + "_" + std::to_string(seed),
                     std::to_string(error / estimate));
    }
  }
}

// The estimate describes rounding, so rounding where it certainly happens must come near it.
TEST(BF16StackOfReferenceTest, TheEstimateIsNotIdle) {
  const Stack stack(1, 12);
  const double error =
      RelativeError(stack.Run(*MakeReference(DType::kBF16)), stack.Run(*MakeReference()));
  const double estimate = kUnitBF16 / 2 * (4 * 12 + 1);
  EXPECT_LE(error, estimate);
  EXPECT_GE(error, estimate / 20);
}

TEST_P(BF16StackTest, ExactArithmeticStaysWithinFiveDigits) {
  const std::unique_ptr<Backend> reference = MakeReference(), backend = GetParam().Make();
  for (const uint64_t seed : {1, 2, 3}) {
    const Stack stack(seed, 12);
    EXPECT_LE(RelativeError(stack.Run(*backend), stack.Run(*reference)), 2e-5) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BF16StackTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
