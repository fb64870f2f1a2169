// Random histories of sessions that go back, are edited, forked and killed, beside an oracle.
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/session_past.h"
#include "tests/engine/stored_server.h"

namespace mneme {
namespace {

// Turns that two pasts have in common, the second of which came from the first.
size_t CommonEnds(const Past& before, const Past& after) {
  size_t ends = 0;
  while (ends < before.ends() && ends < after.ends() &&
         before.BackTo(ends + 1).now().history == after.BackTo(ends + 1).now().history &&
         before.BackTo(ends + 1).now().pending == after.BackTo(ends + 1).now().pending) {
    ++ends;
  }
  return ends;
}

// Requests, checkpoints, ways back, edits and forks of the past, and a power loss or a kill between
// any of them.
TEST(EngineLoopPastsTest, RandomHistoriesAreTheOracles) {
  constexpr int kSessions = 8;
  int rewinds = 0, forks = 0, checkpoints = 0, edits = 0, loads = 0, cached = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    HarnessOptions options = RandomOptions(pick);
    options.prefix_states = pick(0, 1) * 16;
    options.engine.prefix_cache_least_tokens = pick(1, 3);
    Server server(options);
    std::map<std::string, Past> known;
    // Checkpoints, by session: after how many of its turns.
    std::map<std::string, std::map<std::string, size_t>> marks;
    for (int step = 0; step < 80 && !HasFailure(); ++step) {
      const std::string name = absl::StrCat("s", pick(0, kSessions - 1));
      const int action = pick(0, 11);
      Past& past = known[name];
      const bool exists = past.now().position() > 0;
      // Marks beyond the place that a session went back to hold no longer, nor does one of a
      // pending token that was taken back.
      const auto forget_marks = [&](const Past& back) {
        const size_t ends = CommonEnds(past, back);
        std::erase_if(marks[name], [&](const auto& one) {
          return one.second > ends ||
                 past.BackTo(one.second).now().position() > back.now().position();
        });
      };
      const int64_t position = pick(0, static_cast<int>(past.now().position()));
      if (action < 5 || !exists) {
        const Request request = Penalised({pick(0, 31), pick(0, 31)}, pick(0, 4), name);
        OracleSession next = past.now();
        const std::vector<int32_t> said = Apply(server->options, request, next);
        const Answer answer = server->Generate(request);
        ASSERT_EQ(answer.status(), absl::OkStatus());
        ASSERT_EQ(answer.tokens.empty() ? std::vector<int32_t>() : answer.tokens[0], said);
        ASSERT_EQ(answer.last.session_position, next.position());
        past.Add(std::move(next));
      } else if (action == 5) {
        const std::string mark = absl::StrCat("c", step);
        ASSERT_EQ(Checkpoint(*server, name, mark)->position, past.now().position());
        marks[name][mark] = past.ends();
        ++checkpoints;
      } else if (action == 6 && !marks[name].empty()) {
        const auto [mark, ends] = *marks[name].begin();
        const auto info = Rewind(*server, name, {.checkpoint = mark});
        ASSERT_EQ(info.status(), absl::OkStatus());
        const Past back = past.BackTo(ends);
        ASSERT_EQ(info->position, back.now().position());
        forget_marks(back);
        past = back;
        ++rewinds;
      } else if (action <= 7) {
        const auto info = Rewind(*server, name, {.position = position});
        ASSERT_EQ(info.status(), absl::OkStatus());
        ASSERT_EQ(info->position, position);
        const Past back = past.Back(position);
        forget_marks(back);
        past = back;
        ++rewinds;
      } else if (action == 8) {
        const std::string target = absl::StrCat("s", pick(0, 3 * kSessions));
        const auto info = ForkAt(*server, name, target, {.position = position});
        if (known[target].now().position() == 0 && info.ok()) {
          known[target] = known[name].Back(position);
          ++forks;
        } else {
          ASSERT_EQ(ReasonOf(info.status()), kReasonSessionExists);
        }
      } else if (action >= 10) {  // a beginning of what it was fed, and something else
        const auto& history = past.now().history;
        std::vector<int32_t> told;
        for (int64_t i = 0; i < std::min<int64_t>(position, past.now().fed); ++i) {
          told.push_back(history[static_cast<size_t>(i)].first);
        }
        told.push_back(pick(0, 31));
        told.push_back(pick(0, 31));
        Request request = Penalised(told, pick(0, 4), name);
        request.prompt.continued.clear();
        request.prompt.same_everywhere = true;
        request.whole_history = true;
        request.on_mismatch = OnMismatch::kReplace;
        request.prefix_cache.bypass = pick(0, 3) == 0;
        Past next = past;
        const std::vector<int32_t> said = ApplyWhole(server->options, request, next);
        const Answer answer = server->Generate(request);
        ASSERT_EQ(answer.status(), absl::OkStatus());
        ASSERT_EQ(answer.tokens.empty() ? std::vector<int32_t>() : answer.tokens[0], said);
        ASSERT_EQ(answer.last.session_position, next.now().position());
        const Usage& usage = answer.last.usage;
        ASSERT_EQ(usage.resumed_tokens + usage.cached_tokens + usage.fed_tokens, next.now().fed);
        loads += usage.rewound_from > 0 && usage.resumed_tokens > 0 ? 1 : 0;
        cached += usage.cached_tokens > 0 ? 1 : 0;
        edits += usage.rewound_from > 0 ? 1 : 0;
        forget_marks(next.BackTo(next.ends() - 1));
        past = std::move(next);
      } else {
        pick(0, 1) == 0 ? server.Kill() : server.LosePower(random());
      }
      ASSERT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
      for (const auto& [other, its] : known) {
        const auto info = server->loop->commands().Get(Key(other));
        ASSERT_EQ(info.ok() ? info->position : 0, its.now().position()) << other;
      }
    }
    for (const auto& [name, past] : known) {  // what is in their memory, too
      const Request request = Penalised({1, 2}, 3, name);
      OracleSession next = past.now();
      const std::vector<int32_t> said = Apply(server->options, request, next);
      EXPECT_EQ(server->Generate(request).tokens.at(0), said) << name;
    }
  }
  EXPECT_GT(rewinds, 200);
  EXPECT_GT(forks, 50);
  EXPECT_GT(checkpoints, 100);
  EXPECT_GT(edits, 200);
  EXPECT_GT(loads, 10);
  EXPECT_GT(cached, 10);
}

}  // namespace
}  // namespace mneme
