// Conversations in the store that were edited: what of their log stays, what is fed again, and what
// is left where the edit does not come to its end.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
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

using ::testing::ElementsAre;
using ::testing::Field;

constexpr int kMessage = 10, kAnswer = 4;
constexpr int kTurn = kMessage + kAnswer;

// A conversation, all of it.
using Told = std::vector<int32_t>;

void Say(Told& told, int which) {
  for (int i = 0; i < kMessage; ++i) told.push_back((which * 7 + i * 3 + 1) % 32);
}

Request Whole(const Told& told, int tokens = kAnswer,
              OnMismatch on_mismatch = OnMismatch::kReplace) {
  Request request = Greedy(told, tokens, "s");
  request.prompt.continued.clear();
  request.prompt.same_everywhere = true;
  request.whole_history = true;
  request.on_mismatch = on_mismatch;
  // What the model said counts, what was sent does not.
  request.sampling.frequency_penalty = 0.7f;
  return request;
}

// What a session says to a conversation that is sent to it as a whole.
std::vector<int32_t> Oracle(const HarnessOptions& options, const Told& told) {
  OracleSession session;
  session.FeedPrompt(told);
  return session.Generate(options, Whole(told), 0, 0);
}

Answer Ask(LoopHarness& h, Told& told, OnMismatch on_mismatch = OnMismatch::kReplace) {
  Answer answer = h.Generate(Whole(told, kAnswer, on_mismatch));
  EXPECT_EQ(answer.status(), absl::OkStatus());
  if (answer.status().ok()) {
    told.insert(told.end(), answer.tokens[0].begin(), answer.tokens[0].end());
  }
  return answer;
}

Told Talk(LoopHarness& h, int turns) {
  Told told;
  for (int turn = 0; turn < turns; ++turn) {
    Say(told, turn);
    Ask(h, told);
  }
  return told;
}

// The first `turns` of it, and another message.
Told Edited(const Told& told, int turns, int which) {
  Told edited(told.begin(), told.begin() + turns * kTurn);
  Say(edited, which);
  return edited;
}

void Mark(LoopHarness& h, const std::string& name) {
  bool done = false;
  h.loop->commands().CreateCheckpoint(Key("s"), name,
                                      [&](const absl::StatusOr<CheckpointInfo>& info) {
                                        EXPECT_EQ(info.status(), absl::OkStatus());
                                        done = true;
                                      });
  while (!done) h.Turn();
  h.TurnUntilStored();  // its snapshot
}

SessionRecord Stored(LoopHarness& h) { return h.store->Find("", "s").value(); }
int64_t Position(LoopHarness& h) { return h.loop->commands().Get(Key("s"))->position; }

// Three turns with a checkpoint, two more with another one, a sixth.
Told TalkWithCheckpoints(LoopHarness& h) {
  Told told = Talk(h, 3);
  Mark(h, "early");
  for (const int turn : {3, 4}) {
    Say(told, turn);
    Ask(h, told);
  }
  Mark(h, "late");
  Say(told, 5);
  Ask(h, told);
  return told;
}

enum class Place { kSlab, kHost, kStore };

class EditTest : public testing::TestWithParam<Place> {};

TEST_P(EditTest, BeginsWithTheNearestSnapshotAndKeepsWhatIsInFrontOfIt) {
  HarnessOptions options = Options(/*slots=*/2);
  if (GetParam() == Place::kHost) options.host_states = 4;
  Server server(options);
  const Told told = TalkWithCheckpoints(*server);
  if (GetParam() == Place::kStore) server.Restart();
  if (GetParam() == Place::kHost) {
    for (const char* other : {"a", "b"}) server->Generate(Greedy({5}, 1, other));
    server->TurnUntilQuiet();
    ASSERT_EQ(server->loop->commands().Get(Key("s"))->residence, Residence::kParked);
  }
  const int64_t before = Position(*server);
  const uint64_t id = Stored(*server).id;
  Told edited = Edited(told, 4, 9);
  const std::vector<int32_t> said = Oracle(options, edited);
  const Answer answer = Ask(*server, edited);
  EXPECT_EQ(answer.tokens.at(0), said);
  const Usage& usage = answer.last.usage;
  EXPECT_EQ(usage.rewound_from, before);
  EXPECT_EQ(usage.resumed_tokens, 3 * kTurn - 1) << "the early checkpoint's snapshot";
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_EQ(usage.prompt_tokens, 1 + kTurn + kMessage);
  EXPECT_EQ(usage.fed_tokens, usage.prompt_tokens + kAnswer - 1);
  EXPECT_EQ(usage.replayed_tokens, 0);
  const SessionRecord now = Stored(*server);
  EXPECT_EQ(now.id, id);
  EXPECT_EQ(now.position(), static_cast<int64_t>(edited.size()));
  EXPECT_THAT(*server->store->ReadCheckpoints(id),
              ElementsAre(Field(&CheckpointRecord::name, "early")));
  EXPECT_THAT(*server->store->ReadSnapshots(id),
              ElementsAre(Field(&SnapshotRecord::position, 3 * kTurn - 1)));
  EXPECT_EQ(server.snapshots(), 1) << "files of what is gone";
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Places, EditTest,
                         testing::Values(Place::kSlab, Place::kHost, Place::kStore));

TEST(EngineLoopEditTest, OfTheCacheAndTheStoreTheNearestIsTaken) {
  HarnessOptions options = Options();
  options.prefix_states = 64;
  options.engine.prefix_cache_least_tokens = 4;
  Server server(options);
  const Told told = TalkWithCheckpoints(*server);
  Told edited = Edited(told, 5, 9);
  const std::vector<int32_t> said = Oracle(options, edited);
  const Answer cached = Ask(*server, edited);
  EXPECT_EQ(cached.tokens.at(0), said);
  EXPECT_EQ(cached.last.usage.cached_tokens, 5 * kTurn - 1) << "both have it";
  EXPECT_EQ(cached.last.usage.resumed_tokens, 0);
  // A server that has just begun has nothing in its cache, and keeps what it loads there.
  server.Restart();
  edited = Edited(told, 4, 10);
  const std::vector<int32_t> anew = Oracle(options, edited);
  const Answer loaded = Ask(*server, edited);
  EXPECT_EQ(loaded.tokens.at(0), anew);
  EXPECT_EQ(loaded.last.usage.cached_tokens, 0);
  EXPECT_EQ(loaded.last.usage.resumed_tokens, 3 * kTurn - 1);
  Say(edited, 12);
  Ask(*server, edited);
  Told again = Edited(edited, 5, 11);
  EXPECT_GE(Ask(*server, again).last.usage.cached_tokens, 5 * kTurn - 1);
  EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
}

// As a server has it by default: a short chat has a snapshot at the end of each turn.
TEST(EngineLoopEditTest, AnEditOfAShortChatFeedsLittleByDefault) {
  for (const bool restarts : {false, true}) {
    HarnessOptions options = Options(4, /*snapshot_tokens=*/4096);
    options.engine.turn_snapshot_bytes_per_second = int64_t{2} << 20;
    options.store.limits.snapshots_per_session = 16;
    Server server(options);
    Told told;
    for (int turn = 0; turn < 20; ++turn) {
      Say(told, turn);
      Ask(*server, told);
      server->TurnUntilStored();
    }
    EXPECT_EQ(server.snapshots(), 16);
    if (restarts) server.Restart();
    Told edited = Edited(told, 9, 50);
    const std::vector<int32_t> said = Oracle(options, edited);
    const auto sent = static_cast<int64_t>(edited.size());
    const Answer answer = Ask(*server, edited);
    EXPECT_EQ(answer.tokens.at(0), said);
    const int64_t fed = answer.last.usage.fed_tokens - kAnswer;
    EXPECT_LE(8 * fed, sent) << fed << " of " << sent;
  }
}

TEST(EngineLoopEditTest, SnapshotsOfTurnsKeepToTheirBudget) {
  HarnessOptions options = Options(4, /*snapshot_tokens=*/4096);
  options.engine.turn_snapshot_bytes_per_second = 1;  // less than a state in any pause
  Server server(options);
  Talk(*server, 5);
  server->TurnUntilStored();
  EXPECT_EQ(server.snapshots(), 0);
}

// Also in the first message, and one edit after the other.
TEST(EngineLoopEditTest, ARestartRightAfterAnEditChangesNothing) {
  for (const bool restarts : {false, true}) {
    Server server(Options(4, /*snapshot_tokens=*/2 * kTurn));
    Told told = Talk(*server, 5);
    for (const int turn : {4, 2, 3, 1, 0}) {
      Told edited = Edited(told, std::min(turn, static_cast<int>(told.size()) / kTurn - 1),
                           turn == 0 ? 0 : 20);
      edited.back() ^= 1;
      const std::vector<int32_t> said = Oracle(server->options, edited);
      const Answer answer = Ask(*server, edited);
      EXPECT_EQ(answer.tokens.at(0), said) << turn;
      if (restarts) server.Restart();
      OracleSession session;
      session.FeedPrompt(Told(edited.begin(), edited.end() - kAnswer));
      session.Generate(server->options, Whole(edited), 0, 0);
      session.history.pop_back();
      session.pending.reset();
      Say(edited, 21);
      // What it said before the edit was sent with it, and what it said since was not.
      session.FeedPrompt({edited.end() - kMessage - 1, edited.end()});
      const std::vector<int32_t> next = session.Generate(server->options, Whole(edited), 0, 0);
      const Answer on = Ask(*server, edited, OnMismatch::kRefuse);
      EXPECT_EQ(on.tokens.at(0), next) << turn;
      EXPECT_EQ(on.last.usage.resumed_tokens, answer.last.session_position - 1);
      told = edited;
    }
    EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
  }
}

// With one token a step it can be told how far it is.
TEST(EngineLoopEditTest, ACancelledEditCountsFromWhereTheConversationsPart) {
  for (const int steps : {0, 2, kTurn / 2, kTurn + 3}) {
    HarnessOptions options = Options();
    options.engine.max_rows = options.engine.max_tokens_per_step = 1;
    Server server(options);
    const Told told = TalkWithCheckpoints(*server);
    const int64_t before = Position(*server);
    const Told edited = Edited(told, 4, 9);
    auto stream = server->Submit(Whole(edited)).value();
    // 15 tokens lie between the snapshot and the edit.
    const size_t begun = server->rows_per_step.size();
    while (server->rows_per_step.size() < begun + static_cast<size_t>(steps)) server->Turn();
    stream->Cancel();
    const Answer answer = server->Finish(*stream);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kCancelled);
    const bool counts = steps > kTurn + 1;
    for (const bool restarted : {false, true}) {
      if (restarted) server.Restart();
      EXPECT_EQ(Position(*server), answer.last.session_position);
    }
    if (!counts) {
      EXPECT_EQ(answer.last.session_position, before) << steps;
      EXPECT_EQ(server->store->ReadCheckpoints(Stored(*server).id)->size(), 2u);
    } else {
      EXPECT_EQ(answer.last.session_position, 3 * kTurn - 1 + steps);
    }
    Told on = counts ? edited : told;
    if (!counts) Say(on, 12);
    EXPECT_EQ(Ask(*server, on, OnMismatch::kRefuse).last.usage.rewound_from, 0);
  }
}

TEST(EngineLoopEditTest, DamagedSnapshotsAreLeftForTheLog) {
  Server server;
  const Told told = TalkWithCheckpoints(*server);
  server.Kill();
  server.DamageSnapshots();
  Told edited = Edited(told, 4, 9);
  const std::vector<int32_t> said = Oracle(server->options, edited);
  const Answer answer = Ask(*server, edited);
  EXPECT_EQ(answer.tokens.at(0), said);
  EXPECT_EQ(answer.last.usage.resumed_tokens, 0);
  EXPECT_EQ(answer.last.usage.prompt_tokens, 4 * kTurn + kMessage);
  EXPECT_EQ(Stored(*server).checkpoints, 1) << "the log leads there";
}

// A repetition of a request is told nothing that its session does not hold, and undoes nothing.
TEST(EngineLoopEditTest, RequestsThatAnEditTookBackAreRefusedWithThePositionOfToday) {
  for (const bool stored : {true, false}) {
    std::optional<Server> server;
    std::optional<LoopHarness> alone;
    HarnessOptions options = Options();
    options.prefix_states = stored ? 0 : 64;  // knows where they part
    options.engine.prefix_cache_least_tokens = 4;
    stored ? void(server.emplace(options)) : void(alone.emplace(options));
    const auto h = [&]() -> LoopHarness& { return stored ? **server : *alone; };
    Told told;
    std::vector<Request> asked;
    for (int turn = 0; turn < 4; ++turn) {
      Say(told, turn);
      Request request = Whole(told);
      request.idempotency_key = absl::StrCat("turn ", turn);
      asked.push_back(request);
      const Answer answer = h().Generate(request);
      told.insert(told.end(), answer.tokens.at(0).begin(), answer.tokens.at(0).end());
    }
    Told edited = Edited(told, 2, 9);
    Request edit = Whole(edited);
    edit.idempotency_key = "edit";
    const Answer first = h().Generate(edit);
    ASSERT_EQ(first.status(), absl::OkStatus());
    const int64_t position = first.last.session_position;
    for (const bool restarted : {false, true}) {
      if (restarted && !stored) break;
      if (restarted) server->LosePower(3);
      for (int turn = 0; turn < 4; ++turn) {
        const Answer again = h().Generate(asked[static_cast<size_t>(turn)]);
        if (turn < 2) {
          EXPECT_TRUE(again.last.replayed) << turn;
          EXPECT_EQ(again.last.session_position, (turn + 1) * kTurn);
        } else {
          EXPECT_EQ(ReasonOf(again.status()), kReasonKeyUndone) << turn << again.status();
          EXPECT_EQ(PositionOf(again.status()), position);
          EXPECT_FALSE(again.start.has_value());
        }
      }
      const Answer same = h().Generate(edit);
      EXPECT_TRUE(same.last.replayed);
      EXPECT_EQ(same.tokens, first.tokens);
      EXPECT_EQ(Position(h()), position) << "nothing was fed";
    }
  }
}

TEST(EngineLoopEditTest, AnEditThatDoesNotComeToItsEndUndoesNothing) {
  Server server;
  Told told;
  Say(told, 0);
  Request request = Whole(told);
  request.idempotency_key = "k";
  ASSERT_EQ(server->Generate(request).status(), absl::OkStatus());
  server.failing_->set_free_bytes(0);
  Told other;
  Say(other, 5);
  EXPECT_EQ(ReasonOf(server->Generate(Whole(other)).status()), kReasonNotDurable);
  server.failing_->set_free_bytes(int64_t{1} << 40);
  EXPECT_TRUE(server->Generate(request).last.replayed);
}

// The past has its snapshots too, the older the fewer: what an edit feeds does not grow with the
// conversation in front of it.
TEST(EngineLoopEditTest, AnEditFarBackFeedsLittleOfWhatIsInFrontOfIt) {
  constexpr int kTurns = 20;
  HarnessOptions options = Options(4, /*snapshot_tokens=*/kTurn);
  options.store.limits.snapshots_per_session = 8;
  for (const bool restarted : {false, true}) {
    for (const int turn : {19, 18, 16, 12, 9, 4}) {
      Server server(options);
      Told told;
      for (int i = 0; i < kTurns; ++i) {
        Say(told, i);
        Ask(*server, told);
        server->TurnUntilStored();
      }
      EXPECT_LE(server.snapshots(), 8);
      if (restarted) server.Restart();
      Told edited = Edited(told, turn, 30);
      const std::vector<int32_t> said = Oracle(options, edited);
      const Answer answer = Ask(*server, edited);
      EXPECT_EQ(answer.tokens.at(0), said) << turn;
      const int64_t fed = answer.last.usage.fed_tokens - kAnswer;
      // No more than a third of what lies between the edit and the end, by spaced_places.h, and the
      // message.
      EXPECT_LE(fed, (kTurns - turn) * kTurn / 3 + kTurn + kMessage) << turn;
    }
  }
}

// A log that begins with a snapshot knows what text that has read, and no tokens of it.
TEST(EngineLoopEditTest, ALogThatHasLostItsBeginningIsCutBehindItAlone) {
  for (const bool behind : {true, false}) {
    HarnessOptions options = Options(4, /*snapshot_tokens=*/kTurn);
    options.store.limits.log_bytes_per_session = 1;
    Server server(options);
    Told told;
    for (int turn = 0; turn < 8; ++turn) {
      Say(told, turn);
      Ask(*server, told);
      server->TurnUntilStored();
    }
    const SessionRecord before = Stored(*server);
    ASSERT_GT(before.first_turn, 3);
    Told edited = Edited(told, behind ? 7 : 2, 9);
    const std::vector<int32_t> said = Oracle(options, edited);
    const Answer answer = Ask(*server, edited);
    EXPECT_EQ(answer.tokens.at(0), said);
    EXPECT_EQ(answer.last.usage.rewound_from, before.position());
    EXPECT_EQ(answer.last.usage.resumed_tokens > 0, behind);
    if (behind) {
      EXPECT_GE(Stored(*server).first_turn, before.first_turn);
    } else {
      EXPECT_EQ(Stored(*server).first_turn, 0);
    }
    server.Restart();
    Say(edited, 30);
    EXPECT_EQ(Ask(*server, edited, OnMismatch::kRefuse).last.usage.rewound_from, 0);
  }
}

// Each operation of a kind fails in turn, and power is lost behind the edit. The session is then as
// before it, or as behind it, and that where the client saw its end.
TEST(EngineLoopEditTest, AFailingDiskLeavesTheOneOrTheOther) {
  using Kind = FailingFileSystem::Kind;
  int failed = 0, whole = 0;
  for (const Kind kind : {Kind::kOpen, Kind::kRead, Kind::kWrite, Kind::kTruncate, Kind::kSync,
                          Kind::kSyncDirectory, Kind::kRename, Kind::kRemove}) {
    for (int number = 0; number < 12; ++number) {
      SCOPED_TRACE(absl::StrCat("operation ", number, " of kind ", static_cast<int>(kind)));
      Server server;
      const Told told = TalkWithCheckpoints(*server);
      const int64_t before = Position(*server);
      server.Restart();
      server.failing_->Fail(kind, number, absl::UnavailableError("EIO"));
      const Told edited = Edited(told, 4, 9);
      const Answer answer = server->Generate(Whole(edited));
      const bool reached = server.failing_->count(kind) > number;
      server.failing_->Fail(kind, 1'000'000, absl::OkStatus());
      server.LosePower(static_cast<uint64_t>(number));
      const int64_t position = Position(*server);
      const auto behind = static_cast<int64_t>(edited.size()) + kAnswer;
      ASSERT_TRUE(position == before || position == behind) << position;
      if (answer.status().ok()) {
        EXPECT_EQ(position, behind);
      }
      failed += answer.status().ok() ? 0 : 1;
      whole += position == behind ? 1 : 0;
      Told on = told;
      if (position == behind) {
        on = edited;
        const std::vector<int32_t> said = Oracle(server->options, edited);
        on.insert(on.end(), said.begin(), said.end());
      }
      Say(on, 13);
      EXPECT_EQ(Ask(*server, on, OnMismatch::kRefuse).last.usage.rewound_from, 0);
      if (!reached) break;
    }
  }
  EXPECT_GT(failed, 2);
  EXPECT_GT(whole, 3);
}

// A search, or a state that comes, is left with its request, and nothing of it stays.
TEST(EngineLoopEditTest, RequestsThatLeaveWhileTheStoreIsReadLeaveTheSessionWhole) {
  for (int turns = 0; turns < 12; ++turns) {
    Server server;
    Told told = TalkWithCheckpoints(*server);
    const int64_t before = Position(*server);
    for (int leaver = 0; leaver < 3; ++leaver) {
      auto stream = server->Submit(Whole(Edited(told, 4, 9 + leaver))).value();
      for (int turn = 0; turn < turns; ++turn) {
        server->Turn();
        Answer so_far;
        LoopHarness::Read(*stream, so_far);
        if (so_far.start.has_value()) break;  // it is fed
      }
      stream->Cancel();
      const Answer answer = server->Finish(*stream);
      ASSERT_TRUE(answer.ended);
      if (answer.last.session_position == before) continue;
      EXPECT_GT(answer.last.usage.fed_tokens, 0);
      return;  // it was as far as that
    }
    server->TurnUntilStored();
    EXPECT_EQ(server->loop->CheckIntegrity(), absl::OkStatus());
    Say(told, 14);
    EXPECT_EQ(Ask(*server, told, OnMismatch::kRefuse).last.usage.rewound_from, 0);
    // The buffers that states come through are all there.
    for (int edit = 0; edit < 4; ++edit) {
      Told edited = Edited(told, 4, 15 + edit);
      EXPECT_EQ(Ask(*server, edited).last.usage.resumed_tokens, 3 * kTurn - 1);
    }
  }
}

}  // namespace
}  // namespace mneme
