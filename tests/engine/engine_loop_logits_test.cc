// The engine's loop and logits that are no numbers.
#include <cmath>
#include <string>
#include <utility>
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

constexpr int32_t kPoison = 31;

HarnessOptions Poisonous() {
  HarnessOptions options;
  options.poison_token = kPoison;
  return options;
}

void ExpectNoLogits(const Answer& answer) {
  EXPECT_TRUE(absl::IsInternal(answer.status())) << answer.status();
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("non-finite logits"));
  EXPECT_EQ(ReasonOf(answer.status()), kReasonStepFailed);
  for (const FinishReason finish : answer.finish) EXPECT_EQ(finish, FinishReason::kError);
  for (const auto& tokens : answer.tokens) EXPECT_THAT(tokens, IsEmpty());
}

TEST(EngineLoopLogitsTest, NaNEndsTheRequestAndSpoilsItsSession) {
  for (const float temperature : {0.0f, 1.0f}) {
    LoopHarness h(Poisonous());
    ASSERT_EQ(h.Generate(Greedy({1, 2}, 0, "s")).status(), absl::OkStatus());
    Request request = Greedy({3, kPoison}, 4, "s");
    request.sampling.temperature = temperature;
    request.logprobs = 2;
    ExpectNoLogits(h.Generate(request));
    h.TurnUntilQuiet();
    EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("s")).status()));
    EXPECT_EQ(h.pool->used_slots(), 0);
    EXPECT_EQ(h.loop->health(), absl::OkStatus()) << "the engine goes on";
    EXPECT_EQ(h.Generate(Greedy({1}, 3, "s")).status(), absl::OkStatus());
  }
}

TEST(EngineLoopLogitsTest, OtherRowsOfTheStepAreUntouched) {
  LoopHarness alone;
  const std::vector<int32_t> want = alone.Generate(Greedy({5, 6}, 6)).tokens[0];
  LoopHarness h(Poisonous());
  auto before = h.Submit(Greedy({5, 6}, 6)).value();
  auto bad = h.Submit(Greedy({7, kPoison}, 6, "bad")).value();
  auto after = h.Submit(Greedy({5, 6}, 6, "good")).value();
  ExpectNoLogits(h.Finish(*bad));
  ASSERT_EQ(h.rows_per_step.front(), 3) << "all in one step";
  for (TokenStream* stream : {before.get(), after.get()}) {
    const Answer answer = h.Finish(*stream);
    EXPECT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer.tokens[0], want);
  }
  h.TurnUntilQuiet();
  EXPECT_EQ(h.loop->commands().Get(Key("good"))->position, 8);
}

TEST(EngineLoopLogitsTest, AllChoicesEndWithTheFirstThatFails) {
  LoopHarness h(Poisonous());
  Request request = Greedy({1, kPoison}, 4, "s");
  request.n = 3;
  const Answer answer = h.Generate(request);
  ExpectNoLogits(answer);
  EXPECT_EQ(answer.finish.size(), 3);
  h.TurnUntilQuiet();
  EXPECT_EQ(h.pool->used_slots(), 0);
}

TEST(EngineLoopLogitsTest, AScoreThatIsNoNumberIsAnErrorToo) {
  LoopHarness h(Poisonous());
  Request request = Greedy({1, kPoison, 2, 3}, 0, "s");
  EXPECT_EQ(h.Generate(request).status(), absl::OkStatus()) << "nobody looks at these logits";
  request.session.name = "t";
  request.prompt_logprobs = 0;
  ExpectNoLogits(h.Generate(request));
  h.TurnUntilQuiet();
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("t")).status()));
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 4);
}

// A model that leaves one token, and a request that bans it: no fault of what is remembered.
TEST(EngineLoopLogitsTest, NothingLeftToDrawEndsTheRequestAlone) {
  for (const float temperature : {0.0f, 1.0f}) {
    HarnessOptions options;
    options.narrow_token = kPoison;
    LoopHarness h(options);
    ASSERT_EQ(h.Generate(Greedy({1, 2}, 0, "s")).status(), absl::OkStatus());
    auto beside = h.Submit(Greedy({4, 5, 6}, 6)).value();
    Request request = Greedy({3, kPoison}, 4, "s");
    request.sampling.temperature = temperature;
    request.sampling.logit_bias = {{0, -100}};
    const Answer answer = h.Generate(request);
    EXPECT_TRUE(absl::IsInvalidArgument(answer.status())) << answer.status();
    EXPECT_EQ(FieldOf(answer.status()), "sampling");
    EXPECT_THAT(std::string(answer.status().message()),
                HasSubstr("leaves no token to draw after 4 tokens"));
    EXPECT_THAT(answer.tokens[0], IsEmpty());
    EXPECT_EQ(h.Finish(*beside).status(), absl::OkStatus());
    h.TurnUntilQuiet();
    EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 4);
    request.prompt.at_start = request.prompt.continued = {5};
    request.stop.max_tokens = 1;
    EXPECT_EQ(h.Generate(request).status(), absl::OkStatus()) << "the session goes on";
    request.session.name.clear();
    request.prompt.at_start = {kPoison};
    request.sampling.logit_bias.clear();
    EXPECT_EQ(h.Generate(request).tokens[0], std::vector<int32_t>{0});
  }
}

TEST(EngineLoopLogitsTest, ARepeatedKeyIsToldThatItBrokeOff) {
  LoopHarness h(Poisonous());
  Request request = Greedy({kPoison}, 4, "s");
  request.idempotency_key = "key";
  ExpectNoLogits(h.Generate(request));
  EXPECT_EQ(ReasonOf(h.Generate(request).status()), kReasonKeyBroken);
}

}  // namespace
}  // namespace mneme
