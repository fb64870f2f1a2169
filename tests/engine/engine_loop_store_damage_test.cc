// Sessions of which the store has lost or altered something go back to what is left, or say that
// they are lost.
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/slab_file.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

TEST(EngineLoopStoreDamageTest, WhatWasNotDurableIsLostAloud) {
  HarnessOptions options = Options();
  options.engine.durability = Durability::kNone;
  Server server(options);
  server->Generate(Greedy({1}, 2, "lost"));
  Request kept = Greedy({1}, 2, "kept");
  kept.durability = Durability::kTurn;
  server->Generate(kept);
  server->TurnUntilStored();
  server.Kill();
  const Answer refused = server->Generate(Greedy({2}, 2, "lost"));
  EXPECT_TRUE(absl::IsDataLoss(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonSessionLost);
  EXPECT_EQ(PositionOf(refused.status()), 3);
  EXPECT_EQ(ReasonOf(server->loop->commands().Get(Key("lost")).status()), kReasonSessionLost);
  EXPECT_EQ(ReasonOf(server->loop->commands().Create(Key("lost"), absl::ZeroDuration()).status()),
            kReasonSessionLost);
  Request anew = Greedy({2}, 2, "lost");
  anew.replaces_lost = true;
  EXPECT_EQ(server->Generate(anew).tokens.at(0), Alone({{2}}, 2));
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "kept")).tokens.at(0), Alone({{1}, {2}}, 2));
}

// Deletions and going back make room, and so need none; but they need a disk.
TEST(EngineLoopStoreDamageTest, AFolderThatIsGoneIsUnavailableWhateverIsAsked) {
  Server server(Options());
  ASSERT_EQ(server->Generate(Greedy({1}, 2, "s")).status(), absl::OkStatus());
  server->TurnUntilStored();
  server.failing_->set_gone(true);
  const auto run = [&](const auto& command) {
    std::optional<absl::Status> done;
    const absl::Status begun = command([&](const absl::Status& status) { done = status; });
    while (begun.ok() && !done.has_value()) server->Turn();
    return begun.ok() ? *done : begun;
  };
  const auto status_of = [](auto done) {
    return [done](const auto& info) { done(info.status()); };
  };
  const absl::Status refused[] = {
      server->Generate(Greedy({2}, 2, "s")).status(),
      run([&](auto done) { return server->loop->commands().Delete(Key("s"), done); }),
      run([&](auto done) {
        server->loop->commands().Rewind(Key("s"), {.position = 1}, status_of(done));
        return absl::OkStatus();
      }),
      run([&](auto done) {
        server->loop->commands().CreateCheckpoint(Key("s"), "c", status_of(done));
        return absl::OkStatus();
      }),
  };
  for (const absl::Status& status : refused) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ReasonOf(status), kReasonNotDurable) << status;
  }
  EXPECT_FALSE(server->loop->store_health().ok());
  server.failing_->set_gone(false);
  EXPECT_EQ(server->Generate(Greedy({3}, 2, "s")).tokens.at(0), Alone({{1}, {3}}, 2));
  EXPECT_EQ(server->loop->store_health(), absl::OkStatus());
}

// Whichever of the rows that have it, where it says whose request it was or what was answered.
TEST(EngineLoopStoreDamageTest, ARepetitionWhoseRecordIsDamagedFeedsNothing) {
  const std::string key = "a key that is nowhere else";
  Request request = Greedy({1, 2}, 3, "s");
  request.idempotency_key = key;
  int refused = 0;
  for (int which = 0; which < 3; ++which) {
    Server server(Options());
    const Answer said = server->Generate(request);
    server.Restart();  // all of it is in the database
    const std::string path = "/store/catalogue.1.db";
    const std::string bytes = server.disk().AllFiles().at(path);
    size_t at = bytes.find(key);
    for (int i = 0; i < which; ++i) at = bytes.find(key, at + 1);
    ASSERT_NE(at, std::string::npos) << which;
    const std::string other = "#";
    ASSERT_TRUE(server.disk()
                    .Open(path, OpenMode::kReadWrite)
                    .value()
                    ->Write(static_cast<int64_t>(at + 3), std::as_bytes(std::span(other)))
                    .ok());
    server.Kill();
    for (int times = 0; times < 2; ++times) {
      const Answer again = server->Generate(request);
      if (again.status().ok()) {
        EXPECT_EQ(again.tokens, said.tokens);
      } else {
        ++refused;
        EXPECT_EQ(ReasonOf(again.status()), kReasonSessionLost) << again.status();
      }
      EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, said.last.session_position)
          << which;
    }
  }
  EXPECT_GT(refused, 0);
}

// The end of the WAL is gone, and with it the second turn of each session.
TEST(EngineLoopStoreDamageTest, ASessionThatMayHaveBeenFartherSaysSoBeforeItGoesOn) {
  Server server(Options());
  const std::vector<std::string> names = {"silent", "expected", "taken", "elsewhere"};
  for (const std::string& name : names) server->Generate(Greedy({1, 2}, 3, name));
  const size_t end = server.disk().AllFiles().at(server.wal()).size();
  for (const std::string& name : names) server->Generate(Greedy({3}, 3, name));
  server.CutWal(end);
  for (const bool restarted : {false, true}) {
    if (restarted) server.Kill();
    EXPECT_EQ(server->loop->commands().Get(Key("silent"))->may_have_been_at, 5);
    const absl::Status refused = server->Generate(Greedy({4}, 3, "silent")).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), kReasonSessionLost);
    EXPECT_EQ(PositionOf(refused), 5);
  }
  EXPECT_EQ(server->loop->commands().Get(Key("silent"))->position, 5);
  Request request = Greedy({4}, 3, "elsewhere");
  request.expected_position = 9;
  EXPECT_EQ(ReasonOf(server->Generate(request).status()), kReasonPosition);
  for (const char* name : {"expected", "taken"}) {
    request = Greedy({4}, 3, name);
    if (name == names[1]) request.expected_position = 5;
    if (name == names[2]) request.replaces_lost = true;
    EXPECT_EQ(server->Generate(request).tokens.at(0), Alone({{1, 2}, {4}}, 3)) << name;
    server.Kill();
    EXPECT_EQ(server->Generate(Greedy({5}, 3, name)).tokens.at(0), Alone({{1, 2}, {4}, {5}}, 3));
  }
}

TEST(EngineLoopStoreDamageTest, DamagedSnapshotsAreLeftForTheLog) {
  Server server(Options(4, /*snapshot_tokens=*/2));
  server->Generate(Greedy({1, 2}, 3, "s"));
  server->TurnUntilStored();
  ASSERT_EQ(server.snapshots(), 1);
  server.Kill();
  server.DamageSnapshots();
  const Answer answer = server->Generate(Greedy({3}, 3, "s"));
  EXPECT_EQ(answer.tokens.at(0), Alone({{1, 2}, {3}}, 3));
  EXPECT_EQ(answer.last.usage.replayed_tokens, 4);
  EXPECT_TRUE(absl::IsDataLoss(server->loop->store_health())) << server->loop->store_health();
  EXPECT_THAT(std::string(server->loop->store_health().message()), HasSubstr("1 rows or files"));
  server.Restart();
  EXPECT_EQ(server->loop->store_health(), absl::OkStatus()) << "no more was found";
}

// Snapshots whose checksums hold and whose states are none of their sessions'.
void AlterStates(Server& server, int newest) {
  std::vector<std::string> paths;
  for (const auto& [path, bytes] : server.disk().AllFiles()) {
    if (path.ends_with(".slab")) paths.push_back(path);
  }
  ASSERT_GE(static_cast<int>(paths.size()), newest);
  for (const std::string& path : std::vector(paths.end() - newest, paths.end())) {
    auto reader = SlabReader::Open(server.disk(), path).value();
    auto writer = SlabWriter::Create(server.disk(), path, reader->head()).value();
    for (const SlabSection& section : reader->sections()) {
      std::vector<std::byte> bytes(section.raw_bytes);
      ASSERT_EQ(reader->ReadSection(section.name, bytes), absl::OkStatus());
      if (section.name == "state.0") bytes.front() ^= std::byte{1};
      ASSERT_EQ(writer->AddSection(section.name, bytes, /*compress=*/true), absl::OkStatus());
    }
    ASSERT_EQ(writer->Finish().status(), absl::OkStatus());
  }
}

int FilesSetAside(Server& server) {
  int count = 0;
  for (const auto& [path, bytes] : server.disk().AllFiles()) {
    count += path.ends_with(".slab.damaged") ? 1 : 0;
  }
  return count;
}

TEST(EngineLoopStoreDamageTest, ASnapshotThatLeadsElsewhereIsLeftForAnOlderOneAndForTheLog) {
  for (int altered = 0; altered <= 2; ++altered) {
    Server server(Options(4, /*snapshot_tokens=*/4));
    for (const int32_t said : {1, 2}) {
      server->Generate(Greedy({said, 9, 9}, 2, "s"));
      server->TurnUntilStored();
    }
    ASSERT_EQ(server.snapshots(), 2);
    server->Generate(Greedy({3}, 2, "s"));
    server.Kill();
    AlterStates(server, altered);
    const Answer answer = server->Generate(Greedy({4}, 2, "s"));
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer.tokens.at(0), Alone({{1, 9, 9}, {2, 9, 9}, {3}, {4}}, 2)) << altered;
    EXPECT_EQ(FilesSetAside(server), altered);
    EXPECT_EQ(answer.last.usage.replayed_tokens, std::vector({3, 8, 12})[altered]);
    EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
  }
}

TEST(EngineLoopStoreDamageTest, WhereNothingLeadsToTheStateThatItHadASessionIsLostAloud) {
  for (const bool from_the_start : {true, false}) {
    HarnessOptions options = Options(4, /*snapshot_tokens=*/from_the_start ? 0 : 3);
    if (!from_the_start) options.store.limits.log_bytes_per_session = 1;
    Server server(options);
    for (const std::string name : {"other", "s"}) {
      for (int turn = 0; turn < 4; ++turn) {
        server->Generate(Greedy({1, 2, 3}, 2, name));
        server->TurnUntilStored();
      }
    }
    const SessionRecord before = server->store->Find("", "s").value();
    if (from_the_start) {
      Turn turn = {.begin = before.fed_tokens, .pending_token = before.pending_token};
      turn.facts = before.facts;
      turn.state_digest = before.state_digest + 1;
      ASSERT_EQ(server->store->Apply({AddTurn{before.id, turn, before.fed_tokens, absl::Now()}}),
                absl::OkStatus());
    } else {
      ASSERT_GT(before.first_turn, 0);
    }
    server.Kill();
    if (!from_the_start) AlterStates(server, 2);  // those of the younger session
    const Answer lost = server->Generate(Greedy({4}, 2, "s"));
    EXPECT_TRUE(absl::IsDataLoss(lost.status())) << lost.status();
    EXPECT_EQ(ReasonOf(lost.status()), kReasonSessionLost);
    EXPECT_EQ(PositionOf(lost.status()), before.position());
    for (const bool restarted : {false, true}) {
      if (restarted) server.Kill();
      const absl::Status still = server->Generate(Greedy({4}, 2, "s")).status();
      EXPECT_EQ(ReasonOf(still), kReasonSessionLost) << still;
      EXPECT_EQ(PositionOf(still), before.position());
    }
    EXPECT_EQ(server->Generate(Greedy({4}, 2, "other")).status(), absl::OkStatus());
    Request anew = Greedy({4}, 2, "s");
    anew.replaces_lost = true;
    EXPECT_EQ(server->Generate(anew).tokens.at(0), Alone({{4}}, 2));
    EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace mneme
