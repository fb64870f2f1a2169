// Sessions that go back: to any position of their log, exactly, and to checkpoints.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/session_past.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

// Four turns of one session, and what it was after each.
Past FourTurns(LoopHarness& h, const std::string& name) {
  Past past;
  for (const Request& request : {Penalised({1, 2, 3}, 4, name), Penalised({4}, 1, name),
                                 Penalised({5, 6}, 0, name), Penalised({7, 8, 9, 7, 8}, 5, name)}) {
    OracleSession next = past.now();
    const std::vector<int32_t> said = Apply(h.options, request, next);
    const Answer answer = h.Generate(request);
    EXPECT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer.tokens, said.empty() ? std::vector<std::vector<int32_t>>(1)
                                          : std::vector<std::vector<int32_t>>{said});
    past.Add(std::move(next));
  }
  return past;
}

TEST(EngineLoopRewindTest, EveryPositionIsWhereASessionStoodThatWasFedNoMore) {
  for (const int64_t snapshots : {0, 4}) {
    for (const bool killed : {false, true}) {
      SCOPED_TRACE(absl::StrCat(snapshots, killed ? ", killed" : ""));
      Server server(Options(4, snapshots));
      const Past past = FourTurns(*server, "s");
      const int64_t end = past.now().position();
      ASSERT_EQ(end, 21);
      server->TurnUntilStored();
      if (killed) server.Kill();
      for (int64_t position = 0; position <= end; ++position) {
        SCOPED_TRACE(absl::StrCat("position ", position));
        OracleSession there = past.At(position);
        ASSERT_EQ(there.position(), position);
        const auto info = ForkAt(*server, "s", "f", {.position = position});
        ASSERT_EQ(info.status(), absl::OkStatus());
        EXPECT_EQ(info->position, position);
        EXPECT_EQ(info->has_pending_token, there.pending.has_value());
        const Request next = Penalised({3, 5}, 4, "f");
        const std::vector<int32_t> said = Apply(server->options, next, there);
        EXPECT_EQ(server->Generate(next).tokens.at(0), said);
        ASSERT_EQ(Delete(*server, "f"), absl::OkStatus());
      }
      // The session itself, ever further.
      Past left = past;
      for (int64_t position = end; position >= 0; position -= 3) {
        SCOPED_TRACE(absl::StrCat("back to ", position));
        left = left.Back(position);
        const auto info = Rewind(*server, "s", {.position = position});
        ASSERT_EQ(info.status(), absl::OkStatus());
        EXPECT_EQ(info->position, position);
        EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, position);
        EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
        if (position % 2 == 0) continue;
        const Request next = Penalised({2}, 3, "s");
        OracleSession after = left.now();
        EXPECT_EQ(server->Generate(next).tokens.at(0), Apply(server->options, next, after));
        left.Add(std::move(after));
        left = left.Back(position);
        ASSERT_EQ(Rewind(*server, "s", {.position = position}).status(), absl::OkStatus());
      }
    }
  }
}

TEST(EngineLoopRewindTest, TheSameIsSaidAgainWhereATokenWasPending) {
  Server server(Options());
  server->Generate(Greedy({1}, 3, "s"));
  const Answer first = server->Generate(Greedy({}, 4, "s"));
  const auto info = Rewind(*server, "s", {.position = 4});
  ASSERT_EQ(info.status(), absl::OkStatus());
  EXPECT_TRUE(info->has_pending_token);
  EXPECT_EQ(server->Generate(Greedy({}, 4, "s")).tokens, first.tokens);
  // Before the end of the first turn there was none: nothing can go on from itself.
  ASSERT_EQ(Rewind(*server, "s", {.position = 3}).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(server->Generate(Greedy({}, 4, "s")).status()));
}

TEST(EngineLoopRewindTest, OtherPlacesAreRefusedAndNothingChanges) {
  HarnessOptions options = Options(4, /*snapshot_tokens=*/4);
  options.store.limits.log_bytes_per_session = 60;
  Server server(options);
  for (int32_t i = 0; i < 8; ++i) {
    server->Generate(Greedy({i, 1, 2, 3}, 2, "s"));
    server->TurnUntilStored();
  }
  const int64_t end = server->loop->commands().Get(Key("s"))->position;
  for (const int64_t position : {int64_t{-1}, int64_t{2}, end + 1}) {
    const absl::Status refused = Rewind(*server, "s", {.position = position}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(ReasonOf(refused), kReasonPositionGone);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("cannot go back to position ", position,
                                       ": its log leads to positions ")));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(" to ", end)));
  }
  EXPECT_EQ(ReasonOf(ForkAt(*server, "s", "f", {.position = 2}).status()), kReasonPositionGone);
  EXPECT_TRUE(absl::IsNotFound(server->loop->commands().Get(Key("f")).status()));
  EXPECT_EQ(ReasonOf(Rewind(*server, "s", {.checkpoint = "none"}).status()), kReasonNoCheckpoint);
  EXPECT_EQ(ReasonOf(Rewind(*server, "nobody", {.position = 0}).status()), kReasonNoSession);
  EXPECT_EQ(ReasonOf(ForkAt(*server, "s", "s", {.position = end}).status()), kReasonSessionExists);
  EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, end);
  // The newest snapshots lead somewhere all the same.
  EXPECT_EQ(Rewind(*server, "s", {.position = end - 2})->position, end - 2);
}

TEST(EngineLoopRewindTest, WithoutALogThereIsNoWayBack) {
  LoopHarness h;
  h.Generate(Greedy({1}, 2, "s"));
  const absl::Status refused = Rewind(h, "s", {.position = 1}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(ReasonOf(refused), kReasonNoStore);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--session-dir"));
  EXPECT_EQ(ReasonOf(Checkpoint(h, "s", "c").status()), kReasonNoStore);
  Server server(Options());
  Request request = Greedy({1}, 2, "s");
  request.durability = Durability::kNone;
  server->Generate(request);
  EXPECT_EQ(ReasonOf(Rewind(*server, "s", {.position = 1}).status()), kReasonNotLogged);
  EXPECT_EQ(ReasonOf(ForkAt(*server, "s", "f", {.position = 1}).status()), kReasonNotLogged);
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "s")).tokens.at(0), Alone({{1}, {2}}, 2));
}

TEST(EngineLoopRewindTest, GoingBackToACheckpointIsACopy) {
  Server server(Options());
  server->Generate(Greedy({1, 2, 3}, 3, "s"));
  const auto made = Checkpoint(*server, "s", "before");
  ASSERT_EQ(made.status(), absl::OkStatus());
  EXPECT_EQ(made->position, 6);
  EXPECT_TRUE(made->has_pending_token);
  server->TurnUntilStored();
  EXPECT_EQ(server.snapshots(), 1);
  EXPECT_EQ(ReasonOf(Checkpoint(*server, "s", "before").status()), kReasonCheckpointExists);
  for (int32_t i = 0; i < 4; ++i) server->Generate(Greedy({i}, 3, "s"));
  ASSERT_EQ(Checkpoint(*server, "s", "after").status(), absl::OkStatus());
  server.Kill();
  ASSERT_EQ(Rewind(*server, "s", {.checkpoint = "before"})->position, 6);
  const Answer answer = server->Generate(Greedy({4}, 3, "s"));
  EXPECT_EQ(answer.tokens.at(0), Alone({{1, 2, 3}, {4}}, 3));
  EXPECT_EQ(answer.last.usage.replayed_tokens, 0);
  EXPECT_EQ(ReasonOf(Rewind(*server, "s", {.checkpoint = "after"}).status()), kReasonNoCheckpoint)
      << "it was of what is gone";
  ASSERT_EQ(Rewind(*server, "s", {.checkpoint = "before"})->position, 6) << "it stays";
  EXPECT_EQ(ForkAt(*server, "s", "f", {.checkpoint = "before"})->position, 6);
  EXPECT_EQ(server->Generate(Greedy({4}, 3, "f")).tokens, answer.tokens);
  EXPECT_EQ(DropCheckpoint(*server, "s", "before"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(DropCheckpoint(*server, "s", "before")), kReasonNoCheckpoint);
  EXPECT_EQ(server->stats.checkpoints.value(), 0) << "of this server";
}

TEST(EngineLoopRewindTest, CheckpointsAreCounted) {
  HarnessOptions options = Options();
  options.engine.max_checkpoints = 2;
  options.engine.max_checkpoints_per_owner = 3;
  Server server(options);
  server->Generate(Greedy({1}, 2, "a"));
  server->Generate(Greedy({1}, 2, "b"));
  EXPECT_TRUE(Checkpoint(*server, "a", "1").ok());
  EXPECT_TRUE(Checkpoint(*server, "a", "2").ok());
  absl::Status refused = Checkpoint(*server, "a", "3").status();
  EXPECT_EQ(ReasonOf(refused), kReasonCheckpointLimit);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("session \"a\" has 2 checkpoints, and may have 2"));
  EXPECT_TRUE(Checkpoint(*server, "b", "1").ok());
  server.Kill();
  refused = Checkpoint(*server, "b", "2").status();
  EXPECT_EQ(ReasonOf(refused), kReasonCheckpointLimit);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("this key has 3 checkpoints, and may have 3"));
  EXPECT_TRUE(Rewind(*server, "a", {.position = 0}).ok());
  EXPECT_TRUE(Checkpoint(*server, "b", "2").ok()) << "those of what is gone do not count";
}

TEST(EngineLoopRewindTest, RequestsOfWhatIsGoneRunAnew) {
  for (const bool killed : {false, true}) {
    Server server(Options());
    Request first = Greedy({1}, 3, "s"), second = Greedy({2}, 3, "s");
    first.idempotency_key = "first";
    second.idempotency_key = "second";
    server->Generate(first);
    const Answer before = server->Generate(second);
    if (killed) server.Kill();
    ASSERT_EQ(Rewind(*server, "s", {.position = 4}).status(), absl::OkStatus());
    EXPECT_TRUE(server->Generate(first).start->replayed);
    EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, 4);
    Request late = Greedy({3}, 1, "s");
    late.expected_position = 8;
    EXPECT_EQ(ReasonOf(server->Generate(late).status()), kReasonPosition);
    const Answer again = server->Generate(second);
    EXPECT_FALSE(again.start->replayed);
    EXPECT_EQ(again.tokens, before.tokens);
    EXPECT_EQ(again.last.session_position, 8);
  }
}

TEST(EngineLoopRewindTest, WhatCannotBeMadeDurableHasNotHappened) {
  Server server(Options());
  server->Generate(Greedy({1, 2}, 3, "s"));
  server.failing_->Fail(FailingFileSystem::Kind::kSync, 0, absl::UnavailableError("EIO"),
                        /*more=*/100);
  EXPECT_EQ(ReasonOf(Rewind(*server, "s", {.position = 1}).status()), kReasonNotDurable);
  server.failing_->Fail(FailingFileSystem::Kind::kSync, 1'000'000, absl::OkStatus());
  server.failing_->set_free_bytes(0);
  EXPECT_EQ(ReasonOf(Checkpoint(*server, "s", "c").status()), kReasonNotDurable);
  EXPECT_EQ(ReasonOf(ForkAt(*server, "s", "f", {.position = 1}).status()), kReasonNotDurable);
  EXPECT_EQ(server->loop->commands().Get(Key("s"))->residence, Residence::kResident);
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
  server.failing_->set_free_bytes(int64_t{1} << 40);
  EXPECT_EQ(server->Generate(Greedy({3}, 3, "s")).tokens.at(0), Alone({{1, 2}, {3}}, 3));
}

TEST(EngineLoopRewindTest, AFullDiskStillLetsSessionsGoBack) {
  Server server(Options());
  server->Generate(Greedy({1, 2}, 3, "s"));
  server.failing_->set_free_bytes(0);
  EXPECT_EQ(Rewind(*server, "s", {.position = 2}).status(), absl::OkStatus());
  server.failing_->set_free_bytes(int64_t{1} << 40);
  EXPECT_EQ(server->Generate(Greedy({3}, 3, "s")).tokens.at(0), Alone({{1, 2, 3}}, 3));
}

TEST(EngineLoopRewindTest, ASnapshotOfWhatIsGoneIsNotTakenForTheSession) {
  // It was copied before the session went back, and is written after it went on to as many tokens.
  Server server(Options(4, /*snapshot_tokens=*/3));
  server->Generate(Greedy({1, 2}, 2, "s"));
  ASSERT_EQ(Rewind(*server, "s", {.position = 0}).status(), absl::OkStatus());
  server->Generate(Greedy({5, 6}, 2, "s"));
  server->TurnUntilStored();
  server.Kill();
  EXPECT_EQ(server->Generate(Greedy({3}, 2, "s")).tokens.at(0), Alone({{5, 6}, {3}}, 2));
}

TEST(EngineLoopRewindTest, AFailedRequestCanBeSentAgain) {
  HarnessOptions options = Options();
  options.poison_token = 9;
  Server server(options);
  server->Generate(Greedy({1}, 2, "s"));
  Request request = Greedy({9}, 2, "s");
  request.idempotency_key = "key";
  const Answer failed = server->Generate(request);
  EXPECT_EQ(ReasonOf(failed.status()), kReasonStepFailed);
  EXPECT_THAT(std::string(failed.status().message()),
              HasSubstr("non-finite logits after 4 tokens"));
  EXPECT_THAT(std::string(failed.status().message()),
              HasSubstr("the session is as it was before the request, at position 3"));
  EXPECT_EQ(PositionOf(failed.status()), 3);
  EXPECT_EQ(failed.last.session_position, 3);
  EXPECT_EQ(ReasonOf(server->Generate(request).status()), kReasonStepFailed) << "it ran anew";
  EXPECT_EQ(server->Generate(Greedy({3}, 2, "s")).tokens.at(0), Alone({{1}, {3}}, 2));
  // Without a store there is nothing to go back to.
  options.disk = nullptr;
  LoopHarness alone(options);
  alone.Generate(Greedy({1}, 2, "s"));
  const Answer ended = alone.Generate(request);
  EXPECT_THAT(std::string(ended.status().message()), HasSubstr("; the session has ended"));
  EXPECT_TRUE(absl::IsNotFound(alone.loop->commands().Get(Key("s")).status()));
}

}  // namespace
}  // namespace mneme
