#include "engine/model_runner.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

constexpr RunnerLimits kLimits = {.rows = 4, .tokens = 16, .logit_rows = 16};

class ModelRunnerTest : public ::testing::Test {
 protected:
  int made_logits = 0;  // rows, of the last step
  FaultyBackend backend;
  FakeModel model{{.vocab = 10, .on_logits = [this](int rows) { made_logits = rows; }}};
  std::unique_ptr<StatePool> pool = StatePool::Create(backend, model, 3).value();
  std::unique_ptr<ModelRunner> runner = ModelRunner::Create(backend, model, *pool, kLimits).value();
};

TEST_F(ModelRunnerTest, BannedTokensAreNeverDrawn) {
  const int slot = pool->Acquire().value();
  const std::vector<int32_t> prompt = {1, 2, 3};
  StepPlan plan;
  plan.AddRow({.slot = slot, .position = 0, .tokens = prompt, .samples = true});
  const auto greedy = [&](const std::vector<int32_t>& banned) {  // after the prompt, fed once more
    RunnerLimits limits = kLimits;
    limits.banned_tokens = banned;
    auto bounded = ModelRunner::Create(backend, model, *pool, limits).value();
    EXPECT_EQ(bounded->Forward(plan), absl::OkStatus());
    plan.positions[0] += 3;
    SamplingBatch batch;
    batch.rows = {{.temperature = 0}};
    StepResult result;
    EXPECT_EQ(bounded->Sample(batch, result), absl::OkStatus());
    return result.tokens.at(0);
  };
  std::vector<int32_t> banned;
  for (int i = 0; i < 9; ++i) {
    banned.push_back(greedy(banned));
    EXPECT_EQ(std::count(banned.begin(), banned.end(), banned.back()), 1);
  }
  banned.push_back(greedy(banned));
  EXPECT_EQ(greedy(banned), kNoLogits) << "all are banned";
}

TEST_F(ModelRunnerTest, LogitsAreThoseAfterTheTokensAskedFor) {
  const int a = pool->Acquire().value(), b = pool->Acquire().value();
  const std::vector<int32_t> first = {1, 2, 3}, second = {4, 5};
  StepPlan plan;
  plan.AddRow({.slot = a, .position = 0, .tokens = first, .scored_tokens = 3});
  plan.AddRow({.slot = b, .position = 0, .tokens = second, .samples = true, .candidate = 1});
  ASSERT_EQ(runner->Forward(plan), absl::OkStatus());
  std::vector<float> logits(4 * 10);
  ASSERT_EQ(runner->ReadLogits(logits), absl::OkStatus());
  FakeMemory memory;
  for (int t = 0; t < 4; ++t) {
    if (t < 3) {
      memory.Feed(first[t]);
    } else {
      memory = {};
      memory.Feed(second);
    }
    const std::vector<double> want = memory.Logits(10);
    for (int v = 0; v < 10; ++v) EXPECT_EQ(logits[t * 10 + v], static_cast<float>(want[v]));
  }
}

TEST_F(ModelRunnerTest, AStepWithoutAGraphMakesAsManyLogitsAsOneWithAGraph) {
  for (const auto& [wanted, made] : {std::pair{0, 0}, {1, 1}, {3, 4}, {4, 4}, {5, 5}}) {
    const int slot = pool->Acquire().value();
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
    StepPlan plan;
    plan.AddRow({.slot = slot, .position = 0, .tokens = tokens, .scored_tokens = wanted});
    ASSERT_EQ(runner->Forward(plan), absl::OkStatus());
    EXPECT_EQ(made_logits, made);
    std::vector<float> logits(wanted * 10);
    ASSERT_EQ(runner->ReadLogits(logits), absl::OkStatus());
    FakeMemory memory;
    for (int t = 0; t < wanted; ++t) {
      memory.Feed(tokens[t]);
      const std::vector<double> want = memory.Logits(10);
      for (int v = 0; v < 10; ++v) EXPECT_EQ(logits[t * 10 + v], static_cast<float>(want[v]));
    }
    pool->Release(slot);
  }
}

TEST_F(ModelRunnerTest, SamplesEachRowByItsOwnParameters) {
  const int slot = pool->Acquire().value();
  const std::vector<int32_t> tokens = {7, 8};
  StepPlan plan;
  plan.AddRow({.slot = slot, .position = 0, .tokens = tokens, .scored_tokens = 1, .samples = true});
  const Sampler sampler({.temperature = 0}, 1, {}, 3, 0);
  TokenHistory history;
  SamplingBatch batch;
  sampler.AppendScore(8, batch);
  sampler.AppendDraw(history, 0, 2, false, batch);
  StepResult result;
  runner->Begin(plan);
  ASSERT_EQ(runner->Sample(batch, result), absl::OkStatus());
  FakeMemory memory;
  memory.Feed(7);
  const std::vector<double> before = memory.Logits(10);
  double total = 0;
  for (const double z : before) total += std::exp(z);
  EXPECT_EQ(result.tokens[0], 8);
  EXPECT_NEAR(result.logprobs[0], before[8] - std::log(total), 1e-6);
  memory.Feed(8);
  const std::vector<double> after = memory.Logits(10);
  EXPECT_EQ(result.tokens[1], std::max_element(after.begin(), after.end()) - after.begin());
  EXPECT_EQ(result.top_columns, 3);
  EXPECT_EQ(result.top_tokens[3], result.tokens[1]);
}

TEST_F(ModelRunnerTest, AStepWithoutLogitsIsFine) {
  const int slot = pool->Acquire().value();
  const std::vector<int32_t> tokens = {1};
  StepPlan plan;
  plan.AddRow({.slot = slot, .position = 0, .tokens = tokens});
  StepResult result;
  runner->Begin(plan);
  EXPECT_EQ(runner->Sample({}, result), absl::OkStatus());
  EXPECT_TRUE(result.tokens.empty());
}

TEST_F(ModelRunnerTest, ErrorsOfTheDeviceComeBack) {
  const int slot = pool->Acquire().value();
  const std::vector<int32_t> tokens = {1};
  StepPlan plan;
  plan.AddRow({.slot = slot, .position = 0, .tokens = tokens});
  backend.FailNext(absl::InternalError("boom"));
  EXPECT_EQ(runner->Forward(plan), absl::InternalError("boom"));
}

// The second row draws its end token: in the next step, a replay of the same graph of four, it is
// padding.
TEST_F(ModelRunnerTest, TheNextStepFeedsWhatWasDrawn) {
  const std::vector<int> slots = {pool->Acquire().value(), pool->Acquire().value(),
                                  pool->Acquire().value()};
  std::vector<FakeMemory> memories(3);
  std::vector<int32_t> drawn;
  StepPlan plan;
  for (int row = 0; row < 3; ++row) {
    const std::vector<int32_t> token = {row + 1};
    plan.AddRow(
        {.slot = slots[row], .position = 0, .tokens = token, .samples = true, .candidate = row});
    memories[row].Feed(row + 1);
    const std::vector<double> logits = memories[row].Logits(10);
    drawn.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  plan.decode_rows = 3;
  ASSERT_TRUE(ModelRunner::DecodesOnly(plan));
  SamplingBatch batch;
  TokenHistory history;
  for (int row = 0; row < 3; ++row) {
    const std::vector<int32_t> ends = {row == 1 ? drawn[1] : (drawn[row] + 1) % 10};
    Sampler({.temperature = 0}, 1, ends, -1, 0).AppendDraw(history, 0, 1, false, batch);
  }
  StepResult first, second;
  runner->Begin(plan);
  runner->BeginSample(batch, first);
  runner->BeginNext();
  runner->BeginSample(batch, second);
  ASSERT_EQ(runner->FinishSample(), absl::OkStatus());
  EXPECT_EQ(first.tokens, drawn);
  ASSERT_EQ(runner->FinishSample(), absl::OkStatus());
  EXPECT_EQ(backend.replays(), 2);
  for (const int row : {0, 2}) {
    memories[row].Feed(drawn[row]);
    const std::vector<double> logits = memories[row].Logits(10);
    EXPECT_EQ(second.tokens[row], std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  // The row that ended is where it was.
  StepPlan again;
  again.AddRow(
      {.slot = slots[1], .position = 1, .tokens = std::span(drawn).subspan(1, 1), .samples = true});
  ASSERT_EQ(runner->Forward(again), absl::OkStatus());
  std::vector<float> logits(10);
  ASSERT_EQ(runner->ReadLogits(logits), absl::OkStatus());
  memories[1].Feed(drawn[1]);
  const std::vector<double> want = memories[1].Logits(10);
  for (int v = 0; v < 10; ++v) EXPECT_EQ(logits[v], static_cast<float>(want[v]));
}

// Decode rows take a recorded graph, padded to its row count; all others do not.
TEST_F(ModelRunnerTest, AGraphOfMoreRowsGivesTheSameLogits) {
  const int a = pool->Acquire().value(), b = pool->Acquire().value(), c = pool->Acquire().value();
  const std::vector<int32_t> prompt = {1, 2, 3};
  StepPlan prefill;
  for (const int slot : {a, b, c}) {
    prefill.AddRow({.slot = slot, .position = 0, .tokens = prompt});
  }
  ASSERT_EQ(runner->Forward(prefill), absl::OkStatus());
  EXPECT_EQ(backend.replays(), 0);

  const std::vector<int32_t> next = {4, 5, 6};
  StepPlan decode;
  for (int row = 0; row < 3; ++row) {
    const int slot = std::vector{c, a, b}[row];
    decode.AddRow({.slot = slot,
                   .position = 3,
                   .tokens = std::span(next).subspan(row, 1),
                   .samples = true,
                   .candidate = row});
  }
  decode.decode_rows = 3;
  ASSERT_EQ(runner->Forward(decode), absl::OkStatus());
  EXPECT_EQ(backend.replays(), 1);
  std::vector<float> logits(3 * 10);
  ASSERT_EQ(runner->ReadLogits(logits), absl::OkStatus());
  for (int row = 0; row < 3; ++row) {
    FakeMemory memory;
    memory.Feed(prompt);
    memory.Feed(next[row]);
    const std::vector<double> want = memory.Logits(10);
    for (int v = 0; v < 10; ++v) EXPECT_EQ(logits[row * 10 + v], static_cast<float>(want[v]));
  }

  decode.logit_tokens.pop_back();  // the last row wants no logits: it goes without a graph
  --decode.logit_offsets.back();
  for (int64_t& position : decode.positions) ++position;
  ASSERT_EQ(runner->Forward(decode), absl::OkStatus());
  EXPECT_EQ(backend.replays(), 1);
  ASSERT_EQ(runner->ReadLogits(std::span(logits).first(2 * 10)), absl::OkStatus());
}

TEST_F(ModelRunnerTest, AStepOfBothKindsOfRowsGivesTheLogitsOfEach) {
  const int a = pool->Acquire().value(), b = pool->Acquire().value(), c = pool->Acquire().value();
  const std::vector<int32_t> one = {4}, other = {5}, prompt = {6, 7, 8};
  StepPlan plan;
  plan.AddRow({.slot = a, .position = 0, .tokens = one, .samples = true});
  plan.AddRow({.slot = b, .position = 0, .tokens = other, .samples = true, .candidate = 1});
  plan.decode_rows = 2;
  plan.AddRow({.slot = c,
               .position = 0,
               .tokens = prompt,
               .scored_tokens = 1,
               .samples = true,
               .candidate = 2});
  ASSERT_EQ(runner->Forward(plan), absl::OkStatus());
  EXPECT_EQ(backend.replays(), 0);
  std::vector<float> logits(4 * 10);
  ASSERT_EQ(runner->ReadLogits(logits), absl::OkStatus());
  const std::vector<std::vector<int32_t>> fed = {{4}, {5}, {6}, {6, 7, 8}};
  for (int row = 0; row < 4; ++row) {
    FakeMemory memory;
    memory.Feed(fed[row]);
    const std::vector<double> want = memory.Logits(10);
    for (int v = 0; v < 10; ++v) {
      EXPECT_EQ(logits[row * 10 + v], static_cast<float>(want[v])) << row;
    }
  }
}

using ModelRunnerDeathTest = ModelRunnerTest;

TEST_F(ModelRunnerDeathTest, TheFakeModelSeesAPositionThatIsNotItsSlabs) {
  const int slot = pool->Acquire().value();
  const std::vector<int32_t> tokens = {1, 2};
  StepPlan plan;
  plan.AddRow({.slot = slot, .position = 0, .tokens = tokens});
  ASSERT_EQ(runner->Forward(plan), absl::OkStatus());
  EXPECT_DEATH(runner->Forward(plan).IgnoreError(), "position of slot");
  plan.positions[0] = 2;
  EXPECT_EQ(runner->Forward(plan), absl::OkStatus());
}

TEST(ModelRunnerCreationTest, LackOfMemoryIsAnErrorAtEveryAllocation) {
  for (int n = 0; n < 3; ++n) {
    FaultyBackend backend;
    const FakeModel model;
    auto pool = StatePool::Create(backend, model, 1).value();
    backend.FailAllocation(n);
    EXPECT_TRUE(
        absl::IsResourceExhausted(ModelRunner::Create(backend, model, *pool, kLimits).status()))
        << n;
  }
}

}  // namespace
}  // namespace mneme
