// Sampling against a distribution worked out the long way, sample_problem.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "kernels/tensor.h"
#include "tests/kernels/sample_problem.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

void ExpectTokens(const SampleProblem& p, Backend& backend) {
  const Sampled got = p.Run(backend);
  for (size_t r = 0; r < p.rows.size(); ++r) {
    ASSERT_EQ(got.tokens[r], p.ExpectedToken(r)) << "row " << r;
  }
}

class SampleTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(SampleTest, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  SampleProblem p(37);
  SeededRandom random(1);
  for (int i = 0; i < 300; ++i) {
    std::vector<double> logits;
    for (int t = 0; t < 37; ++t) logits.push_back(random.Int(-3, 3) - (i % 2 ? 50 : 0));
    p.Add(logits).temperature = 0;
  }
  p.Add(std::vector<double>(37, 0.0)).temperature = 0;
  p.Add(std::vector<double>(37, -1e30)).temperature = 0;
  ExpectTokens(p, *backend_);
}

TEST_P(SampleTest, GreedyFindsTheLargestAnywhere) {
  for (const int vocab : {1, 2, 15, 16, 17, 255, 1000}) {
    SampleProblem p(vocab);
    SeededRandom random(vocab);
    for (int i = 0; i < std::min(vocab, 40); ++i) {
      std::vector<double> logits = random.NormalValues(vocab);
      logits[vocab > 40 ? vocab - 1 - i : i] = 50;
      p.Add(logits).temperature = 0;
    }
    ExpectTokens(p, *backend_);
  }
}

// Devices may take rows that want nothing else another way than others.
TEST_P(SampleTest, GreedyRowsAloneAndTogether) {
  for (const int vocab : {4, 127, 128, 1000, 32000, 32001, 40000}) {
    SeededRandom random(vocab);
    const double inf = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> rows;
    const auto add = [&](auto logit_of) {
      std::vector<double> logits;
      for (int t = 0; t < vocab; ++t) logits.push_back(logit_of(t));
      rows.push_back(std::move(logits));
    };
    add([&](int) { return random.Normal(); });
    add([&](int) { return -40 + random.Int(-2, 2); });        // ties everywhere
    add([&](int t) { return t % 3 == 1 ? 0.0 : -0.0; });      // zeros are equal
    add([&](int t) { return t + 2 < vocab ? NAN : -1e30; });  // only the last two can be drawn
    add([&](int t) { return t == vocab - 1 ? -3.0 : -inf; });
    add([&](int) { return NAN; });
    add([&](int) { return -inf; });
    add([&](int t) { return t == vocab / 2 ? inf : random.Normal(); });
    const auto expected = [](const std::vector<double>& logits) {
      int best = -1;
      for (int t = 0; t < static_cast<int>(logits.size()); ++t) {
        const auto logit = static_cast<float>(logits[t]);
        if (logit > (best < 0 ? -INFINITY : static_cast<float>(logits[best]))) best = t;
      }
      return best >= 0 && std::isinf(logits[best]) ? -1 : best;
    };
    for (const size_t together : {1, 2, 8, 200}) {
      for (size_t first = 0; first < rows.size(); first += together) {
        SampleProblem p(vocab);
        p.max_top_logprobs = 2;
        for (size_t i = first; i < first + together; ++i) {
          p.Add(rows[i % rows.size()]).temperature = 0;
        }
        const Sampled got = p.Run(*backend_);
        for (size_t i = 0; i < together; ++i) {
          EXPECT_EQ(got.tokens[i], expected(rows[(first + i) % rows.size()]))
              << vocab << ", row " << first + i;
          EXPECT_TRUE(std::isnan(got.logprobs[i]));
        }
        for (const int token : got.top_tokens) EXPECT_EQ(token, -1);
        for (const float logprob : got.top_logprobs) EXPECT_TRUE(std::isnan(logprob));
      }
    }
  }
}

TEST_P(SampleTest, DrawsTheTokenOfTheCumulativeDistribution) {
  for (const int vocab : {1, 2, 17, 300, 5000}) {
    SampleProblem p(vocab);
    SeededRandom random(vocab);
    for (int i = 0; i < 60; ++i) {
      SamplingRow& row = p.Add(random.NormalValues(vocab, 2));
      row.temperature = static_cast<float>(random.Uniform(0.2, 2));
      row.seed = 1000 + i;
      row.choice = static_cast<uint32_t>(i % 3);
      row.position = int64_t{i} << (i % 40);
    }
    ExpectTokens(p, *backend_);
  }
}

TEST_P(SampleTest, EachFilterAloneAndAllTogether) {
  SampleProblem p(200);
  SeededRandom random(5);
  for (int i = 0; i < 1500; ++i) {
    // Every third row full of ties, so that filters cut through equals.
    std::vector<double> logits;
    for (int t = 0; t < 200; ++t) {
      logits.push_back(i % 3 == 0 ? random.Int(-4, 4) : 3 * random.Normal());
    }
    SamplingRow& row = p.Add(logits);
    row.seed = 7;
    row.position = i;
    const int which = i % 5;
    if (which == 0 || which == 4) row.top_k = random.Int(1, 250);
    if (which == 1 || which == 4) row.top_p = static_cast<float>(random.Uniform(0, 1));
    if (which == 2 || which == 4) row.min_p = static_cast<float>(std::pow(random.Uniform(), 3));
    if (which == 3 || which == 4) row.temperature = static_cast<float>(random.Uniform(0.1, 3));
  }
  ExpectTokens(p, *backend_);
}

TEST_P(SampleTest, FiltersAtTheirLimitsLeaveTheLikeliestToken) {
  SampleProblem p(50);
  SeededRandom random(6);
  for (int i = 0; i < 120; ++i) {
    SamplingRow& row = p.Add(random.NormalValues(50));
    row.position = i;
    if (i % 4 == 0) row.top_k = 1;
    if (i % 4 == 1) row.top_p = 0;
    if (i % 4 == 2) row.min_p = 1;
    if (i % 4 == 3) row.temperature = 1e-6f;
  }
  const Sampled got = p.Run(*backend_);
  for (int i = 0; i < 120; ++i) {
    const std::vector<double> logits = p.Logits(i);
    ASSERT_EQ(got.tokens[i], std::max_element(logits.begin(), logits.end()) - logits.begin()) << i;
  }
}

TEST_P(SampleTest, PenaltiesAndBiasComeBeforeTheDistribution) {
  SampleProblem p(60);
  SeededRandom random(8);
  for (int i = 0; i < 600; ++i) {
    std::vector<HistoryToken> history;
    std::vector<BiasToken> bias;
    const std::vector<int> tokens = random.Permutation(60);
    for (int j = 0; j < random.Int(0, 30); ++j) history.push_back({tokens[j], random.Int(0, 3)});
    const std::vector<int> biased = random.Permutation(60);
    for (int j = 0; j < random.Int(0, 20); ++j) {
      bias.push_back(
          {biased[j], random.Chance(0.2) ? kBanned : static_cast<float>(random.Uniform(-5, 5))});
    }
    SamplingRow& row = p.Add(random.NormalValues(60, 2), history, bias);
    row.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    row.repetition_penalty = i % 2 ? static_cast<float>(random.Uniform(0.7, 2)) : 1.0f;
    row.presence_penalty = i % 5 ? static_cast<float>(random.Uniform(-2, 2)) : 0.0f;
    row.frequency_penalty = i % 7 ? static_cast<float>(random.Uniform(-2, 2)) : 0.0f;
    row.top_k = i % 4 ? 0 : 10;
    row.position = i;
  }
  ExpectTokens(p, *backend_);
}

TEST_P(SampleTest, ABannedTokenIsNeverDrawn) {
  SampleProblem p(10);
  std::vector<BiasToken> all_but_six;
  for (int t = 0; t < 10; ++t) {
    if (t != 6) all_but_six.push_back({t, kBanned});
  }
  for (int i = 0; i < 200; ++i) {
    SamplingRow& row = p.Add({9, 8, 7, 6, 5, 4, -300, 9, 9, 9}, {}, all_but_six);
    row.temperature = i % 4 == 0 ? 0.0f : i % 4 == 1 ? 1e-30f : 1.0f;
    row.top_p = i % 3 == 0 ? 0.5f : 1.0f;
    row.min_p = i % 5 == 0 ? 0.1f : 0.0f;
    row.top_k = i % 7 == 0 ? 3 : 0;
    row.position = i;
  }
  for (const int token : p.Run(*backend_).tokens) EXPECT_EQ(token, 6);
}

TEST_P(SampleTest, WithNothingToDrawThereIsNoToken) {
  SampleProblem p(3);
  const std::vector<BiasToken> all = {{0, kBanned}, {1, kBanned}, {2, kBanned}};
  p.Add({1, 2, 3}, {}, all).temperature = 0;
  p.Add({1, 2, 3}, {}, all).temperature = 1;
  p.Add({1, 2, 3}, {}, all).top_k = 2;
  p.Add({NAN, NAN, NAN}).temperature = 0;
  p.Add({NAN, NAN, NAN}).temperature = 1;
  p.Add({-INFINITY, NAN, -INFINITY}).temperature = 0;
  p.Add({1, INFINITY, 3}).temperature = 0;
  p.Add({1, INFINITY, 3}).temperature = 1;
  p.Add({1, INFINITY, NAN}, {}, {{0, 2.0f}}).temperature = 0;
  p.Add({1, 2, 3}).temperature = 0;
  p.Add({-INFINITY, 2, NAN}, {}, {{1, kBanned}}).temperature = 1;
  constexpr int32_t kNone = kNoLogits, kLeft = kNothingLeft;
  EXPECT_EQ(p.Run(*backend_).tokens, (std::vector<int32_t>{kLeft, kLeft, kLeft, kNone, kNone, kNone,
                                                           kNone, kNone, kNone, 2, kLeft}));
}

// Whatever a request may ask for, a token of finite logits is drawn, the same one everywhere. Some
// backends flush subnormal numbers.
TEST_P(SampleTest, ParametersAtTheEndsOfTheirRangesDrawATokenEverywhere) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> tiny = {Limits::denorm_min(), 1e-40f, 1e-38f, Limits::min(), 1e-30f};
  std::vector<float> temperatures = tiny, repetitions = tiny, top_ps = tiny, min_ps = tiny;
  temperatures.insert(temperatures.end(), {0, 1, 100});
  repetitions.insert(repetitions.end(), {1, 10});
  top_ps.insert(top_ps.end(), {1});
  min_ps.insert(min_ps.end(), {0, 1});
  constexpr int kVocab = 40;
  constexpr float kLargest = Limits::max();
  SeededRandom random(12);
  SampleProblem p(kVocab);
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> logits = random.NormalValues(kVocab, 3);
    if (i % 5 == 4) {
      for (double& logit : logits) logit = logit > 0 ? kLargest : -kLargest;
    }
    if (i % 7 == 6) {
      for (double& logit : logits) logit *= 1e-30;  // as normal numbers
    }
    std::vector<HistoryToken> history;
    for (int t = 0; t < kVocab; t += random.Int(1, 4)) {
      history.push_back({t, random.Chance(0.2) ? std::numeric_limits<int32_t>::max() : t % 3});
    }
    const std::vector<BiasToken> bias = {{3, 100}, {4, -99}, {5, Limits::denorm_min()}};
    const auto any = [&](const std::vector<float>& values) {
      return values[random.Int(0, static_cast<int>(values.size()) - 1)];
    };
    SamplingRow& row = p.Add(logits, history, bias);
    row.temperature = any(temperatures);
    row.repetition_penalty = any(repetitions);
    row.presence_penalty = random.Chance(0.5) ? 2.0f : -2.0f;
    row.frequency_penalty = random.Chance(0.5) ? 2.0f : Limits::denorm_min();
    row.top_p = random.Chance(0.3) ? any(top_ps) : 1.0f;
    row.min_p = random.Chance(0.3) ? any(min_ps) : 0.0f;
    row.position = i;
  }
  const std::unique_ptr<Backend> reference = MakeReference();
  const Sampled want = p.Run(*reference), got = p.Run(*backend_);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_GE(got.tokens[i], 0) << "row " << i;
    ASSERT_EQ(got.tokens[i], want.tokens[i]) << "row " << i;
  }
}

TEST_P(SampleTest, NaNLogitsAreNeverChosen) {
  SampleProblem p(40);
  SeededRandom random(9);
  for (int i = 0; i < 100; ++i) {
    std::vector<double> logits(40, NAN);
    logits[i % 40] = random.Uniform(-5, 5);
    SamplingRow& row = p.Add(logits);
    row.temperature = i % 2;
    row.position = i;
    row.top_p = i % 3 == 0 ? 0.9f : 1.0f;
  }
  const Sampled got = p.Run(*backend_);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(got.tokens[i], i % 40);
}

TEST_P(SampleTest, ATinyTemperatureIsGreedy) {
  SampleProblem p(100);
  SeededRandom random(10);
  for (int i = 0; i < 100; ++i) {
    SamplingRow& row = p.Add(random.NormalValues(100, 100));
    row.temperature = i % 2 ? 1e-30f : std::numeric_limits<float>::denorm_min();
    row.position = i;
    row.top_logprobs = 0;
  }
  const Sampled got = p.Run(*backend_);
  for (int i = 0; i < 100; ++i) {
    const std::vector<double> logits = p.Logits(i);
    ASSERT_EQ(got.tokens[i], std::max_element(logits.begin(), logits.end()) - logits.begin()) << i;
    ASSERT_TRUE(std::isfinite(got.logprobs[i]));
  }
}

TEST_P(SampleTest, AHugeTemperatureIsUniform) {
  SampleProblem p(4);
  for (int i = 0; i < 400; ++i) {
    SamplingRow& row = p.Add({0, 100, -100, 50});
    row.temperature = 1e30f;
    row.position = i;
  }
  std::map<int, int> counts;
  for (const int token : p.Run(*backend_).tokens) ++counts[token];
  for (int t = 0; t < 4; ++t) EXPECT_NEAR(counts[t], 100, 45) << "token " << t;  // 5 sigma
}

// Pearson's statistic over 20,000 draws; 37.4 would be exceeded once in 10,000 seeds for 11 degrees
// of freedom. Draws of consecutive positions, of different seeds, of different choices.
TEST_P(SampleTest, FrequenciesFollowTheDistribution) {
  constexpr int kDraws = 20000, kVocab = 12;
  const std::vector<double> logits = {0, -1, 1, 0.5, -2, 2, 1.5, 0.25, -0.5, 1, 0, -1.5};
  for (const int varied : {0, 1, 2}) {
    SampleProblem p(kVocab);
    for (int i = 0; i < kDraws; ++i) {
      SamplingRow& row = p.Add(logits);
      row.temperature = 0.9f;
      row.position = varied == 0 ? i : 17;
      row.seed = varied == 1 ? static_cast<uint64_t>(i) : 99;
      row.choice = varied == 2 ? static_cast<uint32_t>(i) : 0;
    }
    std::vector<int> counts(kVocab, 0);
    for (const int token : p.Run(*backend_).tokens) ++counts[token];
    double statistic = 0;
    for (const auto& [token, probability] : p.Distribution(0)) {
      const double expected = probability * kDraws;
      statistic += (counts[token] - expected) * (counts[token] - expected) / expected;
    }
    EXPECT_LT(statistic, 37.4) << "varied " << varied;
    EXPECT_GT(statistic, 1.0) << "too regular to be random, varied " << varied;
  }
}

TEST_P(SampleTest, ARowDoesNotDependOnTheRestOfTheBatch) {
  SampleProblem all(130);
  all.max_top_logprobs = 4;
  SeededRandom random(11);
  for (int i = 0; i < 70; ++i) {
    SamplingRow& row = all.Add(random.NormalValues(130, 2), {{i, 2}, {129, 1}}, {{i + 1, 1.5f}});
    row.temperature = i % 5 == 0 ? 0.0f : 0.8f;
    row.top_k = i % 3 ? 0 : 20;
    row.top_p = i % 2 ? 0.9f : 1.0f;
    row.repetition_penalty = 1.2f;
    row.frequency_penalty = 0.3f;
    row.top_logprobs = i % 6 - 1;
    row.seed = 5;
    row.position = i;
  }
  const Sampled together = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    const Sampled other = all.Run(*GetParam().Make(threads));
    EXPECT_EQ(other.tokens, together.tokens);
    EXPECT_EQ(other.top_tokens, together.top_tokens);
  }
  for (int i = 0; i < 70; ++i) {
    SampleProblem one(130);
    one.max_top_logprobs = 4;
    SamplingRow& row = one.Add(all.Logits(i), {{i, 2}, {129, 1}}, {{i + 1, 1.5f}});
    const SamplingRow lists = row;
    row = all.rows[i];
    row.history_begin = lists.history_begin;
    row.history_end = lists.history_end;
    row.bias_begin = lists.bias_begin;
    row.bias_end = lists.bias_end;
    const Sampled alone = one.Run(*backend_);
    ASSERT_EQ(alone.tokens[0], together.tokens[i]) << "row " << i;
    if (row.top_logprobs >= 0) {
      ASSERT_EQ(alone.logprobs[0], together.logprobs[i]) << "row " << i;
    }
    for (int j = 0; j < 4; ++j) {
      ASSERT_EQ(alone.top_tokens[j], together.top_tokens[i * 4 + j]) << "row " << i;
    }
  }
}

TEST_P(SampleTest, PositionSeedAndChoiceNameTheDraw) {
  SampleProblem p(1000);
  const std::vector<double> flat(1000, 0.0);
  for (int i = 0; i < 6; ++i) {
    SamplingRow& row = p.Add(flat);
    row.seed = i == 1 ? 0xffffffffffffffff : 3;
    row.choice = i == 2 ? 1 : 0;
    row.position = i == 3 ? 1 : i == 4 ? (int64_t{1} << 40) : 0;
  }
  const std::vector<int32_t> tokens = p.Run(*backend_).tokens;
  EXPECT_EQ(tokens[0], tokens[5]);
  for (int i = 1; i < 5; ++i) EXPECT_NE(tokens[0], tokens[i]) << i;
  ExpectTokens(p, *backend_);
}

// Batches that go up as arguments and those that are copied, drawn and greedy.
TEST_P(SampleTest, TheNextStepFindsItsTokensPositionsAndWhoHasEnded) {
  for (const bool greedy : {true, false}) {
    for (const int rows : {1, 3, 40, 100}) {
      SCOPED_TRACE(rows);
      SampleProblem p(200);
      SeededRandom random(rows);
      for (int r = 0; r < rows; ++r) {
        const bool nothing = r % 7 == 3;  // there is to draw
        SamplingRow& row =
            p.Add(nothing ? std::vector<double>(200, NAN) : random.NormalValues(200));
        if (greedy) row.temperature = 0;
        row.position = r;
        for (int32_t& end : row.end_tokens) end = random.Int(0, 199);
        row.end_tokens[r % 3] = -1;
        if (!nothing && r % 5 == 2) row.end_tokens[r % 4] = p.ExpectedToken(r);
      }
      Workbench bench(*backend_);
      Sampled sampled;
      SampleArgs args = p.Args(bench, sampled);
      std::vector<int> slots;
      std::vector<int64_t> positions;  // beyond what 32 bits hold, and about to be
      for (int r = 0; r < rows; ++r) {
        slots.push_back(1000 + r);
        positions.push_back((int64_t{1} << (r % 2 == 0 ? 32 : 40)) + r - 1);
      }
      const Tensor device_positions = Tensor::Allocate(*backend_, DType::kI64, {rows}).value();
      args.next_positions = device_positions.view();
      backend_->CopyFromHost(args.next_positions.data, positions.data(),
                             args.next_positions.bytes());
      args.next_tokens = bench.NewInts({rows});
      args.next_slots = bench.Ints(slots);
      bench.kernels().Sample(args);
      const std::vector<int> next_tokens = bench.ReadInts(args.next_tokens);
      const std::vector<int> next_slots = bench.ReadInts(args.next_slots);
      std::vector<int64_t> next_positions(rows);
      backend_->CopyToHost(next_positions.data(), args.next_positions.data,
                           args.next_positions.bytes());
      for (int r = 0; r < rows; ++r) {
        EXPECT_EQ(sampled.tokens[r], r % 7 == 3 ? -1 : p.ExpectedToken(r)) << r;
        EXPECT_EQ(next_tokens[r], std::max(sampled.tokens[r], 0)) << r;
        const bool ends = p.rows[r].EndsWith(sampled.tokens[r]);
        EXPECT_EQ(next_slots[r], ends ? -1 : slots[r]) << r;
        EXPECT_EQ(next_positions[r], positions[r] + (ends ? 0 : 1)) << r;
      }
    }
  }
}

TEST_P(SampleTest, TwoBatchesAreUnderWayAtOnce) {
  std::vector<SampleProblem> problems(5, SampleProblem(300));
  std::vector<Sampled> sampled(problems.size());
  Workbench bench(*backend_);
  for (size_t i = 0; i < problems.size(); ++i) {
    SeededRandom random(static_cast<int>(i));
    problems[i].max_top_logprobs = i % 2 == 0 ? 3 : 0;
    for (size_t r = 0; r < 1 + 30 * i; ++r) {
      SamplingRow& row = problems[i].Add(random.NormalValues(300));
      row.temperature = i == 3 ? 0 : 1;
      row.top_logprobs = problems[i].max_top_logprobs;
      row.seed = i;
    }
    bench.kernels().BeginSample(problems[i].Args(bench, sampled[i]));
    if (i > 0) bench.kernels().FinishSample();
  }
  bench.kernels().FinishSample();
  for (size_t i = 0; i < problems.size(); ++i) {
    const Sampled want = problems[i].Run(*backend_);
    EXPECT_EQ(sampled[i].tokens, want.tokens) << i;
    EXPECT_EQ(sampled[i].top_tokens, want.top_tokens) << i;
    for (size_t r = 0; r < problems[i].rows.size(); ++r) {
      EXPECT_EQ(sampled[i].tokens[r], problems[i].ExpectedToken(r)) << i << " " << r;
    }
  }
}

TEST_P(SampleTest, NoRowsAreNoWork) {
  SampleProblem p(10);
  EXPECT_TRUE(p.Run(*backend_).tokens.empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, SampleTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
