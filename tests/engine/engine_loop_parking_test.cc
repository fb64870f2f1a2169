// Sessions without a slab: parked when others need theirs, and back when they are wanted.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

HarnessOptions ParkingOptions(int slots, int host_states) {
  HarnessOptions options;
  options.slots = slots;
  options.host_states = host_states;
  return options;
}

Residence ResidenceOf(const LoopHarness& h, const std::string& name) {
  return h.loop->commands().Get(Key(name)).value().residence;
}

// What a session that is fed these prompts one after the other says in the end.
std::vector<int32_t> Alone(const std::vector<std::vector<int32_t>>& prompts, int tokens) {
  LoopHarness h;
  Answer answer;
  for (const std::vector<int32_t>& prompt : prompts) {
    answer = h.Generate(Greedy(prompt, tokens, "s"));
  }
  return answer.tokens.at(0);
}

TEST(EngineLoopParkingTest, MoreSessionsThanSlabsGoOnAsIfEachHadItsOwn) {
  constexpr int kSessions = 7;
  LoopHarness h(ParkingOptions(/*slots=*/2, /*host_states=*/5));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kSessions; ++i) {
      const std::vector<int32_t> prompt = {i, round};
      const Answer answer = h.Generate(Greedy(prompt, 3, absl::StrCat("s", i)));
      ASSERT_EQ(answer.status(), absl::OkStatus()) << "session " << i << " in round " << round;
      std::vector<std::vector<int32_t>> prompts;
      for (int r = 0; r <= round; ++r) prompts.push_back({i, r});
      EXPECT_EQ(answer.tokens.at(0), Alone(prompts, 3)) << "session " << i;
    }
  }
  EXPECT_EQ(h.stats.sessions_parked.value(), kSessions - 2);
  EXPECT_EQ(h.stats.resumes[static_cast<size_t>(ResumeOutcome::kParked)].value(), 2 * kSessions);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopParkingTest, TheLeastRecentlyUsedIsParked) {
  LoopHarness h(ParkingOptions(3, 3));
  for (const char* name : {"a", "b", "c"}) h.Generate(Greedy({1}, 1, name));
  h.Generate(Greedy({2}, 1, "a"));
  h.Generate(Greedy({1}, 1, "d"));
  EXPECT_EQ(ResidenceOf(h, "b"), Residence::kParked);
  for (const char* name : {"a", "c", "d"}) EXPECT_EQ(ResidenceOf(h, name), Residence::kResident);
}

TEST(EngineLoopParkingTest, ARequestHoldsNoRowWhileItsSessionComes) {
  LoopHarness h(ParkingOptions(2, 3));
  for (const char* name : {"a", "b", "c"}) h.Generate(Greedy({1}, 2, name));
  ASSERT_EQ(ResidenceOf(h, "a"), Residence::kParked);
  h.backend.HoldTransfers();
  auto a = h.Submit(Greedy({2}, 2, "a")).value();
  auto c = h.Submit(Greedy({2}, 2, "c")).value();
  EXPECT_EQ(h.Finish(*c).status(), absl::OkStatus()) << "has its slab, and passes by";
  EXPECT_EQ(ResidenceOf(h, "b"), Residence::kLeaving);
  EXPECT_EQ(h.stats.requests_waiting.value(), 1);
  h.backend.FinishTransfers();
  EXPECT_EQ(h.Finish(*a).tokens.at(0), Alone({{1}, {2}}, 2));
}

TEST(EngineLoopParkingTest, ASessionThatIsWantedWhileItLeavesStays) {
  LoopHarness h(ParkingOptions(1, 2));
  h.Generate(Greedy({1}, 2, "a"));
  h.backend.HoldTransfers();
  auto b = h.Submit(Greedy({1}, 2, "b")).value();
  h.Turn();
  ASSERT_EQ(ResidenceOf(h, "a"), Residence::kLeaving);
  auto a = h.Submit(Greedy({2}, 2, "a")).value();
  b->Cancel();
  h.Turn();
  h.backend.FinishTransfers();
  EXPECT_EQ(h.Finish(*a).tokens.at(0), Alone({{1}, {2}}, 2));
  EXPECT_EQ(h.stats.fetch_seconds.count(), 0) << "it was never away";
}

// Both wait for all slabs, and each has claimed a session that holds one of them.
TEST(EngineLoopParkingTest, WhoeverIsInFrontGetsTheSlabsOfThoseBehind) {
  LoopHarness h(ParkingOptions(3, 6));
  h.Generate(Greedy({1}, 2, "a"));
  h.Generate(Greedy({1}, 2, "b"));
  auto running = h.Submit(Greedy({1}, 4)).value();
  h.Turn();
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* name : {"a", "b"}) {
    Request request = Greedy({2}, 2, name);
    request.n = 3;
    streams.push_back(h.Submit(std::move(request)).value());
  }
  for (const auto& stream : streams) {
    EXPECT_EQ(h.Finish(*stream).tokens.at(0), Alone({{1}, {2}}, 2));
  }
  EXPECT_EQ(h.Finish(*running).status(), absl::OkStatus());
}

TEST(EngineLoopParkingTest, AFullHostStillLetsSessionsChangePlacesAndRefusesNewOnes) {
  LoopHarness h(ParkingOptions(1, 2));
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_EQ(h.Generate(Greedy({1}, 1, name)).status(), absl::OkStatus());
  }
  const Answer refused = h.Generate(Greedy({1}, 1, "d"));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonNoFreeSlab);
  EXPECT_THAT(refused.status().message(), HasSubstr("--host-state-memory"));
  EXPECT_EQ(ReasonOf(h.loop->commands().Create(Key("d"), absl::ZeroDuration()).status()),
            kReasonNoFreeSlab);
  EXPECT_EQ(ReasonOf(h.Generate(Greedy({1}, 1)).status()), kReasonNoFreeSlab)
      << "without a name, too";
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_EQ(h.Generate(Greedy({2}, 1, name)).status(), absl::OkStatus()) << name;
    }
  }
  EXPECT_EQ(h.loop->commands().Delete(Key("a")), absl::OkStatus());
  EXPECT_EQ(h.Generate(Greedy({1}, 1, "d")).status(), absl::OkStatus());
}

TEST(EngineLoopParkingTest, AWorkingSetOfTwiceThePoolServesEverybody) {
  constexpr int kSessions = 8;
  LoopHarness h(ParkingOptions(4, kSessions));
  std::vector<int> turns(kSessions);
  std::vector<std::shared_ptr<TokenStream>> streams(kSessions);
  std::vector<Answer> answers(kSessions);
  for (int turn = 0; turn < 2000; ++turn) {
    if (turn % 7 == 0) h.backend.HoldTransfers();
    if (turn % 7 == 3) h.backend.FinishTransfers();
    for (int i = 0; i < kSessions; ++i) {
      if (streams[i] == nullptr) {
        streams[i] = h.Submit(Greedy({i}, 5, absl::StrCat("s", i))).value();
        answers[i] = {};
      }
    }
    h.Turn();
    for (int i = 0; i < kSessions; ++i) {
      LoopHarness::Read(*streams[i], answers[i]);
      if (!answers[i].ended) continue;
      ASSERT_EQ(answers[i].status(), absl::OkStatus());
      ++turns[i];
      streams[i] = nullptr;
    }
  }
  h.backend.FinishTransfers();
  const auto [fewest, most] = std::minmax_element(turns.begin(), turns.end());
  EXPECT_GT(*fewest, 50);
  EXPECT_LE(*most, *fewest + 2) << "they take turns";
}

TEST(EngineLoopParkingTest, CommandsWorkOnParkedSessions) {
  LoopHarness h(ParkingOptions(1, 5));
  h.Generate(Greedy({1}, 2, "a"));
  h.Generate(Greedy({1}, 2, "b"));
  ASSERT_EQ(ResidenceOf(h, "a"), Residence::kParked);
  EXPECT_EQ(h.loop->commands().Create(Key("new"), absl::ZeroDuration())->residence,
            Residence::kParked)
      << "no slab is free";
  EXPECT_EQ(h.loop->commands().Fork(Key("a"), Key("of_a"), absl::ZeroDuration())->residence,
            Residence::kParked);
  EXPECT_EQ(h.loop->commands().Fork(Key("b"), Key("of_b"), absl::ZeroDuration())->residence,
            Residence::kParked)
      << "of one with a slab";
  EXPECT_EQ(h.loop->commands().Delete(Key("b")), absl::OkStatus());
  EXPECT_EQ(h.loop->commands().Fork(Key("a"), Key("in_a_slab"), absl::ZeroDuration())->residence,
            Residence::kResident);
  for (const char* name : {"a", "of_a", "of_b", "in_a_slab"}) {
    EXPECT_EQ(h.Generate(Greedy({2}, 2, name)).tokens.at(0), Alone({{1}, {2}}, 2)) << name;
  }
  EXPECT_EQ(h.Generate(Greedy({1}, 2, "new")).tokens.at(0), Alone({{1}}, 2));
  for (const SessionInfo& info : ListSessions(*h.loop, "", "")) {
    EXPECT_EQ(h.loop->commands().Delete(info.key), absl::OkStatus());
  }
  EXPECT_EQ(h.pool->used_slots(), 0);
  EXPECT_EQ(h.host->free_pages(), h.host->pages());
}

TEST(EngineLoopParkingTest, WhatMovesCanBeDeletedAndExpires) {
  LoopHarness h(ParkingOptions(1, 3));
  h.Generate(Greedy({1}, 2, "a"));
  h.backend.HoldTransfers();
  auto b = h.Submit(Greedy({1}, 2, "b")).value();
  h.Turn();
  ASSERT_EQ(ResidenceOf(h, "a"), Residence::kLeaving);
  EXPECT_EQ(h.loop->commands().Delete(Key("a")), absl::OkStatus());
  EXPECT_EQ(h.Finish(*b).status(), absl::OkStatus());
  Request request = Greedy({1}, 1, "c");
  request.session_ttl = absl::Seconds(1);
  auto c = h.Submit(std::move(request)).value();
  h.Turn();
  h.backend.FinishTransfers();
  EXPECT_EQ(h.Finish(*c).status(), absl::OkStatus());
  EXPECT_EQ(h.Generate(Greedy({1}, 1, "b")).status(), absl::OkStatus());
  ASSERT_EQ(ResidenceOf(h, "c"), Residence::kParked);
  h.clock.Advance(absl::Seconds(2));
  h.TurnUntilQuiet();
  EXPECT_EQ(ReasonOf(h.loop->commands().Get(Key("c")).status()), kReasonNoSession);
  EXPECT_EQ(h.host->free_pages(), h.host->pages());
}

TEST(HostStatesTest, TooLittleMemoryIsRefusedWithWhatIsNeeded) {
  LoopHarness h;
  const auto states = HostStates::Create(h.backend, *h.pool, /*bytes=*/4096, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(states.status()));
  EXPECT_THAT(states.status().message(),
              HasSubstr("--host-state-memory is 4096, expected 0 or at least 8192"));
}

}  // namespace
}  // namespace mneme
