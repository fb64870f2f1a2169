// Small cases worked out by hand, and the delta rule in the layout and order of its literature.
// They hold the reference backend as well, which the other tests take on trust.
#include <cmath>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/delta_rule_problem.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// Everything below is of size about 1 and a few operations long.
constexpr double kKnownBound = 32 * kUnitF32;

class KnownAnswersTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  Workbench bench_{*backend_};
  Kernels& kernels_ = backend_->kernels();
};

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

// Width 3, one channel, weights 1, 10, 100, oldest first; history 5, 6, then inputs 7, 8.
TEST_P(KnownAnswersTest, ShortConv) {
  SlabPool slabs(bench_, 1, 1, 2, backend_->state_format().memory_dtype);
  slabs.Write(0, 0, {5, 6});
  ShortConvArgs args;
  args.x = bench_.Activations({7, 8}, {2, 1});
  args.weight = bench_.Floats({1, 10, 100}, {1, 3});
  args.segments = Upload(bench_, {{2, 0, 0, false}});
  args.window = slabs.view();
  args.y = bench_.NewActivations({2, 1});
  kernels_.ShortConv({&args, 1});
  // 5 + 60 + 700 and 6 + 70 + 800: far out, where silu is the identity.
  EXPECT_THAT(bench_.Read(args.y), IsWithin(1000 * kKnownBound, {765, 876}));
  EXPECT_THAT(slabs.Read(0, 0), IsWithin(0, {7, 8}));

  // One more input, of a memory that was never written: history is zero.
  SlabPool fresh(bench_, 1, 1, 2, backend_->state_format().memory_dtype);
  args.x = bench_.Activations({-0.01f}, {1, 1});
  args.segments = Upload(bench_, {{1, 0, 0, true}});
  args.window = fresh.view();
  args.y = bench_.NewActivations({1, 1});
  kernels_.ShortConv({&args, 1});
  EXPECT_THAT(bench_.Read(args.y), IsWithin(kKnownBound, {-1 / (1 + std::exp(1.0))}));
  EXPECT_THAT(fresh.Read(0, 0), IsWithin(0, {0, -0.01f}));

  // And one without an activation: 100 * 2 + 10 * -0.01.
  args.activation = Activation::kIdentity;
  args.x = bench_.Activations({2}, {1, 1});
  args.segments = Upload(bench_, {{1, 0, 0, false}});
  args.y = bench_.NewActivations({1, 1});
  kernels_.ShortConv({&args, 1});
  EXPECT_THAT(bench_.Read(args.y), IsWithin(200 * kKnownBound, {200 - 10 * 0.01}));
}

TEST_P(KnownAnswersTest, DeltaGates) {
  DeltaGatesArgs args;
  args.a = bench_.Activations({0, 30}, {1, 2});
  args.b = bench_.Activations({0, std::log(3.0f)}, {1, 2});
  args.a_log = bench_.Floats({std::log(2.0f), 0}, {2});
  args.dt_bias = bench_.Floats({0, 1}, {2});
  args.beta_scale = 2;
  args.log_decay = bench_.NewActivations({1, 2});
  args.beta = bench_.NewActivations({1, 2});
  kernels_.DeltaGates(args);
  EXPECT_THAT(bench_.Read(args.log_decay), IsWithin(31 * kKnownBound, {-2 * std::log(2.0), -31}));
  EXPECT_THAT(bench_.Read(args.beta), IsWithin(2 * kKnownBound, {1, 1.5}));
}

TEST_P(KnownAnswersTest, GatedDeltaRule) {
  // One row of one head: S = [1, 2], halved; k = (1, 0) recalls 0.5; u = 0.5 (3 - 0.5).
  SlabPool slabs(bench_, 1, 1, 2, backend_->state_format().memory_dtype);
  slabs.Write(0, 0, {1, 2});
  MatrixMemoryArgs args;
  args.q = bench_.Activations({1, 1}, {1, 1, 2});
  args.k = bench_.Activations({1, 0}, {1, 1, 2});
  args.v = bench_.Activations({3}, {1, 1, 1});
  args.log_decay = bench_.Activations({-std::log(2.0f)}, {1, 1});
  args.beta = bench_.Activations({0.5}, {1, 1});
  args.segments = Upload(bench_, {{1, 0, 0, false}});
  args.state = slabs.view();
  args.out = bench_.NewActivations({1, 1, 1});
  kernels_.MatrixMemory(args);
  EXPECT_THAT(slabs.Read(0, 0), IsWithin(kKnownBound, {1.75, 1}));
  EXPECT_THAT(bench_.Read(args.out), IsWithin(kKnownBound, {2.75}));
}

// One token through a matrix of two values and two keys, value first, under every rule. By hand:
//   S = [1 2; 3 4], q = (1, -1), k = (2, 1), v = (1, 2), beta = 1/2, c = (1, 1), e = (1/2, -1)
//   S c = (3, 7); the decays are those of kDecayed, D S.
TEST_P(KnownAnswersTest, MatrixMemoryUnderEveryRule) {
  using Decay = MatrixRule::Decay;
  using Correction = MatrixRule::Correction;
  struct Case {
    Decay decay;
    std::vector<double> decays;
    // After the token, and 2 S q of it, for no correction, delta and the general one.
    std::vector<double> state[3], out[3];
  };
  const Case cases[] = {
      {Decay::kNone,
       {},  // D S = [1 2; 3 4]
       {{3, 3, 7, 6}, {-2, 0.5, -5, 0}, {4.5, 0, 10.5, -1}},
       {{0, 2}, {-5, -10}, {9, 23}}},
      {Decay::kConstant,
       {0.5},  // [0.5 1; 1.5 2]
       {{2.5, 2, 5.5, 4}, {-0.5, 0.5, -1.5, 0.5}, {4, -1, 9, -3}},
       {{1, 3}, {-2, -4}, {10, 24}}},
      {Decay::kHead,
       {0.25},  // [0.25 0.5; 0.75 1]
       {{2.25, 1.5, 4.75, 3}, {0.25, 0.5, 0.25, 0.75}, {3.75, -1.5, 8.25, -4}},
       {{1.5, 3.5}, {-0.5, -1}, {10.5, 24.5}}},
      {Decay::kKey,
       {0.5, 0.25},  // [0.5 0.5; 1.5 1]
       {{2.5, 1.5, 5.5, 3}, {0, 0.25, -0.5, 0}, {4, -1.5, 9, -4}},
       {{2, 5}, {-0.5, -1}, {11, 26}}},
      {Decay::kValue,
       {0.5, 0.25},  // [0.5 1; 0.75 1]
       {{2.5, 2, 4.75, 3}, {-0.5, 0.5, 0.25, 0.75}, {4, -1, 8.25, -4}},
       {{1, 3.5}, {-2, -1}, {10, 24.5}}},
  };
  for (const Case& known : cases) {
    for (const Correction correction :
         {Correction::kNone, Correction::kDelta, Correction::kGeneral}) {
      for (const auto read : {MatrixRule::Read::kAfter, MatrixRule::Read::kBeforeWithBonus}) {
        const bool before = read == MatrixRule::Read::kBeforeWithBonus;
        const int index = static_cast<int>(correction);
        SCOPED_TRACE(testing::Message() << "decay " << static_cast<int>(known.decay)
                                        << ", correction " << index << ", read before " << before);
        SlabPool slabs(bench_, 1, 1, 4, backend_->state_format().memory_dtype);
        slabs.Write(0, 0, {1, 2, 3, 4});
        std::vector<double> log_decay;
        for (const double decay : known.decays) log_decay.push_back(std::log(decay));
        for (double& value : log_decay) value = RoundTo(value, DType::kF32);
        MatrixMemoryArgs args;
        args.rule = {known.decay, correction, read};
        args.q = bench_.Activations({1, -1}, {1, 1, 2});
        args.k = bench_.Activations({2, 1}, {1, 1, 2});
        args.v = bench_.Activations({1, 2}, {1, 1, 2});
        if (known.decay == Decay::kConstant) args.log_decay = bench_.Floats(log_decay, {1});
        if (known.decay == Decay::kHead) args.log_decay = bench_.Activations(log_decay, {1, 1});
        if (log_decay.size() == 2) args.log_decay = bench_.Activations(log_decay, {1, 1, 2});
        if (correction == Correction::kDelta) args.beta = bench_.Activations({0.5}, {1, 1});
        if (correction == Correction::kGeneral) {
          args.c = bench_.Activations({1, 1}, {1, 1, 2});
          args.e = bench_.Activations({0.5, -1}, {1, 1, 2});
        }
        if (before) args.bonus = bench_.Floats({3, 2}, {1, 2});
        args.scale = 2;
        args.segments = Upload(bench_, {{1, 0, 0, false}});
        args.state = slabs.view();
        args.out = bench_.NewActivations({1, 1, 2});
        kernels_.MatrixMemory(args);
        EXPECT_THAT(slabs.Read(0, 0), IsWithin(16 * kKnownBound, known.state[index]));
        // S q = (-1, -1), q . (bonus * k) = 4, whatever the rule does to the matrix.
        EXPECT_THAT(
            bench_.Read(args.out),
            IsWithin(32 * kKnownBound, before ? std::vector<double>{6, 14} : known.out[index]));
      }
    }
  }
}

// Writing with beta = 1 under orthonormal keys is exact recall: each key reads back its last value.
TEST_P(KnownAnswersTest, TheDeltaRuleRecallsWhatWasWrittenLast) {
  constexpr int kKeys = 16, kValues = 3;
  SlabPool slabs(bench_, 1, 1, kKeys * kValues, backend_->state_format().memory_dtype);
  std::vector<double> keys, values, want;
  SeededRandom random(3);
  std::vector<std::vector<double>> last(kKeys);
  for (int e = 0; e < 40; ++e) {
    const int key = e % kKeys;
    for (int d = 0; d < kKeys; ++d) keys.push_back(d == key ? 1 : 0);
    last[key] = random.NormalValues(kValues);
    values.insert(values.end(), last[key].begin(), last[key].end());
    want.insert(want.end(), last[key].begin(), last[key].end());
  }
  MatrixMemoryArgs args;
  args.q = bench_.Activations(keys, {40, 1, kKeys});
  args.k = bench_.Activations(keys, {40, 1, kKeys});
  args.v = bench_.Activations(values, {40, 1, kValues});
  args.log_decay = bench_.Activations(std::vector<double>(40, 0.0), {40, 1});
  args.beta = bench_.Activations(std::vector<double>(40, 1.0), {40, 1});
  args.segments = Upload(bench_, {{40, 0, 0, true}});
  args.state = slabs.view();
  args.out = bench_.NewActivations({40, 1, kValues});
  kernels_.MatrixMemory(args);
  EXPECT_THAT(bench_.Read(args.out), IsWithin(kKnownBound, want));
  const std::vector<double> state = slabs.Read(0, 0);
  for (int key = 0; key < kKeys; ++key) {
    for (int i = 0; i < kValues; ++i)
      EXPECT_NEAR(state[i * kKeys + key], last[key][i], kKnownBound);
  }
}

// S[d][i], key first, as the literature writes it, and in its other form:
//   S <- a (I - beta k k^T) S + beta k v^T,  o = S^T q
TEST_P(KnownAnswersTest, TheDeltaRuleInKeyFirstLayoutAndClosedForm) {
  const DeltaProblem p(5, {2, 4, 6, 5}, {{30, 0, 0, false}}, /*max_beta=*/1, /*slots=*/1,
                       /*memories=*/1);
  const int keys = 6, values = 5, heads = 2, value_heads = 4;
  std::vector<double> want_out, want_state;
  for (int j = 0; j < value_heads; ++j) {
    std::vector<std::vector<double>> s(keys, std::vector<double>(values));
    for (int d = 0; d < keys; ++d) {
      for (int i = 0; i < values; ++i) s[d][i] = p.states[0][(j * values + i) * keys + d];
    }
    std::vector<double> out;
    for (int e = 0; e < 30; ++e) {
      const double* k = &p.k[(e * heads + j / 2) * keys];
      const double* q = &p.q[(e * heads + j / 2) * keys];
      const double* v = &p.v[(e * value_heads + j) * values];
      const double a = std::exp(p.log_decay[e * value_heads + j]);
      const double beta = p.beta[e * value_heads + j];
      std::vector<std::vector<double>> next(keys, std::vector<double>(values));
      for (int d = 0; d < keys; ++d) {
        for (int i = 0; i < values; ++i) {
          double sum = 0;
          for (int c = 0; c < keys; ++c) sum += ((c == d ? 1 : 0) - beta * k[d] * k[c]) * s[c][i];
          next[d][i] = a * sum + beta * k[d] * v[i];
        }
      }
      s = next;
      for (int i = 0; i < values; ++i) {
        double sum = 0;
        for (int d = 0; d < keys; ++d) sum += s[d][i] * q[d];
        out.push_back(sum);
      }
    }
    for (int i = 0; i < values; ++i) {
      for (int d = 0; d < keys; ++d) want_state.push_back(s[d][i]);
    }
    want_out.insert(want_out.end(), out.begin(), out.end());
  }
  // From [value_heads][entries] to [entries][value_heads].
  std::vector<double> ordered;
  for (int e = 0; e < 30; ++e) {
    for (int j = 0; j < value_heads; ++j) {
      const auto first = want_out.begin() + (j * 30 + e) * values;
      ordered.insert(ordered.end(), first, first + values);
    }
  }
  const DeltaResult got = p.Run(*backend_);
  const double bound = backend_->activation_dtype() == DType::kF64 ? 1e-13 : 100 * kUnitF32;
  EXPECT_THAT(got.out, IsWithin(bound, ordered));
  EXPECT_THAT(got.states, IsWithin(bound, want_state));
}

TEST_P(KnownAnswersTest, MixMemories) {
  MixMemoriesArgs args;
  args.x = bench_.Activations({1, 10, 100, 1000}, {4, 1});
  args.token_entries = bench_.Ints({2, 0, 3, 1}, {2, 2});
  args.weights = bench_.Activations({0.5, 0.25}, {2, 1});
  args.y = bench_.NewActivations({2, 1});
  kernels_.MixMemories(args);  // the second column is the shared memory's
  EXPECT_THAT(bench_.Read(args.y), IsWithin(0, {51, 260}));
}

// One memory that every token goes to, none shared: routing, dispatch and mixing must vanish
// (one memory, one choice: a Gated DeltaNet layer).
TEST_P(KnownAnswersTest, OneMemoryAndNoChoiceIsAPlainDeltaRule) {
  const DeltaProblem p(6, {1, 1, 20, 24}, {{5, 2, 0, true}, {0, 1, 0, false}, {3, 0, 0, true}}, 1,
                       /*slots=*/3, /*memories=*/1);
  const DeltaResult want = p.Run(*backend_);

  RouteTopKArgs route;
  route.logits = bench_.Activations({3, -2, 0, 1e5, -7, 0.5, 1, 2}, {8, 1});
  route.indices = bench_.NewInts({8, 1});
  route.weights = bench_.NewActivations({8, 1});
  kernels_.RouteTopK(route);
  SlabPool flags(bench_, 3, 1, 1, DType::kU8);
  for (int slot = 0; slot < 3; ++slot) flags.Write(slot, 0, {0});
  DispatchArgs dispatch;
  dispatch.row_offsets = bench_.Ints({0, 5, 5, 8});
  dispatch.slots = bench_.Ints({2, 1, 0});
  dispatch.indices = route.indices;
  dispatch.memories = 1;
  dispatch.written = flags.view();
  dispatch.entry_tokens = bench_.NewInts({8});
  dispatch.token_entries = bench_.NewInts({8, 1});
  dispatch.group_offsets = bench_.NewInts({2});
  dispatch.segments = {3, bench_.NewInts({4}), bench_.NewInts({3}), bench_.NewInts({3}),
                       bench_.NewInts({3})};
  kernels_.Dispatch(dispatch);

  SlabPool slabs = p.NewSlabs(bench_);
  p.LoadStates(slabs);
  MatrixMemoryArgs rule;
  rule.q = bench_.Activations(p.q, {8, 1, 20});
  rule.k = bench_.Activations(p.k, {8, 1, 20});
  rule.v = bench_.Activations(p.v, {8, 1, 24});
  rule.log_decay = bench_.Activations(p.log_decay, {8, 1});
  rule.beta = bench_.Activations(p.beta, {8, 1});
  rule.segments = dispatch.segments;
  rule.state = slabs.view();
  rule.out = bench_.NewActivations({8, 1, 24});
  kernels_.MatrixMemory(rule);
  MixMemoriesArgs mix;
  rule.out.shape = {8, 24};
  mix.x = rule.out;
  mix.token_entries = dispatch.token_entries;
  mix.weights = route.weights;
  mix.y = bench_.NewActivations({8, 24});
  kernels_.MixMemories(mix);
  EXPECT_THAT(bench_.Read(mix.y), IsWithin(0, want.out));
  EXPECT_THAT(p.ReadStates(slabs), HasSameBits(want.states));
}

INSTANTIATE_TEST_SUITE_P(Backends, KnownAnswersTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
