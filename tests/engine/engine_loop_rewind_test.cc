// Sessions that go back: to any position of their log, exactly, and to checkpoints.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
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

// A session as it was after each of its turns.
class Past {
 public:
  const OracleSession& now() const { return ends_.back(); }
  void Add(OracleSession end) { ends_.push_back(std::move(end)); }
  size_t ends() const { return ends_.size(); }

  // At a position: the last turn that ended there, or as many tokens fed.
  OracleSession At(int64_t position) const { return Back(position).now(); }
  Past Back(int64_t position) const {
    Past past = *this;
    for (; !past.ends_.empty(); past.ends_.pop_back()) {
      if (past.now().position() == position && KeptPending(past.ends_.size() - 1)) return past;
      if (past.now().fed < position) break;
    }
    if (past.ends_.empty() || past.now().fed > position) past.ends_ = {OracleSession()};
    if (position > past.now().fed) past.ends_.push_back(PartOf(position));
    return past;
  }
  Past BackTo(size_t ends) const {
    Past past = *this;
    past.ends_.resize(ends);
    return past;
  }
  // Where so many tokens were fed, and none was pending.
  Past BackToFed(int64_t fed) const {
    Past past = *this;
    while (past.now().fed > fed) past.ends_.pop_back();
    if (past.now().fed < fed || past.now().pending.has_value()) past.ends_.push_back(PartOf(fed));
    return past;
  }

 private:
  // Whether the conversation went on from the token that was pending there.
  bool KeptPending(size_t end) const {
    const OracleSession& there = ends_[end];
    if (!there.pending.has_value()) return true;
    for (const OracleSession& next : std::span(ends_).subspan(end + 1)) {
      if (next.fed > there.fed) {
        return next.history[static_cast<size_t>(there.fed)].first == *there.pending;
      }
      if (!next.pending.has_value()) return false;
    }
    return true;
  }
  // As the turn went that fed the last of them.
  OracleSession PartOf(int64_t fed) const {
    const auto turn = std::find_if(ends_.begin(), ends_.end(),
                                   [&](const OracleSession& end) { return end.fed >= fed; });
    OracleSession part;
    for (int64_t i = 0; i < fed; ++i) {
      const auto& token = turn->history[static_cast<size_t>(i)];
      part.memory.Feed(token.first);
      part.history.push_back(token);
      ++part.fed;
    }
    return part;
  }

  std::vector<OracleSession> ends_ = {OracleSession()};
};

Request Penalised(std::vector<int32_t> prompt, int tokens, std::string session) {
  Request request = Greedy(std::move(prompt), tokens, std::move(session));
  request.sampling.frequency_penalty = 0.7f;
  request.sampling.presence_penalty = 0.3f;
  return request;
}

// What the request does to the session, and says.
std::vector<int32_t> Apply(const HarnessOptions& options, const Request& request,
                           OracleSession& session) {
  session.FeedPrompt(request.prompt.at_start);
  return session.Generate(options, request, 0, 0);
}

// The same of a whole conversation, in a session that goes back to where that parts from it.
std::vector<int32_t> ApplyWhole(const HarnessOptions& options, const Request& request, Past& past) {
  const std::vector<int32_t>& prompt = request.prompt.at_start;
  int64_t common = 0;
  while (common < past.now().fed && common + 1 < static_cast<int64_t>(prompt.size()) &&
         past.now().history[static_cast<size_t>(common)].first ==
             prompt[static_cast<size_t>(common)]) {
    ++common;
  }
  const bool goes_on = common == past.now().fed;
  if (!goes_on) past = past.BackToFed(common);
  OracleSession next = past.now();
  if (next.pending.has_value()) next.history.pop_back();
  next.pending.reset();
  // What was sent again is what a client sent.
  for (auto& token : next.history) token.second = token.second && goes_on;
  next.FeedPrompt({prompt.begin() + common, prompt.end()});
  std::vector<int32_t> said = next.Generate(options, request, 0, 0);
  past.Add(std::move(next));
  return said;
}

// Turns the loop until a command is done.
template <typename Answer>
Answer Await(LoopHarness& h, const std::function<void(std::function<void(const Answer&)>)>& run) {
  std::optional<Answer> answer;
  run([&](const Answer& given) { answer = given; });
  for (int turn = 0; turn < 10'000 && !answer.has_value(); ++turn) h.Turn();
  CHECK(answer.has_value()) << "the command does not end";
  return *answer;
}

absl::StatusOr<SessionInfo> Rewind(LoopHarness& h, const std::string& name, RewindTarget to) {
  return Await<absl::StatusOr<SessionInfo>>(
      h, [&](auto done) { h.loop->commands().Rewind(Key(name), to, done); });
}

absl::StatusOr<SessionInfo> ForkAt(LoopHarness& h, const std::string& name,
                                   const std::string& target, RewindTarget at) {
  return Await<absl::StatusOr<SessionInfo>>(h, [&](auto done) {
    h.loop->commands().ForkAt(Key(name), Key(target), absl::ZeroDuration(), at, done);
  });
}

absl::StatusOr<CheckpointInfo> Checkpoint(LoopHarness& h, const std::string& session,
                                          const std::string& name) {
  return Await<absl::StatusOr<CheckpointInfo>>(
      h, [&](auto done) { h.loop->commands().CreateCheckpoint(Key(session), name, done); });
}

absl::Status DropCheckpoint(LoopHarness& h, const std::string& session, const std::string& name) {
  return Await<absl::Status>(
      h, [&](auto done) { h.loop->commands().DeleteCheckpoint(Key(session), name, done); });
}

absl::Status Delete(LoopHarness& h, const std::string& name) {
  return Await<absl::Status>(h, [&](auto done) {
    const absl::Status status = h.loop->commands().Delete(Key(name), done);
    if (!status.ok()) done(status);
  });
}

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
TEST(EngineLoopRewindTest, RandomHistoriesAreTheOracles) {
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
      // Of where it is not any more, and of a pending token that was taken back.
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
