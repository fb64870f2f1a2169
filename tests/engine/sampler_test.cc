#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "engine/status_payload.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

std::string Field(const SamplingParams& params) {
  return FieldOf(ValidateSampling(params, /*vocab=*/10)).value_or("ok");
}

TEST(SamplerTest, ValuesOutOfRangeNameTheirField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Field({}), "ok");
  EXPECT_EQ(Field({.temperature = 0}), "ok");
  for (const float bad : {-0.1f, 101.0f, nan}) {
    EXPECT_EQ(Field({.temperature = bad}), "sampling.temperature");
  }
  EXPECT_EQ(Field({.top_k = -1}), "sampling.top_k");
  for (const float bad : {0.0f, 1.1f, nan}) EXPECT_EQ(Field({.top_p = bad}), "sampling.top_p");
  for (const float bad : {-0.1f, 1.1f, nan}) EXPECT_EQ(Field({.min_p = bad}), "sampling.min_p");
  for (const float bad : {0.0f, 10.1f, nan}) {
    EXPECT_EQ(Field({.repetition_penalty = bad}), "sampling.repetition_penalty");
  }
  for (const float bad : {-2.1f, 2.1f, nan}) {
    EXPECT_EQ(Field({.presence_penalty = bad}), "sampling.presence_penalty");
    EXPECT_EQ(Field({.frequency_penalty = bad}), "sampling.frequency_penalty");
  }
  EXPECT_EQ(Field({.logit_bias = {{10, 1.0f}}}), "sampling.logit_bias");
  EXPECT_EQ(Field({.logit_bias = {{-1, 1.0f}}}), "sampling.logit_bias");
  EXPECT_EQ(Field({.logit_bias = {{1, 100.5f}}}), "sampling.logit_bias");
  EXPECT_EQ(Field({.logit_bias = {{1, nan}}}), "sampling.logit_bias");
  EXPECT_EQ(Field({.logit_bias = {{1, 1.0f}, {1, 2.0f}}}), "sampling.logit_bias");
  EXPECT_EQ(Field({.logit_bias = {{1, -100.0f}, {9, 100.0f}}}), "ok");
}

TEST(SamplerTest, MessagesNameValueAndRange) {
  const absl::Status status = ValidateSampling({.top_p = 1.5f}, 10);
  EXPECT_EQ(status.message(), "sampling.top_p is 1.5, expected more than 0, at most 1 (off)");
  // A number next to the range is not shown as its end.
  EXPECT_EQ(ValidateSampling({.top_p = 1.0000001f}, 10).message(),
            "sampling.top_p is 1.0000001, expected more than 0, at most 1 (off)");
  EXPECT_EQ(ValidateSampling({.temperature = -0.7f}, 10).message(),
            "sampling.temperature is -0.7, expected 0 (greedy) to 100");
  EXPECT_EQ(ValidateSampling({.logit_bias = {{1, 100.00001f}}}, 10).message(),
            "sampling.logit_bias of token 1 is 100.00001, expected -100 to 100");
}

TEST(SamplerTest, ADrawCarriesItsParametersAndKey) {
  const Sampler sampler({.temperature = 0.5f, .top_k = 3}, /*seed=*/42, {}, /*logprobs=*/2,
                        /*prompt_logprobs=*/-1);
  TokenHistory history(8);
  history.Push(1, false);
  SamplingBatch batch;
  sampler.AppendDraw(history, /*choice=*/2, /*position=*/17, /*ban=*/false, batch);
  ASSERT_EQ(batch.rows.size(), 1);
  const SamplingRow& row = batch.rows[0];
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.top_k, 3);
  EXPECT_EQ(row.seed, 42);
  EXPECT_EQ(row.choice, 2);
  EXPECT_EQ(row.position, 17);
  EXPECT_EQ(row.forced_token, -1);
  EXPECT_EQ(batch.max_top_logprobs, 2);
  EXPECT_TRUE(batch.history.empty()) << "no penalty needs it";
}

TEST(SamplerTest, ListsOfSeveralRowsLieOneAfterTheOther) {
  const std::vector<int32_t> banned = {5, 1};
  const Sampler sampler({.repetition_penalty = 1.2f, .logit_bias = {{1, 2.0f}, {2, -100.0f}}}, 1,
                        banned, -1, -1);
  TokenHistory history(8);
  history.Push(3, false);
  history.Push(3, true);
  SamplingBatch batch;
  sampler.AppendDraw(history, 0, 0, /*ban=*/false, batch);
  sampler.AppendDraw(history, 0, 0, /*ban=*/true, batch);
  ASSERT_EQ(batch.rows.size(), 2);
  EXPECT_EQ(batch.rows[1].history_begin, 1);
  EXPECT_EQ(batch.rows[1].history_end, 2);
  EXPECT_EQ(batch.history[1].token, 3);
  EXPECT_EQ(batch.history[1].generated_count, 1);
  std::map<int32_t, float> first, second;
  for (int i = batch.rows[0].bias_begin; i < batch.rows[0].bias_end; ++i) {
    first[batch.bias[i].token] = batch.bias[i].bias;
  }
  for (int i = batch.rows[1].bias_begin; i < batch.rows[1].bias_end; ++i) {
    EXPECT_TRUE(second.emplace(batch.bias[i].token, batch.bias[i].bias).second) << "twice";
  }
  EXPECT_EQ(first.size(), 2);
  EXPECT_EQ(first[1], 2.0f);
  EXPECT_EQ(first[2], -INFINITY) << "-100 bans";
  EXPECT_EQ(second.size(), 3);
  EXPECT_EQ(second[1], -INFINITY) << "a ban overrides a bias";
  EXPECT_EQ(second[5], -INFINITY);
}

TEST(SamplerTest, AScoreForcesItsToken) {
  const Sampler sampler({}, 1, {}, -1, /*prompt_logprobs=*/4);
  SamplingBatch batch;
  sampler.AppendScore(9, batch);
  EXPECT_EQ(batch.rows[0].forced_token, 9);
  EXPECT_EQ(batch.rows[0].top_logprobs, 4);
}

// Against a plain list, with and without counting from the beginning.
TEST(TokenHistoryTest, CountsTheLastTokensOnly) {
  std::mt19937 random(/*seed=*/5);
  for (int round = 0; round < 200; ++round) {
    const int capacity = static_cast<int>(random() % 12);
    TokenHistory history(capacity);
    std::vector<std::pair<int32_t, bool>> all;
    for (int i = 0; i < 60; ++i) {
      all.emplace_back(random() % 6, random() % 2 == 0);
      history.Push(all.back().first, all.back().second);
      if (random() % 4 != 0) continue;
      std::map<int32_t, int> want;
      for (size_t k = all.size() > static_cast<size_t>(capacity) ? all.size() - capacity : 0;
           k < all.size(); ++k) {
        want[all[k].first] += all[k].second ? 1 : 0;
      }
      std::vector<HistoryToken> got;
      history.AppendDistinct(got);
      ASSERT_EQ(got.size(), want.size());
      for (const HistoryToken& entry : got) {
        ASSERT_EQ(want.at(entry.token), entry.generated_count);
      }
    }
  }
}

TEST(TokenHistoryTest, ACopyGoesItsOwnWay) {
  TokenHistory history(4);
  history.Push(1, true);
  std::vector<HistoryToken> seen;
  history.AppendDistinct(seen);
  TokenHistory copy = history;
  copy.Push(2, true);
  seen.clear();
  history.AppendDistinct(seen);
  EXPECT_EQ(seen.size(), 1);
  seen.clear();
  copy.AppendDistinct(seen);
  EXPECT_EQ(seen.size(), 2);
}

}  // namespace
}  // namespace mneme
