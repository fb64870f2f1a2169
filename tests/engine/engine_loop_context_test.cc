// Sessions of models whose state grows with every token end where there is no room for another one.
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kMaxContext = 100;  // more than a block of positions, and no multiple of one

HarnessOptions Limited() {
  HarnessOptions options;
  options.max_context = kMaxContext;
  return options;
}

std::vector<int32_t> SomeTokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(1 + i % 30);
  return tokens;
}

// The answer without a limit.
std::vector<int32_t> Expected(const HarnessOptions& options, const Request& request, int tokens) {
  OracleSession session;
  session.FeedPrompt(request.prompt.at_start);
  Request shorter = request;
  shorter.stop.max_tokens = tokens;
  return session.Generate(options, shorter, /*seed=*/0, /*choice=*/0);
}

TEST(EngineLoopContextTest, AFullSessionEndsWithLengthAndSaysSo) {
  for (const bool asynchronous : {false, true}) {
    HarnessOptions options = Limited();
    options.asynchronous = asynchronous;
    LoopHarness h(options);
    const Request request = Greedy(SomeTokens(60), 1000, "s");
    const Answer answer = h.Generate(request);
    EXPECT_TRUE(answer.status().ok()) << answer.status();
    // The last token drawn needs no room: it is not fed.
    EXPECT_EQ(answer.tokens[0], Expected(options, request, kMaxContext - 60 + 1));
    EXPECT_EQ(answer.finish[0], FinishReason::kLength);
    EXPECT_TRUE(answer.last.context_full);
    EXPECT_EQ(answer.last.session_position, kMaxContext + 1);
    EXPECT_TRUE(answer.last.has_pending_token);
  }
}

TEST(EngineLoopContextTest, MaxTokensThatFitsIsNoFullSession) {
  LoopHarness h(Limited());
  Answer answer = h.Generate(Greedy(SomeTokens(60), kMaxContext - 60 + 1, "s"));
  EXPECT_EQ(answer.tokens[0].size(), static_cast<size_t>(kMaxContext - 60 + 1));
  EXPECT_EQ(answer.finish[0], FinishReason::kLength);
  EXPECT_FALSE(answer.last.context_full);
  answer = h.Generate(Greedy(SomeTokens(60), kMaxContext - 60 + 2, "t"));
  EXPECT_EQ(answer.tokens[0].size(), static_cast<size_t>(kMaxContext - 60 + 1));
  EXPECT_TRUE(answer.last.context_full);
}

TEST(EngineLoopContextTest, APromptBeyondIsRefusedBeforeAnyWork) {
  LoopHarness h(Limited());
  for (const char* name : {"s", ""}) {
    const Answer answer = h.Generate(Greedy(SomeTokens(kMaxContext + 1), 5, name));
    EXPECT_TRUE(absl::IsInvalidArgument(answer.status())) << answer.status();
    EXPECT_THAT(std::string(answer.status().message()),
                HasSubstr("text would feed 101 tokens to a session that was fed 0, expected "
                          "at most 100 together (--max-context)"));
    EXPECT_THAT(std::string(answer.status().message()), Not(HasSubstr("answer before")));
    EXPECT_EQ(FieldOf(answer.status()), "text");
    EXPECT_EQ(ReasonOf(answer.status()), kReasonContextFull);
    EXPECT_EQ(PositionOf(answer.status()), 0);
  }
  EXPECT_THAT(h.rows_per_step, IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get({"", "s"}).status()));
  // One that fits to the last token may draw one more.
  const Answer answer = h.Generate(Greedy(SomeTokens(kMaxContext), 5, "s"));
  EXPECT_EQ(answer.tokens[0].size(), 1u);
  EXPECT_TRUE(answer.last.context_full);
}

TEST(EngineLoopContextTest, AFullSessionCanStillBeReadAndForkedAndIsNeverCutShort) {
  LoopHarness h(Limited());
  h.Generate(Greedy(SomeTokens(90), 1000, "s"));
  const SessionKey full = {"", "s"}, copy = {"", "copy"};
  const auto info = h.loop->commands().Get(full);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->position, kMaxContext + 1);
  ASSERT_TRUE(h.loop->commands().Fork(full, copy, absl::ZeroDuration()).ok());
  const size_t steps = h.rows_per_step.size();
  for (const char* name : {"s", "copy"}) {
    for (const int prompt : {0, 1}) {
      const Answer answer = h.Generate(Greedy(SomeTokens(prompt), 1, name));
      EXPECT_TRUE(absl::IsInvalidArgument(answer.status())) << answer.status();
      EXPECT_THAT(std::string(answer.status().message()),
                  HasSubstr("to a session that was fed 100, expected at most 100 together"));
      EXPECT_EQ(PositionOf(answer.status()), kMaxContext + 1);
    }
  }
  const Answer pending = h.Generate(Greedy({}, 1, "s"));
  EXPECT_THAT(std::string(pending.status().message()),
              HasSubstr("would feed 1 token to a session that was fed 100, expected at most 100 "
                        "together (--max-context); the last token of its answer before is one of "
                        "them, as it was not fed yet"));
  EXPECT_EQ(h.rows_per_step.size(), steps);
  EXPECT_EQ(h.loop->commands().Get(full)->position, kMaxContext + 1);
  EXPECT_TRUE(h.loop->commands().Delete(full).ok());
}

// A turn's room is what the session has left, its pending token counted.
TEST(EngineLoopContextTest, TheNextTurnHasTheRoomThatIsLeft) {
  LoopHarness h(Limited());
  h.Generate(Greedy(SomeTokens(70), 11, "s"));  // fed: 80, and one pending
  Answer answer = h.Generate(Greedy(SomeTokens(20), 5, "s"));
  EXPECT_THAT(std::string(answer.status().message()),
              HasSubstr("would feed 21 tokens to a session that was fed 80"));
  EXPECT_EQ(PositionOf(answer.status()), 81);
  ASSERT_TRUE(h.loop->commands().Fork({"", "s"}, {"", "t"}, absl::ZeroDuration()).ok());
  answer = h.Generate(Greedy(SomeTokens(19), 5, "s"));
  EXPECT_EQ(answer.tokens[0].size(), 1u);
  EXPECT_TRUE(answer.last.context_full);
  answer = h.Generate(Greedy(SomeTokens(17), 5, "t"));
  EXPECT_EQ(answer.tokens[0].size(), 3u) << "a fork has the room that its parent had";
}

TEST(EngineLoopContextTest, EveryChoiceMayFillItsOwnFork) {
  LoopHarness h(Limited());
  Request request = Greedy(SomeTokens(80), 1000, "s");
  request.n = 3;
  const Answer answer = h.Generate(request);
  ASSERT_EQ(answer.tokens.size(), 3u);
  for (int choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(answer.tokens[choice].size(), static_cast<size_t>(kMaxContext - 80 + 1));
    EXPECT_EQ(answer.finish[choice], FinishReason::kLength);
  }
}

TEST(EngineLoopContextTest, WithoutRowsThereIsNoLimit) {
  LoopHarness h;
  const Answer answer = h.Generate(Greedy(SomeTokens(150), 300, "s"));
  EXPECT_EQ(answer.tokens[0].size(), 300u);
  EXPECT_FALSE(answer.last.context_full);
}

}  // namespace
}  // namespace mneme
