// Sessions that make way for others, rest in the store, and come back from there.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

TEST(EngineLoopStoreParkingTest, MoreSessionsThanSlabsGoToTheStoreAndBack) {
  constexpr int kSessions = 6;
  Server server(Options(/*slots=*/2));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kSessions; ++i) {
      const Answer answer = server->Generate(Greedy({i, round}, 3, absl::StrCat("s", i)));
      ASSERT_EQ(answer.status(), absl::OkStatus()) << "session " << i << " in round " << round;
      std::vector<std::vector<int32_t>> prompts;
      for (int r = 0; r <= round; ++r) prompts.push_back({i, r});
      EXPECT_EQ(answer.tokens.at(0), Alone(prompts, 3)) << "session " << i;
      EXPECT_EQ(answer.last.usage.replayed_tokens, 0) << "it was parked with a snapshot";
    }
  }
  EXPECT_EQ(server->stats.resumes[static_cast<size_t>(ResumeOutcome::kStored)].value(),
            2 * kSessions);
  server->TurnUntilStored();
  EXPECT_EQ(server->stats.sessions.value(), 2);
  EXPECT_EQ(server->stats.sessions_stored.value(), kSessions - 2);
}

TEST(EngineLoopStoreParkingTest, AWorkingSetOfTwiceThePoolServesEverybody) {
  constexpr int kSessions = 6;
  Server server(Options(/*slots=*/3, /*snapshot_tokens=*/6));
  std::vector<std::shared_ptr<TokenStream>> streams(kSessions);
  std::vector<Answer> answers(kSessions);
  std::vector<int> turns(kSessions);
  const auto all_had = [&](int count) {
    return std::all_of(turns.begin(), turns.end(), [&](int n) { return n >= count; });
  };
  for (int turn = 0; turn < 100'000 && !all_had(20); ++turn) {
    for (int i = 0; i < kSessions; ++i) {
      if (streams[i] != nullptr) continue;
      streams[i] = server->Submit(Greedy({i}, 3, absl::StrCat("s", i))).value();
      answers[i] = {};
    }
    server->Turn();
    ASSERT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
    for (int i = 0; i < kSessions; ++i) {
      LoopHarness::Read(*streams[i], answers[i]);
      if (!answers[i].ended) continue;
      ASSERT_EQ(answers[i].status(), absl::OkStatus());
      EXPECT_EQ(answers[i].last.session_position, 4 * ++turns[i]);
      streams[i] = nullptr;
    }
  }
  EXPECT_TRUE(all_had(20));
}

TEST(EngineLoopStoreParkingTest, TheStoreTakesWhatTheHostHasNoRoomFor) {
  HarnessOptions options = Options(/*slots=*/1);
  options.host_states = 2;
  Server server(options);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 6; ++i) {
      const Answer answer = server->Generate(Greedy({i}, 2, absl::StrCat("s", i)));
      ASSERT_EQ(answer.status(), absl::OkStatus());
      EXPECT_EQ(answer.tokens.at(0), Alone(std::vector<std::vector<int32_t>>(round + 1, {i}), 2));
    }
  }
  EXPECT_GT(server->stats.sessions_parked.value(), 0);
}

TEST(EngineLoopStoreParkingTest, WhatIsNotDurableIsParkedAndComesBack) {
  HarnessOptions options = Options(/*slots=*/1);
  options.engine.durability = Durability::kNone;
  Server server(options);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) {
      const Answer answer = server->Generate(Greedy({i}, 2, absl::StrCat("s", i)));
      ASSERT_EQ(answer.status(), absl::OkStatus()) << i << " in round " << round;
      EXPECT_EQ(answer.tokens.at(0), Alone(std::vector<std::vector<int32_t>>(round + 1, {i}), 2));
    }
  }
  server->TurnUntilStored();
  while (server->loop->SaveSessions()) server->Turn();
  server.Kill();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(server->Generate(Greedy({i}, 2, absl::StrCat("s", i))).tokens.at(0),
              Alone(std::vector<std::vector<int32_t>>(4, {i}), 2))
        << "saved at the end";
  }
  server->TurnUntilStored();
  server.Kill();
  EXPECT_EQ(ReasonOf(server->Generate(Greedy({0}, 2, "s2")).status()), kReasonSessionLost)
      << "it went on behind its snapshot";
}

TEST(EngineLoopStoreParkingTest, TheTimeToLiveParksAndRetentionDeletes) {
  HarnessOptions options = Options();
  options.engine.default_session_ttl = absl::Seconds(10);
  options.engine.session_retention = absl::Hours(1);
  Server server(options);
  server->Generate(Greedy({1}, 2, "s"));
  server->clock.Advance(absl::Seconds(11));
  server->TurnUntilStored();
  EXPECT_EQ(server->pool->used_slots(), 0);
  EXPECT_EQ(server->loop->commands().Get(Key("s"))->residence, Residence::kStored);
  EXPECT_EQ(server->Generate(Greedy({2}, 2, "s")).tokens.at(0), Alone({{1}, {2}}, 2));
  server->clock.Advance(absl::Hours(2));
  server->TurnUntilStored();
  server->TurnUntilStored();
  EXPECT_TRUE(absl::IsNotFound(server->loop->commands().Get(Key("s")).status()));
  EXPECT_EQ(server.snapshots(), 0) << "nothing is left of it";
}

TEST(EngineLoopStoreParkingTest, WorkOnASessionWaitsForItsSlab) {
  Server server(Options());
  server->Generate(Greedy({1}, 2, "s"));
  server.Kill();
  std::optional<Residence> found;
  server->loop->OnSession(Key("s"), [&](const absl::Status& status) {
    ASSERT_EQ(status, absl::OkStatus());
    found = server->loop->commands().Get(Key("s"))->residence;
  });
  EXPECT_FALSE(found.has_value());
  for (int turn = 0; turn < 1000 && !found.has_value(); ++turn) server->Turn();
  EXPECT_EQ(found, Residence::kResident);
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

// Long logs are read beside steps: the loop has them when they are there.
TEST(EngineLoopStoreParkingTest, WorkThatNeedsTheLogWaitsForThatToo) {
  HarnessOptions options = Options();
  options.prefix_states = 4;
  options.engine.prefix_cache_least_tokens = 2;
  Server server(options);
  const Answer answer = server->Generate(Greedy({1, 2, 3}, 3, "s"));
  std::vector<int32_t> fed = {1, 2, 3};
  fed.insert(fed.end(), answer.tokens.at(0).begin(), answer.tokens.at(0).end() - 1);
  server.Kill();
  for (const bool resident : {false, true}) {
    if (resident) {
      ASSERT_EQ(server->Generate(Greedy({}, 0, "s")).status(), absl::OkStatus());
      fed.push_back(answer.tokens.at(0).back());
    }
    std::optional<std::vector<int32_t>> logged;
    server->loop->OnLoggedSession(
        Key("s"), [&](const absl::Status& status, std::span<const int32_t> tokens) {
          ASSERT_EQ(status, absl::OkStatus());
          logged.emplace(tokens.begin(), tokens.end());
          EXPECT_EQ(server->loop->commands().Get(Key("s"))->residence, Residence::kResident);
        });
    EXPECT_FALSE(logged.has_value()) << "on this thread";
    EXPECT_EQ(ReasonOf(server->Generate(Greedy({4}, 2, "s")).status()), kReasonSessionBusy);
    for (int turn = 0; turn < 1000 && !logged.has_value(); ++turn) server->Turn();
    ASSERT_TRUE(logged.has_value());
    EXPECT_EQ(*logged, fed);
  }
  std::optional<bool> told;
  server->loop->OnLoggedSession(Key("nobody"),
                                [&](const absl::Status& status, std::span<const int32_t> tokens) {
                                  EXPECT_EQ(status, absl::OkStatus());
                                  told = !tokens.empty();
                                });
  EXPECT_EQ(told, false);
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopStoreParkingTest, ARequestThatLeavesWhileItsSessionComesLeavesItWhole) {
  Server server(Options(/*slots=*/1));
  server->Generate(Greedy({1, 2, 3}, 5, "s"));
  server.Kill();
  for (int turns = 0; turns < 6; ++turns) {
    auto stream = server->Submit(Greedy({4}, 2, "s")).value();
    for (int turn = 0; turn < turns; ++turn) server->Turn();
    const bool done = server->loop->commands().Get(Key("s"))->position > 8;
    stream->Cancel();
    server->Finish(*stream);
    if (done) break;
    EXPECT_EQ(server->loop->commands().Get(Key("s"))->position, 8);
    server->TurnUntilStored();
  }
  server.Kill();
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

}  // namespace
}  // namespace mneme
