// Small cases worked out by hand of memories and windows, and the delta rule in the layout and
// order of its literature.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/delta_rule_problem.h"
#include "tests/kernels/known_answers.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"

namespace mneme {
namespace {

using KnownMemoriesTest = KnownAnswersTest;

// Width 3, one channel, weights 1, 10, 100, oldest first; history 5, 6, then inputs 7, 8.
TEST_P(KnownMemoriesTest, ShortConv) {
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

TEST_P(KnownMemoriesTest, DeltaGates) {
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

TEST_P(KnownMemoriesTest, GatedDeltaRule) {
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
TEST_P(KnownMemoriesTest, MatrixMemoryUnderEveryRule) {
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
TEST_P(KnownMemoriesTest, TheDeltaRuleRecallsWhatWasWrittenLast) {
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
TEST_P(KnownMemoriesTest, TheDeltaRuleInKeyFirstLayoutAndClosedForm) {
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

TEST_P(KnownMemoriesTest, MixMemories) {
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
TEST_P(KnownMemoriesTest, OneMemoryAndNoChoiceIsAPlainDeltaRule) {
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

INSTANTIATE_TEST_SUITE_P(Backends, KnownMemoriesTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
