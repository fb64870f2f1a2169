// Sessions that outlive the loop: what was answered is there after a restart, exactly, and what was
// not is as if it had never been asked.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(EngineLoopStoreTest, ASessionGoesOnAfterAPowerLossAsIfNothingHadHappened) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Server server(Options());
    ASSERT_EQ(server->Generate(Greedy({1, 2}, 3, "s")).status(), absl::OkStatus());
    ASSERT_EQ(server->Generate(Greedy({3}, 3, "s")).status(), absl::OkStatus());
    server.LosePower(seed);
    const SessionInfo info = server->loop->commands().Get(Key("s")).value();
    EXPECT_EQ(info.position, 9);
    EXPECT_EQ(info.residence, Residence::kStored);
    EXPECT_EQ(server->pool->used_slots(), 0) << "listed without a slab";
    EXPECT_EQ(ListSessions(*server->loop, "", "").size(), 1u);
    const Answer answer = server->Generate(Greedy({4}, 3, "s"));
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer.tokens.at(0), Alone({{1, 2}, {3}, {4}}, 3));
    EXPECT_EQ(answer.start->usage.resumed_tokens, 8);
    EXPECT_EQ(answer.last.usage.replayed_tokens, 8);
    EXPECT_EQ(answer.last.usage.fed_tokens, 4);
    EXPECT_EQ(answer.last.session_position, 13);
  }
}

TEST(EngineLoopStoreTest, TheLastEventWaitsForTheStore) {
  Server server(Options());
  std::unique_ptr<PowerLossFileSystem> before = server.disk().CrashImage(1);
  auto stream = server->Submit(Greedy({1}, 2, "s")).value();
  Answer answer;
  // Whenever a change of the disk is about to be made, the client has not seen the end.
  bool seen_early = false;
  server.disk().before_change = [&] { seen_early = seen_early || answer.ended; };
  for (int turn = 0; turn < 1000 && !answer.ended; ++turn) {
    server->Turn();
    LoopHarness::Read(*stream, answer);
  }
  ASSERT_TRUE(answer.ended);
  EXPECT_FALSE(seen_early);
  server.disk().before_change = nullptr;
  server.LosePower(3);
  EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, 3);
}

TEST(EngineLoopStoreTest, OthersDecodeWhileATurnIsMadeDurable) {
  Server server(Options());
  auto other = server->Submit(Greedy({9}, 50)).value();
  const Answer answer = server->Generate(Greedy({1}, 2, "s"));
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(server->Finish(*other).tokens.at(0).size(), 50u);
}

// What another prompt's state spared the session is in its log all the same.
TEST(EngineLoopStoreTest, ASessionThatBeganInThePrefixCacheGoesOn) {
  HarnessOptions options = Options();
  options.prefix_states = 4;
  options.engine.prefix_cache_least_tokens = 2;
  Server server(options);
  std::vector<int32_t> prompt(20);
  for (int32_t i = 0; i < 20; ++i) prompt[static_cast<size_t>(i)] = i;
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_EQ(server->Generate(Greedy(prompt, 2, name)).status(), absl::OkStatus());
  }
  EXPECT_GT(server->stats.prefix.hit_tokens.value(), 0);
  server.LosePower(3);
  const std::vector<int32_t> expected = Alone({prompt, {3}}, 2);
  for (const char* name : {"a", "b", "c"}) {
    const Answer answer = server->Generate(Greedy({3}, 2, name));
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer.tokens.at(0), expected) << name;
  }
}

TEST(EngineLoopStoreTest, PenaltiesLookBackOnWhatWasStored) {
  const auto penalised = [](std::vector<int32_t> prompt) {
    Request request = Greedy(std::move(prompt), 4, "s");
    request.sampling.repetition_penalty = 1.7f;
    request.sampling.frequency_penalty = 0.9f;
    request.sampling.presence_penalty = 0.4f;
    return request;
  };
  LoopHarness whole;
  for (int32_t i = 0; i < 4; ++i) whole.Generate(penalised({i, 7, i}));
  const Answer expected = whole.Generate(penalised({5}));
  for (const int64_t snapshots : {0, 3}) {
    Server server(Options(4, snapshots));
    for (int32_t i = 0; i < 4; ++i) {
      server->Generate(penalised({i, 7, i}));
      server->TurnUntilStored();
      server.Kill();
    }
    EXPECT_EQ(server->Generate(penalised({5})).tokens, expected.tokens);
  }
}

TEST(EngineLoopStoreTest, SnapshotsSpareMostOfTheLog) {
  Server server(Options(4, /*snapshot_tokens=*/5));
  server->Generate(Greedy({1, 2, 3, 4, 5, 6}, 2, "s"));
  server->TurnUntilStored();
  EXPECT_EQ(server.snapshots(), 1);
  server->Generate(Greedy({7}, 2, "s"));
  server.Kill();
  const Answer answer = server->Generate(Greedy({8}, 2, "s"));
  EXPECT_EQ(answer.tokens.at(0), Alone({{1, 2, 3, 4, 5, 6}, {7}, {8}}, 2));
  EXPECT_EQ(answer.last.usage.replayed_tokens, 3) << "those behind the snapshot";
}

TEST(EngineLoopStoreTest, ACancelledTurnCountsAsFarAsItWasFed) {
  Server server(Options());
  auto stream = server->Submit(Greedy({1, 2, 3}, 100, "s")).value();
  for (int turn = 0; turn < 10; ++turn) server->Turn();
  stream->Cancel();
  const Answer answer = server->Finish(*stream);
  EXPECT_TRUE(absl::IsCancelled(answer.status()));
  const int64_t position = answer.last.session_position;
  EXPECT_GT(position, 4);
  server.LosePower(7);
  EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, position);
  const auto said = static_cast<int>(answer.tokens.at(0).size());
  LoopHarness whole;
  whole.Generate(Greedy({1, 2, 3}, said, "s"));
  EXPECT_EQ(server->Generate(Greedy({4}, 3, "s")).tokens,
            whole.Generate(Greedy({4}, 3, "s")).tokens);
}

TEST(EngineLoopStoreTest, ATurnThatIsNotDurableHasNotHappened) {
  Server server(Options());
  ASSERT_EQ(server->Generate(Greedy({1}, 2, "s")).status(), absl::OkStatus());
  server.failing_->set_free_bytes(0);
  const Answer failed = server->Generate(Greedy({2}, 2, "s"));
  EXPECT_TRUE(absl::IsResourceExhausted(failed.status())) << failed.status();
  EXPECT_EQ(ReasonOf(failed.status()), kReasonNotDurable);
  EXPECT_EQ(failed.last.session_position, 3);
  EXPECT_FALSE(server->loop->store_health().ok());
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "new")).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::IsNotFound(server->loop->commands().Get(Key("new")).status()));
  server.failing_->set_free_bytes(int64_t{1} << 40);
  const Answer answer = server->Generate(Greedy({3}, 2, "s"));
  EXPECT_EQ(answer.tokens.at(0), Alone({{1}, {3}}, 2)) << "as if it had never been sent";
  EXPECT_EQ(server->loop->store_health(), absl::OkStatus());
}

TEST(EngineLoopStoreTest, KeysAreKnownAfterARestart) {
  Server server(Options());
  Request request = Greedy({1, 2}, 3, "s");
  request.idempotency_key = "k";
  request.logprobs = 1;
  const Answer first = server->Generate(request);
  server.LosePower(5);
  const Answer again = server->Generate(request);
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_TRUE(again.last.replayed);
  EXPECT_FALSE(again.last.session_gone);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logprobs.at(0).at(1).logprob, first.logprobs.at(0).at(1).logprob);
  EXPECT_EQ(again.last.session_position, first.last.session_position);
  EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, 5) << "nothing was fed twice";
  request.stop.max_tokens = 2;
  EXPECT_EQ(ReasonOf(server->Generate(request).status()), kReasonKeyReused);
}

TEST(EngineLoopStoreTest, AKeyOfATurnThatIsNotDurableCanBeUsedAgain) {
  Server server(Options());
  Request request = Greedy({1}, 2, "s");
  request.idempotency_key = "k";
  server.failing_->set_free_bytes(0);
  EXPECT_EQ(ReasonOf(server->Generate(request).status()), kReasonNotDurable);
  server.failing_->set_free_bytes(int64_t{1} << 40);
  const Answer answer = server->Generate(request);
  EXPECT_FALSE(answer.last.replayed);
  EXPECT_EQ(answer.tokens.at(0), Alone({{1}}, 2));
}

TEST(EngineLoopStoreTest, SnapshotsLeaveWhatIsKeptForDeletions) {
  Server server(Options(4, /*snapshot_tokens=*/1));
  server.failing_->set_free_bytes(server->options.store.reserved_bytes + 1);
  EXPECT_EQ(server->Generate(Greedy({1}, 2, "s")).status(), absl::OkStatus());
  server->TurnUntilStored();
  EXPECT_EQ(server.snapshots(), 0);
  EXPECT_EQ(server->stats.snapshot_failures.value(), 1);
  EXPECT_THAT(std::string(server->loop->store_health().message()), HasSubstr("snapshots"));
  server.failing_->set_free_bytes(int64_t{1} << 40);
  EXPECT_FALSE(server->loop->store_health().ok()) << "until one is written";
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "s")).status(), absl::OkStatus());
  server->TurnUntilStored();
  EXPECT_EQ(server.snapshots(), 1);
  EXPECT_EQ(server->loop->store_health(), absl::OkStatus());
}

TEST(EngineLoopStoreTest, ANameIsOnTheDiskBeforeItsFirstAnswerEnds) {
  HarnessOptions options = Options();
  options.engine.durability = Durability::kNone;
  options.store.lazy = absl::Seconds(2);  // what can wait does, until the end
  Server server(options);
  ASSERT_EQ(server->Generate(Greedy({1}, 2, "s")).status(), absl::OkStatus());
  int changes = 0;
  server.disk().before_change = [&] { ++changes; };
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "s")).last.session_position, 6);
  EXPECT_EQ(changes, 0) << "a name that is known costs nothing";
  server.disk().before_change = nullptr;
  server.LosePower(/*seed=*/1);
  const absl::Status refused = server->Generate(Greedy({3}, 2, "s")).status();
  EXPECT_EQ(ReasonOf(refused), kReasonSessionLost);
  EXPECT_EQ(PositionOf(refused), 3);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("noted last is 3"))
      << "it stood at another, which nobody knows";
}

TEST(EngineLoopStoreTest, ANameThatCannotBeStoredIsNotBegun) {
  HarnessOptions options = Options();
  options.engine.durability = Durability::kNone;
  Server server(options);
  ASSERT_EQ(server->Generate(Greedy({1}, 2, "known")).status(), absl::OkStatus());
  server.failing_->set_free_bytes(0);
  EXPECT_EQ(ReasonOf(server->Generate(Greedy({1}, 2, "new")).status()), kReasonNotDurable);
  EXPECT_TRUE(absl::IsNotFound(server->loop->commands().Get(Key("new")).status()));
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "known")).tokens.at(0), Alone({{1}, {2}}, 2));
  server.failing_->set_free_bytes(int64_t{1} << 40);
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "new")).tokens.at(0), Alone({{2}}, 2));
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopStoreTest, ASessionKeepsTheDurabilityThatItBeganWith) {
  Server server(Options());
  for (const Durability own : {Durability::kNone, Durability::kTurn}) {
    const bool durable = own == Durability::kTurn;
    Request request = Greedy({1}, 2, durable ? "durable" : "not");
    request.durability = own;
    ASSERT_EQ(server->Generate(request).status(), absl::OkStatus());
    request.durability = durable ? Durability::kNone : Durability::kTurn;
    const absl::Status refused = server->Generate(request).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), kReasonDurability);
    EXPECT_EQ(PositionOf(refused), 3);
    request.durability = own;
    EXPECT_EQ(server->Generate(request).tokens.at(0), Alone({{1}, {1}}, 2)) << "it was not fed";
    request.durability.reset();
    EXPECT_EQ(server->Generate(request).status(), absl::OkStatus());
  }
}

TEST(EngineLoopStoreTest, WhoHasTooManySessionsIsToldWhatHelpsWithAStore) {
  for (const bool deletes_old : {false, true}) {
    HarnessOptions options = Options();
    options.engine.owner_session_limit = [](const std::string&) { return 1; };
    if (deletes_old) options.engine.session_retention = absl::Hours(1);
    Server server(options);
    ASSERT_EQ(server->Generate(Greedy({1}, 2, "s")).status(), absl::OkStatus());
    const absl::Status refused = server->Generate(Greedy({1}, 2, "t")).status();
    EXPECT_EQ(ReasonOf(refused), kReasonSessionLimit);
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("expires")));
    EXPECT_EQ(absl::StrContains(refused.message(), "--session-retention"), deletes_old);
  }
}

TEST(EngineLoopStoreTest, AListTellsWhatAnOwnersSessionsTakeAndMay) {
  HarnessOptions options = Options();
  options.engine.owner_session_limit = [](const std::string& owner) {
    return owner.empty() ? 3 : 0;
  };
  options.engine.max_checkpoints_per_owner = 7;
  options.store.limits.bytes_per_owner = 5000;
  Server server(options);
  const auto page = [&](std::optional<std::string> owner, const std::string& prefix = "") {
    const SessionQuery query = {.owner = std::move(owner), .name_prefix = prefix};
    return server->loop->commands().PageOf(server->loop->commands().ListHere(query), query);
  };
  for (const char* name : {"s", "t"}) {
    ASSERT_EQ(server->Generate(Greedy({1, 2}, 3, name)).status(), absl::OkStatus());
  }
  Request other = Greedy({1, 2, 3}, 3, "s");
  other.session.owner = "other";
  ASSERT_EQ(server->Generate(other).status(), absl::OkStatus());
  for (const bool restarted : {false, true}) {
    if (restarted) server.Restart();
    const SessionPage own = page("", "s");
    ASSERT_EQ(own.sessions.size(), 1u);
    EXPECT_GT(own.sessions[0].stored_bytes, 0);
    EXPECT_EQ(own.usage.sessions, 2) << "whatever the prefix";
    EXPECT_EQ(own.usage.max_sessions, 3);
    EXPECT_EQ(own.usage.stored_bytes, server->store->UsageOf("").bytes);
    EXPECT_EQ(own.usage.stored_bytes, 2 * own.sessions[0].stored_bytes);
    EXPECT_EQ(own.usage.max_stored_bytes, 5000);
    EXPECT_EQ(own.usage.checkpoints, 0);
    EXPECT_EQ(own.usage.max_checkpoints, 7);
    EXPECT_EQ(page("other").usage.max_sessions, 0);
    const SessionPage all = page(std::nullopt);
    EXPECT_EQ(all.usage.sessions, 3);
    EXPECT_EQ(all.usage.stored_bytes, server->store->UsageOfAll().bytes);
    EXPECT_GT(all.usage.stored_bytes, own.usage.stored_bytes);
    EXPECT_EQ(all.usage.max_sessions + all.usage.max_stored_bytes + all.usage.max_checkpoints, 0);
  }
}

TEST(EngineLoopStoreTest, WithoutANameNothingTouchesTheDisk) {
  Server server(Options());
  int changes = 0;
  server.disk().before_change = [&] { ++changes; };
  Request request = Greedy({1}, 2);
  request.idempotency_key = "k";
  EXPECT_EQ(server->Generate(request).status(), absl::OkStatus());
  server->TurnUntilStored();
  EXPECT_EQ(changes, 0);
}

TEST(EngineLoopStoreTest, CommandsAreDurableBeforeTheyAreAnswered) {
  Server server(Options());
  const auto run = [&](const auto& command) {
    std::optional<absl::Status> durable;
    const absl::Status status = command([&](const absl::Status& s) { durable = s; });
    if (!status.ok()) return status;
    while (!durable.has_value()) server->Turn();
    return *durable;
  };
  const auto create = [&](const std::string& name) {
    return run([&](auto done) {
      return server->loop->commands().Create(Key(name), absl::InfiniteDuration(), done).status();
    });
  };
  ASSERT_EQ(create("empty"), absl::OkStatus());
  ASSERT_EQ(server->Generate(Greedy({1}, 2, "s")).status(), absl::OkStatus());
  ASSERT_EQ(run([&](auto done) {
              return server->loop->commands()
                  .Fork(Key("s"), Key("fork"), absl::ZeroDuration(), done)
                  .status();
            }),
            absl::OkStatus());
  ASSERT_EQ(create("gone"), absl::OkStatus());
  ASSERT_EQ(run([&](auto done) { return server->loop->commands().Delete(Key("gone"), done); }),
            absl::OkStatus());
  server.LosePower(11);
  EXPECT_EQ(server->loop->commands().Get(Key("empty"))->ttl, absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsNotFound(server->loop->commands().Get(Key("gone")).status()));
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "empty")).tokens.at(0), Alone({{2}}, 2));
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "fork")).tokens.at(0), Alone({{1}, {2}}, 2));
  // Of sessions that have no slab.
  server.LosePower(12);
  ASSERT_EQ(run([&](auto done) {
              return server->loop->commands()
                  .Fork(Key("s"), Key("again"), absl::ZeroDuration(), done)
                  .status();
            }),
            absl::OkStatus());
  ASSERT_EQ(run([&](auto done) { return server->loop->commands().Delete(Key("fork"), done); }),
            absl::OkStatus());
  EXPECT_EQ(server->pool->used_slots(), 0);
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "again")).tokens.at(0), Alone({{1}, {2}}, 2));
  server.failing_->set_free_bytes(0);
  EXPECT_EQ(ReasonOf(create("full")), kReasonNotDurable);
  EXPECT_TRUE(absl::IsNotFound(server->loop->commands().Get(Key("full")).status()));
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopStoreTest, AStepThatFailsLeavesTheSessionAsItWas) {
  Server server(Options());
  server->Generate(Greedy({1}, 2, "s"));
  server->backend.FailNext(absl::InternalError("injected"));
  const Answer failed = server->Generate(Greedy({2}, 2, "s"));
  EXPECT_EQ(ReasonOf(failed.status()), kReasonStepFailed);
  EXPECT_THAT(std::string(failed.status().message()),
              HasSubstr("the session is as it was before the request, at position 3"));
  EXPECT_EQ(PositionOf(failed.status()), 3);
  EXPECT_EQ(failed.last.session_position, 3);
  EXPECT_TRUE(failed.last.has_pending_token);
  server.Kill();
  EXPECT_EQ(server->Generate(Greedy({3}, 2, "s")).tokens.at(0), Alone({{1}, {3}}, 2));
}

TEST(EngineLoopStoreTest, AnotherModelLeavesTheFilesAlone) {
  Server server(Options());
  server->Generate(Greedy({1}, 2, "s"));
  server.Kill();
  SessionRecord record = server->store->Find("", "s").value();
  ASSERT_EQ(record.model, kHarnessModel);
  record.name = "other";
  record.id = server->store->NewId();
  record.model = kHarnessModel + 1;
  ASSERT_EQ(server->store->Apply({CreateSession{record}}), absl::OkStatus());
  const Answer refused = server->Generate(Greedy({2}, 2, "other"));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonOtherModel);
  EXPECT_EQ(server->store->Find("", "other")->status, SessionStatus::kLive);
}

}  // namespace
}  // namespace mneme
