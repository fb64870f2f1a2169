// A server with a store that crashes at any moment, against what its sessions should be.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

// Requests of several sessions, edits among them, and a power loss or a kill at any moment of them.
// Each session is then as after the last turn whose end was seen, or as after the one that was
// under way.
TEST(EngineLoopCrashTest, RandomCrashesLoseAndDoubleNothing) {
  constexpr int kSessions = 5;
  int crashes = 0, whole = 0, absent = 0, edits = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const HarnessOptions options = RandomOptions(pick);
    Server server(options);
    std::vector<OracleSession> known(kSessions);
    std::vector<std::optional<Request>> asked(kSessions);
    std::vector<std::shared_ptr<TokenStream>> streams(kSessions);
    std::vector<Answer> answers(kSessions);
    const auto name = [](int i) { return absl::StrCat("s", i); };
    const auto after = [&](int i) {
      OracleSession next = asked[i]->whole_history ? OracleSession() : known[i];
      next.FeedPrompt(asked[i]->prompt.at_start);
      const std::vector<int32_t> said = next.Generate(options, *asked[i], 0, 0);
      return std::pair(next, said);
    };
    for (int step = 0; step < 150 && !HasFailure(); ++step) {
      const int i = pick(0, kSessions - 1);
      if (streams[i] == nullptr) {
        Request request = Greedy({pick(0, 31), pick(0, 31)}, pick(1, 5), name(i));
        if (pick(0, 2) == 0) request.sampling.frequency_penalty = 0.5f;
        request.expected_position = known[i].position();
        asked[i] = request;
        if (pick(0, 2) == 0 && known[i].fed > 1) {  // what it was fed, with an end of another kind
          request.whole_history = request.prompt.same_everywhere = true;
          request.on_mismatch = OnMismatch::kReplace;
          request.prompt.continued.clear();
          std::vector<int32_t>& told = request.prompt.at_start;
          const int kept = pick(0, static_cast<int>(known[i].fed) - 1);
          const int32_t fed = known[i].history[static_cast<size_t>(kept)].first;
          told.insert(told.begin(), (fed + 1) % 32);
          for (int at = kept; at-- > 0;) {
            told.insert(told.begin(), known[i].history[static_cast<size_t>(at)].first);
          }
          asked[i] = request;
          // A crash has to tell whether it has happened.
          if (after(i).first.position() == known[i].position()) request.stop.max_tokens += 1;
          asked[i] = request;
          ++edits;
        }
        answers[i] = {};
        streams[i] = server->Submit(std::move(request)).value();
      }
      for (int turns = pick(0, 6); turns > 0; --turns) server->Turn();
      ASSERT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
      for (int s = 0; s < kSessions; ++s) {
        if (streams[s] == nullptr) continue;
        LoopHarness::Read(*streams[s], answers[s]);
        if (!answers[s].ended) continue;
        streams[s] = nullptr;
        // Of places there are few, and a session that comes takes one.
        if (ReasonOf(answers[s].status()) == kReasonNoFreeSlab) continue;
        ASSERT_EQ(answers[s].status(), absl::OkStatus());
        auto [next, said] = after(s);
        ASSERT_EQ(answers[s].tokens.at(0), said) << "session " << s;
        known[s] = std::move(next);
        ASSERT_EQ(answers[s].last.session_position, known[s].position());
      }
      if (pick(0, 19) > 0) continue;
      ++crashes;
      if (pick(0, 1) == 0) server.Commit();  // however fast the disk: ends that nobody has seen
      pick(0, 1) == 0 ? server.Kill() : server.LosePower(random());
      for (int s = 0; s < kSessions; ++s) {
        const auto info = server->loop->commands().Get(Key(name(s)));
        const int64_t position = info.ok() ? info->position : 0;
        const bool was_asked = std::exchange(streams[s], nullptr) != nullptr;
        if (position == known[s].position()) {
          absent += was_asked ? 1 : 0;
          continue;
        }
        ASSERT_TRUE(was_asked) << "session " << s << " is at " << position;
        known[s] = after(s).first;
        ASSERT_EQ(position, known[s].position()) << "session " << s << " has a part of a turn";
        ++whole;
      }
    }
  }
  EXPECT_GT(crashes, 200);
  EXPECT_GT(whole, 0);
  EXPECT_GT(absent, 5);
  EXPECT_GT(edits, 300);
}

}  // namespace
}  // namespace mneme
