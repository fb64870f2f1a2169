#include "engine/engine_loop.h"

#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineLoopTest, AnAnswerIsWhatTheModelSays) {
  LoopHarness h;
  const Request request = Greedy({1, 2, 3}, 10);
  OracleSession oracle;
  oracle.FeedPrompt({1, 2, 3});
  const Answer answer = h.Generate(request);
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer.tokens[0], oracle.Generate(h.options, request, 0, 0));
  EXPECT_EQ(answer.finish[0], FinishReason::kLength);
  EXPECT_EQ(answer.last.usage.prompt_tokens, 3);
  EXPECT_EQ(answer.last.usage.completion_tokens, 10);
  EXPECT_EQ(answer.last.usage.fed_tokens, 12) << "the last token is pending";
  EXPECT_EQ(answer.last.session_position, 13);
  EXPECT_TRUE(answer.last.has_pending_token);
  ASSERT_TRUE(answer.start.has_value());
  EXPECT_EQ(answer.start->usage.prompt_tokens, 3);
  EXPECT_EQ(h.pool->used_slots(), 0);
}

}  // namespace
}  // namespace mneme
