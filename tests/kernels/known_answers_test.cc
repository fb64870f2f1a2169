// Small cases worked out by hand of operations that take a token by itself.
#include "tests/kernels/known_answers.h"

#include <cmath>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

TEST_P(KnownAnswersTest, Linear) {
  const PackedMatrix w = bench_.Pack({1, 2, 3, -1, 0.5, 0}, 2, 3, DType::kBF16);
  LinearArgs args;
  args.x = bench_.Activations({1, 10, 100, 2, 4, -1}, {2, 3});
  args.weights = {&w, 1};
  args.y = bench_.Activations({1000, 1000, 1000, 1000}, {2, 2});
  kernels_.Linear({&args, 1});
  EXPECT_THAT(bench_.Read(args.y), IsWithin(0, {321, 4, 7, 0}));
  args.accumulate = true;
  kernels_.Linear({&args, 1});
  EXPECT_THAT(bench_.Read(args.y), IsWithin(0, {642, 8, 14, 0}));
}

TEST_P(KnownAnswersTest, GroupedLinear) {
  const PackedMatrix w[] = {bench_.Pack({1, 0}, 1, 2, DType::kF32),
                            bench_.Pack({0, 1}, 1, 2, DType::kF32),
                            bench_.Pack({1, 1}, 1, 2, DType::kF32)};
  LinearArgs args;
  args.x = bench_.Activations({1, 2, 3, 4, 5, 6}, {3, 2});
  args.weights = w;
  args.entry_rows = bench_.Ints({2, 0, 2, 1});
  args.group_offsets = bench_.Ints({0, 2, 2, 4});
  args.y = bench_.NewActivations({4, 1});
  kernels_.Linear({&args, 1});
  EXPECT_THAT(bench_.Read(args.y), IsWithin(0, {5, 1, 11, 7}));
}

// Rounding to bf16 takes 257 = 256 + 1 to 256: seen in the reference, allowed everywhere.
TEST(KnownAnswersOfReferenceTest, ComputingInBF16RoundsActivationsOnly) {
  const std::unique_ptr<Backend> reference = MakeReference(DType::kBF16);
  Workbench bench(*reference);
  const double third = RoundTo(1.0 / 3, DType::kF32);
  const PackedMatrix w = bench.Pack({third}, 1, 1, DType::kF32);
  LinearArgs args;
  args.x = bench.Activations({257, 259}, {2, 1});
  args.weights = {&w, 1};
  args.y = bench.NewActivations({2, 1});
  bench.kernels().Linear({&args, 1});
  EXPECT_THAT(bench.Read(args.y), IsWithin(0, {256 * third, 260 * third}));
}

TEST_P(KnownAnswersTest, Norms) {
  RmsNormArgs rms;
  rms.x = bench_.Activations({3, 4, 1, 7}, {2, 2});
  rms.weight = bench_.Floats({1, 2}, {2});
  rms.eps = 0;
  rms.y = bench_.NewActivations({2, 2});
  kernels_.RmsNorm(rms);
  // sqrt(mean): sqrt(12.5) and 5.
  EXPECT_THAT(bench_.Read(rms.y),
              IsWithin(kKnownBound, {3 / std::sqrt(12.5), 8 / std::sqrt(12.5), 0.2, 2.8}));

  // sqrt(sum + eps): in the last head the sum is not much larger.
  L2NormArgs l2;
  l2.x = bench_.Activations({3, 4, 0, 0, 3 * 0x1p-10, 4 * 0x1p-10}, {1, 3, 2});
  l2.scale = 0.5f;
  l2.eps = 1e-6f;
  l2.y = bench_.NewActivations({1, 3, 2});
  kernels_.L2Norm(l2);
  const double last = std::sqrt(25 * 0x1p-20 + l2.eps);
  EXPECT_THAT(bench_.Read(l2.y),
              IsWithin(kKnownBound, {0.3, 0.4, 0, 0, 1.5 * 0x1p-10 / last, 2 * 0x1p-10 / last}));

  GatedRmsNormArgs gated;
  gated.x = bench_.Activations({1, 7}, {1, 1, 2});
  gated.gate = bench_.Activations({0, std::log(2.0f)}, {1, 1, 2});
  gated.weight = bench_.Floats({1, 3}, {2});
  gated.eps = 0;
  gated.y = bench_.NewActivations({1, 1, 2});
  kernels_.GatedRmsNorm(gated);
  // silu(log 2) = 2/3 log 2.
  EXPECT_THAT(bench_.Read(gated.y), IsWithin(kKnownBound, {0, 2.8 * std::log(2.0)}));
  gated.activation = Activation::kSigmoid;  // 1/2 and 2/3
  kernels_.GatedRmsNorm(gated);
  EXPECT_THAT(bench_.Read(gated.y), IsWithin(4 * kKnownBound, {0.1, 2.8}));
}

TEST_P(KnownAnswersTest, SwiGlu) {
  SwiGluArgs args;
  args.gate = bench_.Activations({0, std::log(3.0f), -std::log(3.0f)}, {1, 3});
  args.up = bench_.Activations({5, 2, -4}, {1, 3});
  args.y = bench_.NewActivations({1, 3});
  kernels_.SwiGlu(args);
  EXPECT_THAT(bench_.Read(args.y), IsWithin(kKnownBound, {0, 1.5 * std::log(3.0), std::log(3.0)}));
}

TEST_P(KnownAnswersTest, Activations) {
  const std::vector<std::pair<Activation, std::vector<double>>> cases = {
      {Activation::kIdentity, {-2, 0, 6}},
      {Activation::kSilu, {-2 / (1 + std::exp(1.0)), 0, 6 / (1 + std::exp(-3.0))}},
      {Activation::kSigmoid, {2 / (1 + std::exp(1.0)), 1, 2 / (1 + std::exp(-3.0))}},
      {Activation::kRelu, {0, 0, 6}},
      {Activation::kEluPlusOne, {2 * std::exp(-1.0), 2, 8}},
  };
  for (const auto& [activation, want] : cases) {
    ActivateArgs args;
    args.x = bench_.Activations({3, 0, -1}, {3, 1});
    args.entry_rows = bench_.Ints({2, 1, 0});
    args.activation = activation;
    args.scale = 2;
    args.y = bench_.NewActivations({3, 1});
    kernels_.Activate({&args, 1});
    EXPECT_THAT(bench_.Read(args.y), IsWithin(8 * kKnownBound, want))
        << static_cast<int>(activation);
  }
}

TEST_P(KnownAnswersTest, SumsAndProducts) {
  AddBiasArgs bias;
  bias.bias = bench_.Floats({1, 2, 30, 40, 500, 600}, {3, 2});
  bias.group_offsets = bench_.Ints({0, 2, 2, 3});
  bias.y = bench_.Activations({1, 1, 2, 2, 3, 3}, {3, 2});
  kernels_.AddBias(bias);
  EXPECT_THAT(bench_.Read(bias.y), IsWithin(0, {2, 3, 3, 4, 503, 603}));

  MultiplyArgs product;
  product.a = bench_.Activations({1, -2, 3}, {1, 3});
  product.b = bench_.Activations({4, 5, 0.5}, {1, 3});
  product.y = bench_.NewActivations({1, 3});
  kernels_.Multiply(product);
  EXPECT_THAT(bench_.Read(product.y), IsWithin(0, {4, -10, 1.5}));

  SumNormArgs norm;
  norm.x = bench_.Activations({1, 3, 5, -1}, {1, 2, 2});
  norm.eps = 1;
  norm.y = bench_.NewActivations({1, 2, 2});
  kernels_.SumNorm(norm);
  EXPECT_THAT(bench_.Read(norm.y), IsWithin(kKnownBound, {0.2, 0.6, 1, -0.2}));

  DivideArgs quotient;
  quotient.x = bench_.Activations({1, 3, 5, -1}, {1, 2, 2});
  quotient.z = bench_.Activations({1, 4}, {1, 2});
  quotient.eps = 1;
  quotient.y = bench_.NewActivations({1, 2, 2});
  kernels_.Divide(quotient);
  EXPECT_THAT(bench_.Read(quotient.y), IsWithin(kKnownBound, {0.5, 1.5, 1, -0.2}));
}

TEST_P(KnownAnswersTest, FeatureMaps) {
  const double log2 = RoundTo(std::log(2.0), DType::kF32);
  SoftmaxArgs softmax;
  softmax.x = bench_.Activations({log2, 0, log2, 1000, 0, 0}, {1, 2, 3});
  softmax.y = bench_.NewActivations({1, 2, 3});
  kernels_.Softmax(softmax);
  EXPECT_THAT(bench_.Read(softmax.y), IsWithin(kKnownBound, {0.4, 0.2, 0.4, 1, 0, 0}));

  FeatureMapArgs args;
  args.map = FeatureMap::kHedgehog;  // softmax of (log 2, 0, -log 2, 0)
  args.x = bench_.Activations({log2 / 2, 0}, {1, 1, 2});
  args.y = bench_.NewActivations({1, 1, 4});
  kernels_.MapFeatures(args);
  EXPECT_THAT(bench_.Read(args.y), IsWithin(kKnownBound, {4 / 9.0, 2 / 9.0, 1 / 9.0, 2 / 9.0}));

  args.map = FeatureMap::kDpfp;  // of z = (2, 3, -2, -3) and of (0, 5, 0, -5)
  args.x = bench_.Activations({2, 3, -1, 5}, {1, 2, 2});
  args.y = bench_.NewActivations({1, 2, 16});
  kernels_.MapFeatures(args);
  EXPECT_THAT(bench_.Read(args.y),
              IsWithin(0, {-6, 6, -6, 6, -4, -9,  -4, -9,  6, -6, 6, -6, 4, 9,  4, 9,
                           0,  0, 0,  0, 0,  -25, 0,  -25, 0, 0,  0, 0,  0, 25, 0, 25}));
}

// A quarter of a turn, at position 1 and at position 5, and half of one.
TEST_P(KnownAnswersTest, Rope) {
  const double quarter = RoundTo(std::acos(0.0), DType::kF32);
  RopeArgs args;
  args.x = bench_.Activations({1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}, {3, 1, 4});
  args.positions = bench_.Longs({1, 5, 2});
  args.frequencies = bench_.Floats({quarter, 0}, {2});
  args.y = bench_.NewActivations({3, 1, 4});
  kernels_.Rope(args);
  EXPECT_THAT(bench_.Read(args.y),
              IsWithin(8 * kKnownBound, {-3, 2, 1, 4, -3, 2, 1, 4, -1, 2, -3, 4}));
}

TEST_P(KnownAnswersTest, DecayGates) {
  const double log2 = RoundTo(std::log(2.0), DType::kF32),
               log3 = RoundTo(std::log(3.0), DType::kF32);
  const auto run = [this](DecayGatesArgs args, const std::vector<double>& x) {
    const Shape shape = {1, 1, static_cast<int64_t>(x.size())};
    args.x = bench_.Activations(x, shape);
    args.log_decay = bench_.NewActivations(shape);
    args.complement = bench_.NewActivations(shape);
    kernels_.DecayGates(args);
    std::vector<double> both = bench_.Read(args.log_decay);
    const std::vector<double> complement = bench_.Read(args.complement);
    both.insert(both.end(), complement.begin(), complement.end());
    return both;
  };
  // sigmoid(0) and sigmoid(log 3), under a root; then cut off.
  EXPECT_THAT(run({.gate = DecayGate::kLogSigmoid, .normalizer = 2}, {0, log3}),
              IsWithin(kKnownBound, {std::log(0.5) / 2, std::log(0.75) / 2, 1 - std::sqrt(0.5),
                                     1 - std::sqrt(0.75)}));
  EXPECT_THAT(
      run({.gate = DecayGate::kLogSigmoid, .normalizer = 1, .least = static_cast<float>(-log2)},
          {0, -log3}),
      IsWithin(kKnownBound, {-log2, -log2, 0.5, 0.5}));
  // 1/2 + 1/2 * 1/2, and 3/4 of nothing kept.
  EXPECT_THAT(
      run({.gate = DecayGate::kForget, .lower = bench_.Floats({0.5, 0}, {1, 2})}, {0, log3}),
      IsWithin(kKnownBound, {std::log(0.75), std::log(0.75), 0.25, 0.25}));
  EXPECT_THAT(run({.gate = DecayGate::kSoftplus,
                   .a_log = bench_.Floats({log2}, {1}),
                   .dt_bias = bench_.Floats({-1, 1}, {1, 2})},
                  {1, 29}),
              IsWithin(60 * kKnownBound, {-2 * log2, -60, 0.75, 1}));
  EXPECT_THAT(run({.gate = DecayGate::kBounded,
                   .lower_bound = -4,
                   .a_log = bench_.Floats({log2}, {1}),
                   .dt_bias = bench_.Floats({1, 0}, {1, 2})},
                  {-1, log3 / 2}),
              IsWithin(4 * kKnownBound, {-2, -3, 1 - std::exp(-2.0), 1 - std::exp(-3.0)}));
}

TEST_P(KnownAnswersTest, RouteTopK) {
  RouteTopKArgs args;
  args.logits = bench_.Activations({1, 3, 2}, {1, 3});
  args.indices = bench_.NewInts({1, 2});
  args.weights = bench_.NewActivations({1, 2});
  kernels_.RouteTopK(args);
  const double e = std::exp(1.0);
  EXPECT_EQ(bench_.ReadInts(args.indices), (std::vector<int>{1, 2}));
  EXPECT_THAT(bench_.Read(args.weights), IsWithin(kKnownBound, {e / (1 + e), 1 / (1 + e)}));
}

// Two rows, three tokens, two memories and the shared one.
TEST_P(KnownAnswersTest, Dispatch) {
  SlabPool slabs(bench_, 5, 3, 1, DType::kU8);
  for (int slot = 0; slot < 5; ++slot) {
    for (int memory = 0; memory < 3; ++memory) slabs.Write(slot, memory, {memory == 2 ? 1.0 : 0.0});
  }
  DispatchArgs args;
  args.row_offsets = bench_.Ints({0, 1, 3});
  args.slots = bench_.Ints({4, 2});
  args.indices = bench_.Ints({1, 0, 1}, {3, 1});
  args.memories = 2;
  args.shared = true;
  args.written = slabs.view();
  args.entry_tokens = bench_.NewInts({6});
  args.token_entries = bench_.NewInts({3, 2});
  args.group_offsets = bench_.NewInts({4});
  args.segments = {6, bench_.NewInts({7}), bench_.NewInts({6}), bench_.NewInts({6}),
                   bench_.NewInts({6})};
  kernels_.Dispatch(args);
  EXPECT_EQ(bench_.ReadInts(args.entry_tokens), (std::vector<int>{1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(bench_.ReadInts(args.token_entries), (std::vector<int>{1, 3, 0, 4, 2, 5}));
  EXPECT_EQ(bench_.ReadInts(args.group_offsets), (std::vector<int>{0, 1, 3, 6}));
  EXPECT_EQ(bench_.ReadInts(args.segments.offsets), (std::vector<int>{0, 0, 1, 2, 3, 4, 6}));
  EXPECT_EQ(bench_.ReadInts(args.segments.slots), (std::vector<int>{4, 2, 4, 2, 4, 2}));
  EXPECT_EQ(bench_.ReadInts(args.segments.memories), (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(bench_.ReadInts(args.segments.fresh), (std::vector<int>{0, 1, 1, 1, 0, 0}));
  EXPECT_EQ(slabs.Read(4, 0)[0], 0);
  EXPECT_EQ(slabs.Read(4, 1)[0], 1);
  EXPECT_EQ(slabs.Read(2, 0)[0], 1);
  EXPECT_EQ(slabs.Read(2, 1)[0], 1);
  EXPECT_EQ(slabs.Read(0, 1)[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, KnownAnswersTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
