// Sessions belong to their owners, who may have limits; and requests report what they used.
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

Request GreedyOf(std::string owner, std::string name, std::vector<int32_t> prompt = {1, 2}) {
  Request request = Greedy(std::move(prompt), 2, std::move(name));
  request.session.owner = std::move(owner);
  return request;
}

HarnessOptions WithLimit(int limit) {
  HarnessOptions options;
  options.engine.owner_session_limit = [limit](const std::string& owner) {
    return owner == "free" ? 0 : limit;
  };
  return options;
}

TEST(EngineLoopOwnerTest, AnotherOwnersSessionIsNotThere) {
  LoopHarness h;
  h.Generate(GreedyOf("alice", "s"));
  const SessionKey hers = {"alice", "s"};
  const SessionKey his = {"bob", "s"};
  EXPECT_TRUE(h.loop->commands().Get(hers).ok());
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(his).status()));
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Delete(his)));
  EXPECT_TRUE(absl::IsNotFound(
      h.loop->commands().Fork(his, {"bob", "copy"}, absl::ZeroDuration()).status()));
  EXPECT_TRUE(ListSessions(*h.loop, "bob", "").empty());
  Request existing = GreedyOf("bob", "s");
  existing.create_session = false;
  const Answer refused = h.Generate(existing);
  EXPECT_TRUE(absl::IsNotFound(refused.status()));
  // The message is that of a session that nobody has.
  existing.session.name = "t";
  const Answer missing = h.Generate(existing);
  EXPECT_EQ(refused.status().message(), "there is no session \"s\"");
  EXPECT_EQ(missing.status().message(), "there is no session \"t\"");
  // The name is not taken for others, and what they say stays theirs.
  EXPECT_EQ(h.Generate(GreedyOf("bob", "s", {7})).status(), absl::OkStatus());
  EXPECT_EQ(h.loop->commands().Get(hers)->position, 4);
  EXPECT_EQ(h.loop->commands().Get(his)->position, 3);
}

TEST(EngineLoopOwnerTest, AnotherOwnersIdempotencyKeyIsAnotherKey) {
  LoopHarness h;
  Request request = GreedyOf("alice", "");
  request.idempotency_key = "k";
  EXPECT_FALSE(h.Generate(request).last.replayed);
  EXPECT_TRUE(h.Generate(request).last.replayed);
  Request other = GreedyOf("bob", "", {5, 6});
  other.idempotency_key = "k";
  const Answer answer = h.Generate(other);
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_FALSE(answer.last.replayed);
}

TEST(EngineLoopOwnerTest, AnOwnerMayHaveSoManySessions) {
  LoopHarness h(WithLimit(2));
  const SessionQuery hers = {.owner = "alice"};
  EXPECT_EQ(h.Generate(GreedyOf("alice", "a")).status(), absl::OkStatus());
  EXPECT_TRUE(h.loop->commands().Create({"alice", "b"}, absl::ZeroDuration()).ok());
  const SessionUsage usage =
      h.loop->commands().PageOf(h.loop->commands().ListHere(hers), hers).usage;
  EXPECT_EQ(usage.sessions, 2);
  EXPECT_EQ(usage.max_sessions, 2);
  const Answer refused = h.Generate(GreedyOf("alice", "c"));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonSessionLimit);
  EXPECT_TRUE(RetryAfterOf(refused.status()).has_value());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("may have 2"));
  const absl::Status created =
      h.loop->commands().Create({"alice", "c"}, absl::ZeroDuration()).status();
  EXPECT_EQ(ReasonOf(created), kReasonSessionLimit);
  const absl::Status forked =
      h.loop->commands().Fork({"alice", "a"}, {"alice", "c"}, absl::ZeroDuration()).status();
  EXPECT_EQ(ReasonOf(forked), kReasonSessionLimit);

  // Sessions that exist go on, those without a name do not count, and others have limits of their
  // own.
  EXPECT_EQ(h.Generate(GreedyOf("alice", "a")).status(), absl::OkStatus());
  EXPECT_EQ(h.Generate(GreedyOf("alice", "")).status(), absl::OkStatus());
  EXPECT_EQ(h.Generate(GreedyOf("bob", "c")).status(), absl::OkStatus());
  EXPECT_TRUE(h.loop->commands().Delete({"alice", "b"}).ok());
  EXPECT_EQ(h.Generate(GreedyOf("alice", "c")).status(), absl::OkStatus());
}

TEST(EngineLoopOwnerTest, NoLimitIsNone) {
  LoopHarness h(WithLimit(1));
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(h.Generate(GreedyOf("free", name)).status(), absl::OkStatus());
  }
}

TEST(EngineLoopOwnerTest, WaitingRequestsDoNotPassTheLimitTogether) {
  LoopHarness h(WithLimit(1));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* name : {"a", "b", "c"}) {
    streams.push_back(h.Submit(GreedyOf("alice", name)).value());
  }
  int admitted = 0;
  for (const auto& stream : streams) admitted += h.Finish(*stream).status().ok() ? 1 : 0;
  EXPECT_EQ(admitted, 1);
  EXPECT_EQ(ListSessions(*h.loop, "alice", "").size(), 1u);
}

TEST(EngineLoopOwnerTest, ARequestReportsWhatItUsedWhateverBecomesOfIt) {
  LoopHarness h;
  std::vector<Usage> reports;
  const auto report = [&](Request request) {
    request.on_end = [&](const Usage& usage) { reports.push_back(usage); };
    return request;
  };
  Request request = GreedyOf("alice", "s");
  request.idempotency_key = "k";
  h.Generate(report(request));
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].prompt_tokens, 2);
  EXPECT_EQ(reports[0].completion_tokens, 2);
  h.Generate(report(request));  // replayed
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1].prompt_tokens + reports[1].completion_tokens, 0);
  Request refused = GreedyOf("alice", "t");
  refused.create_session = false;
  h.Generate(report(refused));
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports[2].prompt_tokens, 0);
  // A detached request goes on when its reader leaves, and still reports.
  Request detached = report(GreedyOf("alice", "u"));
  detached.detached = true;
  h.Submit(detached).value()->Abandon();
  h.TurnUntilQuiet();
  ASSERT_EQ(reports.size(), 4u);
  EXPECT_EQ(reports[3].completion_tokens, 2);
}

}  // namespace
}  // namespace mneme
