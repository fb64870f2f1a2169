// Sessions that are not durable, and a store that does not take them.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using Kind = FailingFileSystem::Kind;

constexpr int64_t kPlenty = int64_t{1} << 40;

HarnessOptions NotDurable(int slots) {
  HarnessOptions options = Options(slots);
  options.engine.durability = Durability::kNone;
  return options;
}

std::string Where(Server& server) {
  std::string where;
  for (const SessionInfo& info : ListSessions(*server->loop, "", "")) {
    where += info.residence == Residence::kResident ? 'd'
             : info.residence == Residence::kParked ? 'h'
             : info.residence == Residence::kStored ? 's'
                                                    : '?';
  }
  return where;
}

// The disk refuses what `begin` says until `end`.
struct Fault {
  std::string name;
  std::function<void(FailingFileSystem&)> begin, end;
};

const Fault kFaults[] = {
    {"no rename",
     [](FailingFileSystem& files) {
       files.Fail(Kind::kRename, 0, absl::ResourceExhaustedError("the disk is full"), 1000);
     },
     [](FailingFileSystem& files) { files.Fail(Kind::kRename, -2, absl::OkStatus()); }},
    {"an error of the disk",
     [](FailingFileSystem& files) {
       files.Fail(Kind::kRename, 0, absl::UnavailableError("the disk is broken"), 1000);
     },
     [](FailingFileSystem& files) { files.Fail(Kind::kRename, -2, absl::OkStatus()); }},
    {"no room for the catalogue", [](FailingFileSystem& files) { files.set_free_bytes(1); },
     [](FailingFileSystem& files) { files.set_free_bytes(kPlenty); }},
};

TEST(EngineLoopRefusedTest, WhatIsNotDurableStaysWhereItIsUntilThereIsRoom) {
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.name);
    Server server(NotDurable(/*slots=*/2));
    for (int i = 0; i < 2; ++i) server->Generate(Greedy({i}, 2, absl::StrCat("s", i)));
    server->TurnUntilStored();
    fault.begin(*server.failing_);
    for (int round = 0; round < 3; ++round) {
      const int64_t failures = server->stats.snapshot_failures.value();
      const Answer refused = server->Generate(Greedy({2}, 2, "s2"));
      EXPECT_EQ(ReasonOf(refused.status()), kReasonNoFreeSlab) << refused.status();
      EXPECT_THAT(std::string(refused.status().message()), HasSubstr("not durable"));
      EXPECT_TRUE(RetryAfterOf(refused.status()).has_value());
      server->TurnUntilStored();
      EXPECT_EQ(Where(server), "dd");
      EXPECT_GT(server->stats.snapshot_failures.value(), failures);
      server->clock.Advance(absl::Seconds(2));
    }
    EXPECT_EQ(server->Generate(Greedy({5}, 2, "s0")).tokens.at(0), Alone({{0}, {5}}, 2));
    server->TurnUntilStored();  // or, where there is no room, its position is not
    fault.end(*server.failing_);
    server->clock.Advance(absl::Seconds(2));
    EXPECT_EQ(server->Generate(Greedy({2}, 2, "s2")).tokens.at(0), Alone({{2}}, 2));
    server->TurnUntilStored();
    EXPECT_EQ(Where(server), "dsd");
    const Answer answer = server->Generate(Greedy({5}, 2, "s1"));
    EXPECT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer.tokens.at(0), Alone({{1}, {5}}, 2));
  }
}

TEST(EngineLoopRefusedTest, WithoutARequestToTellNothingIsTriedWithinASecond) {
  Server server(NotDurable(/*slots=*/1));
  server->Generate(Greedy({0}, 2, "s0"));
  server->TurnUntilStored();
  kFaults[0].begin(*server.failing_);
  for (int i = 0; i < 5; ++i) server->Generate(Greedy({1}, 2, "s1"));
  EXPECT_EQ(server->stats.snapshot_failures.value(), 1);
}

TEST(EngineLoopRefusedTest, AtTheEndEachIsTriedAndTriedAgain) {
  for (const int host : {0, 2}) {
    SCOPED_TRACE(host);
    HarnessOptions options = NotDurable(/*slots=*/3);
    options.host_states = host;
    Server server(options);
    for (int i = 0; i < 3; ++i) server->Generate(Greedy({i}, 2, absl::StrCat("s", i)));
    server->TurnUntilStored();
    server.failing_->set_free_bytes(1);
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(server->loop->SaveSessions());
      server->Turn();
      server->TurnUntilStored();
    }
    EXPECT_EQ(server->stats.snapshot_failures.value(), 3) << "each once a second";
    EXPECT_EQ(server->loop->UnsavedSessions().size(), 3u);
    server.failing_->set_free_bytes(kPlenty);
    server->clock.Advance(absl::Seconds(2));
    server->Turn();
    while (server->loop->SaveSessions()) server->Turn();
    EXPECT_EQ(server->loop->UnsavedSessions().size(), 0u);
    server.Restart();
    EXPECT_EQ(server->Generate(Greedy({5}, 2, "s1")).tokens.at(0), Alone({{1}, {5}}, 2));
  }
}

TEST(EngineLoopRefusedTest, AtTheEndNobodyWaitsForAKeyThatHasItsBytes) {
  HarnessOptions options = NotDurable(/*slots=*/2);
  options.store.limits.bytes_per_owner = 1;
  Server server(options);
  server->Generate(Greedy({0}, 2, "s0"));
  server->TurnUntilStored();
  while (server->loop->SaveSessions()) server->Turn();
  const std::vector<SessionInfo> unsaved = server->loop->UnsavedSessions();
  ASSERT_EQ(unsaved.size(), 1u);
  EXPECT_EQ(unsaved[0].key.name, "s0");
}

TEST(EngineLoopRefusedTest, NewSessionsWaitUntilOthersAreParked) {
  Server server(NotDurable(/*slots=*/2));
  for (int i = 0; i < 2; ++i) server->Generate(Greedy({i}, 2, absl::StrCat("s", i)));
  server->TurnUntilStored();
  int made = 0;
  const auto make = [&](const std::string& name, const SessionKey* parent) {
    const SessionKey key = {"", name};
    server->loop->OnRoom(key, {}, parent, /*tokens=*/0, [&, key, parent](const absl::Status& room) {
      ASSERT_EQ(room, absl::OkStatus());
      const auto info = parent == nullptr ? server->loop->commands().Create(key, {})
                                          : server->loop->commands().Fork(*parent, key, {});
      EXPECT_EQ(info.status(), absl::OkStatus());
      ++made;
    });
  };
  make("s2", nullptr);
  for (int turn = 0; turn < 1000 && made < 1; ++turn) server->TurnUntilStored();
  ASSERT_EQ(made, 1);
  const SessionKey parents[] = {{"", "s0"}, {"", "s1"}, {"", "s2"}};
  for (const SessionKey& parent : parents) {
    made = 0;
    make(absl::StrCat("f", parent.name), &parent);
    for (int turn = 0; turn < 1000 && made < 1; ++turn) server->TurnUntilStored();
    ASSERT_EQ(made, 1);
    server->TurnUntilStored();
  }
  for (const char* name : {"s0", "fs0"}) {
    EXPECT_EQ(server->Generate(Greedy({5}, 2, name)).tokens.at(0), Alone({{0}, {5}}, 2));
  }
  for (const char* name : {"fs1", "s1"}) {
    EXPECT_EQ(server->Generate(Greedy({5}, 2, name)).tokens.at(0), Alone({{1}, {5}}, 2));
  }
  EXPECT_EQ(server->Generate(Greedy({5}, 2, "fs2")).tokens.at(0), Alone({{5}}, 2));
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopRefusedTest, NewSessionsAreRefusedWhereNoneCanBeParked) {
  Server server(NotDurable(/*slots=*/1));
  server->Generate(Greedy({0}, 2, "s0"));
  server->TurnUntilStored();
  server.failing_->set_free_bytes(1);
  absl::Status refused;
  bool done = false;
  server->loop->OnRoom({"", "s1"}, {}, nullptr, 0, [&](const absl::Status& room) {
    refused = room;
    done = true;
  });
  for (int turn = 0; turn < 1000 && !done; ++turn) server->TurnUntilStored();
  ASSERT_TRUE(done);
  EXPECT_EQ(ReasonOf(refused), kReasonNoFreeSlab) << refused;
}

TEST(EngineLoopRefusedTest, OneWhosePositionCouldNotBeStoredIsParkedWhenItCanBe) {
  Server server(NotDurable(/*slots=*/1));
  EXPECT_EQ(server->Generate(Greedy({0}, 2, "s0")).status(), absl::OkStatus());
  server->TurnUntilStored();
  server.failing_->set_free_bytes(1);
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "s0")).status(), absl::OkStatus());
  server->TurnUntilStored();
  server.failing_->set_free_bytes(kPlenty);
  // The store has it elsewhere, and is told before it is to take the snapshot.
  EXPECT_EQ(server->Generate(Greedy({1}, 2, "s1")).tokens.at(0), Alone({{1}}, 2));
  server->TurnUntilStored();
  EXPECT_EQ(Where(server), "sd");
  EXPECT_EQ(server->Generate(Greedy({5}, 2, "s0")).tokens.at(0), Alone({{0}, {2}, {5}}, 2));
}

TEST(EngineLoopRefusedTest, AKeyThatHasItsBytesKeepsNobodyElseFromBeingParked) {
  HarnessOptions options = NotDurable(/*slots=*/2);
  options.store.limits.bytes_per_owner = 1;
  Server server(options);
  Request rich = Greedy({0}, 2, "s0");
  rich.session.owner = "rich";
  server->Generate(rich);
  server->TurnUntilStored();
  // Rests longest, and its snapshot is more than its key may have.
  Request other = Greedy({1}, 2, "s1");
  other.session.owner = "other";
  other.durability = Durability::kTurn;
  const Answer over = server->Generate(other);
  EXPECT_EQ(ReasonOf(over.status()), kReasonStorageLimit);
  EXPECT_TRUE(absl::IsResourceExhausted(over.status()));
  EXPECT_THAT(std::string(over.status().message()), HasSubstr("0 bytes stored of 1 allowed"));
  EXPECT_EQ(server->stats.store_failures.value(), 0) << "the disk is well";
  server->TurnUntilStored();
  server->Generate(Greedy({2}, 2, "s2"));
  server->TurnUntilStored();
  const Answer refused = server->Generate(Greedy({3}, 2, "s3"));
  EXPECT_EQ(server->stats.snapshot_failures.value(), 0) << "the disk is well";
  EXPECT_GT(server->stats.snapshots_over_limit.value(), 0);
  EXPECT_EQ(ReasonOf(refused.status()), kReasonNoFreeSlab);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1 allowed"));
  rich.prompt = {{5}, {5}};
  EXPECT_EQ(server->Generate(rich).tokens.at(0), Alone({{0}, {5}}, 2));
}

TEST(EngineLoopRefusedTest, AStoreThatIsKnownToBeFullRefusesATurnBeforeItRuns) {
  Server server(Options(/*slots=*/2));
  server->Generate(Greedy({0}, 2, "s0"));
  server.failing_->set_free_bytes(1);
  const Answer first = server->Generate(Greedy({1}, 2, "s0"));
  EXPECT_EQ(ReasonOf(first.status()), kReasonNotDurable);
  const size_t steps = server->rows_per_step.size();
  for (const char* name : {"s0", "s1"}) {
    const Answer next = server->Generate(Greedy({1}, 2, name));
    EXPECT_EQ(ReasonOf(next.status()), kReasonNotDurable) << next.status();
    EXPECT_EQ(next.status().code(), first.status().code());
  }
  EXPECT_EQ(server->rows_per_step.size(), steps);
  Request other = Greedy({1}, 2, "s2");
  other.durability = Durability::kNone;
  EXPECT_EQ(ReasonOf(server->Generate(other).status()), kReasonNotDurable) << "its name is not";
  EXPECT_EQ(server->Generate(Greedy({1}, 2)).status(), absl::OkStatus());
  server.failing_->set_free_bytes(kPlenty);
  EXPECT_EQ(server->Generate(Greedy({1}, 2, "s0")).tokens.at(0), Alone({{0}, {1}}, 2));
}

// A key whose last turn did not fit may have room for a smaller one: of many limits, some leave so
// little that none fits, which is known before it runs.
TEST(EngineLoopRefusedTest, AKeyThatHasItsBytesIsRefusedATurnBeforeItRuns) {
  int refused_before = 0;
  for (int64_t limit = 200; limit < 300; limit += 10) {
    SCOPED_TRACE(limit);
    HarnessOptions options = Options(/*slots=*/2);
    options.store.limits.bytes_per_owner = limit;
    Server server(options);
    absl::Status refused;
    for (int i = 0; i < 100 && refused.ok(); ++i) {
      refused = server->Generate(Greedy({1}, 2, absl::StrCat("s", i))).status();
    }
    EXPECT_EQ(ReasonOf(refused), kReasonStorageLimit) << refused;
    const size_t steps = server->rows_per_step.size();
    const absl::Status next = server->Generate(Greedy({1}, 2, "t0")).status();
    EXPECT_EQ(ReasonOf(next), kReasonStorageLimit) << next;
    refused_before += server->rows_per_step.size() == steps ? 1 : 0;
  }
  EXPECT_GT(refused_before, 0);
}

// Sessions are wanted while they are copied and written, and some snapshots are refused: each goes
// on from where it was, or is refused for now; after a kill, it is where it was, or is lost aloud.
TEST(EngineLoopRefusedTest, NothingIsLostWhicheverSnapshotsAreRefused) {
  constexpr int kSessions = 6;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    HarnessOptions options = NotDurable(/*slots=*/2);
    options.asynchronous = true;
    options.host_states = seed % 2 == 0 ? 0 : 2;
    Server server(options);
    std::map<int, std::vector<std::vector<int32_t>>> prompts;
    uint32_t random = seed;
    const auto below = [&random](uint32_t bound) {
      random = random * 1664525 + 1013904223;
      return static_cast<int>((random >> 16) % bound);
    };
    const auto answer_of = [&](int session, const Answer& answer) {
      if (ReasonOf(answer.status()) == kReasonNoFreeSlab) return prompts[session].pop_back();
      ASSERT_EQ(answer.status(), absl::OkStatus());
      ASSERT_EQ(answer.tokens.at(0), Alone(prompts[session], 2)) << "session " << session;
    };
    for (int turn = 0; turn < 60; ++turn) {
      if (below(8) == 0) {
        server.failing_->Fail(Kind::kRename, 0, absl::ResourceExhaustedError("full"), below(4));
      }
      // Two at once, so that one is wanted while it leaves for the other.
      const int first = below(kSessions), second = (first + 1 + below(kSessions - 1)) % kSessions;
      std::map<int, std::shared_ptr<TokenStream>> streams;
      for (const int session : {first, second}) {
        prompts[session].push_back({below(31)});
        streams[session] =
            *server->Submit(Greedy(prompts[session].back(), 2, absl::StrCat("s", session)));
        for (int turns = below(4); turns > 0; --turns) server->Turn();
      }
      for (const auto& [session, stream] : streams) answer_of(session, server->Finish(*stream));
      ASSERT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
      server->clock.Advance(absl::Milliseconds(700));
    }
    server->TurnUntilStored();
    server.Kill();
    for (int session = 0; session < kSessions; ++session) {
      if (prompts[session].empty()) continue;
      prompts[session].push_back({1});
      const Answer answer = server->Generate(Greedy({1}, 2, absl::StrCat("s", session)));
      if (ReasonOf(answer.status()) != kReasonSessionLost) answer_of(session, answer);
    }
  }
}

}  // namespace
}  // namespace mneme
