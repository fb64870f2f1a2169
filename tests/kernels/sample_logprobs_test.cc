// Reported log-probabilities.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/sample_problem.h"
#include "tests/support/bounds.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

class SampleLogprobsTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

// log softmax of the raw logits. f32 may round the result, the logit and the sum's logarithm, and
// err in exp and log.
void ExpectLogprob(const std::vector<double>& logits, int token, float got) {
  double largest = -INFINITY, sum = 0;
  for (const double logit : logits) largest = std::max(largest, logit);
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double want = logits[token] - largest - std::log(sum);
  const double vocab = static_cast<double>(logits.size());
  const double bound = kUnitF32 * (2 * std::abs(largest) + 2 * std::abs(want) + std::log(sum)) +
                       2 * kFunctionError + SumError(vocab);
  EXPECT_NEAR(got, want, bound) << "token " << token;
}

TEST_P(SampleLogprobsTest, LogprobsAreThoseOfTheRawLogits) {
  for (const int vocab : {1, 9, 400}) {
    SampleProblem p(vocab);
    p.max_top_logprobs = 12;
    SeededRandom random(vocab);
    for (int i = 0; i < 50; ++i) {
      std::vector<double> logits;
      for (int t = 0; t < vocab; ++t) {
        logits.push_back(i % 2 ? random.Int(-2, 2) : 5 * random.Normal() + 40);
      }
      // None of this may show in what is reported.
      SamplingRow& row = p.Add(logits, {{0, 3}}, {{vocab - 1, 2.5f}});
      row.temperature = i % 3 == 0 ? 0.0f : 0.5f;
      row.repetition_penalty = 1.5f;
      row.top_k = 5;
      row.position = i;
      row.top_logprobs = i % 14 - 1;
      row.forced_token = i % 5 == 0 ? random.Int(0, vocab - 1) : -1;
    }
    const Sampled got = p.Run(*backend_);
    for (int r = 0; r < 50; ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r << ", vocab " << vocab);
      const std::vector<double> logits = p.Logits(r);
      const int asked = p.rows[r].top_logprobs;
      if (p.rows[r].forced_token >= 0) {
        EXPECT_EQ(got.tokens[r], p.rows[r].forced_token);
      }
      if (asked < 0) {
        EXPECT_TRUE(std::isnan(got.logprobs[r]));
      } else {
        ExpectLogprob(logits, got.tokens[r], got.logprobs[r]);
      }
      std::vector<int> order(vocab);
      for (int t = 0; t < vocab; ++t) order[t] = t;
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return logits[a] > logits[b]; });
      for (int j = 0; j < 12; ++j) {
        const int token = got.top_tokens[r * 12 + j];
        if (j < asked && j < vocab) {
          ASSERT_EQ(token, order[j]) << "place " << j;
          ExpectLogprob(logits, token, got.top_logprobs[r * 12 + j]);
        } else {
          ASSERT_EQ(token, -1) << "place " << j;
          ASSERT_TRUE(std::isnan(got.top_logprobs[r * 12 + j]));
        }
      }
    }
  }
}

// A softmax over what is finite would call the only finite logit certain.
TEST_P(SampleLogprobsTest, LogitsThatAreNoNumbersHaveNoLogprobs) {
  for (const int vocab : {3, 40, 70}) {
    SampleProblem p(vocab);
    p.max_top_logprobs = 2;
    const auto add = [&](double first, double rest, int forced) {
      std::vector<double> logits(vocab, rest);
      logits[0] = first;
      SamplingRow& row = p.Add(logits);
      row.temperature = static_cast<float>(p.rows.size() % 2);
      row.top_logprobs = 2;
      row.forced_token = forced;
    };
    for (const int forced : {-1, -1, 0, vocab - 1}) {
      for (const double special : {double{NAN}, double{INFINITY}}) {
        add(1, special, forced);
        add(special, 1, forced);
        add(special, special, forced);
      }
      add(-INFINITY, -INFINITY, forced);
    }
    const Sampled got = p.Run(*backend_);
    for (size_t r = 0; r < p.rows.size(); ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r << ", vocab " << vocab);
      EXPECT_TRUE(std::isnan(got.logprobs[r])) << got.logprobs[r];
      for (size_t i = 2 * r; i < 2 * r + 2; ++i) {
        EXPECT_EQ(got.top_tokens[i], -1);
        EXPECT_TRUE(std::isnan(got.top_logprobs[i])) << got.top_logprobs[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SampleLogprobsTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
