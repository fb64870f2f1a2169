// What goes with the past of a session is gone from the disk: after going back, after forgetting,
// and where something newer stands for it.
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/record.h"
#include "store/session_store.h"
#include "tests/store/failing_fs.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

constexpr char kErasedFolder[] = "/store";

class ErasingTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() {
    store_.reset();
    StoreReport report;
    auto opened = SessionStore::Open(files_, kErasedFolder, options_, report);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(report.damage.empty() && report.lost.empty());
    store_ = *std::move(opened);
  }
  SessionRecord Create(const std::string& name, Durability durability = Durability::kTurn) {
    const SessionRecord session = NamedSession(*store_, name, durability);
    EXPECT_EQ(store_->Apply({CreateSession{session}}), absl::OkStatus());
    return session;
  }
  // A turn of `tokens` tokens that says `secret`, and so does the answer to its request.
  void Feed(const SessionRecord& session, int tokens, const std::string& secret) {
    const int64_t begin = store_->Find(session.id)->fed_tokens;
    Turn turn = TokenTurn(begin, std::vector<int32_t>(static_cast<size_t>(tokens), 1));
    turn.facts = secret + " facts";
    AddTurn change = TurnOf(session.id, turn);
    change.request = RequestRecord{.owner = "owner",
                                   .key = "key of " + secret,
                                   .position = turn.end() + 1,
                                   .reply = secret + " reply"};
    EXPECT_EQ(store_->Apply({change}), absl::OkStatus());
  }
  SnapshotRecord Written(const SessionRecord& session, int64_t turn, int64_t position,
                         int64_t bytes = 100) {
    const SnapshotRecord snapshot = {store_->NewId(), position, turn, bytes};
    EXPECT_EQ(WriteSlab(files_, *store_, session, snapshot), absl::OkStatus());
    return snapshot;
  }
  SnapshotRecord Snapshot(const SessionRecord& session) {
    const SessionRecord now = *store_->Find(session.id);
    const SnapshotRecord snapshot = Written(session, now.turns, now.fed_tokens);
    EXPECT_EQ(store_->Apply({AddSnapshot{session.id, snapshot}}), absl::OkStatus());
    return snapshot;
  }
  // Forgets a range of what it was fed, and all that led to where it stands.
  absl::Status Forget(const SessionRecord& session, int64_t begin, int64_t end,
                      int64_t snapshot_bytes = 100) {
    const SessionRecord now = *store_->Find(session.id);
    const Turn turn = {.begin = now.fed_tokens,
                       .events = {RangeForgotten{begin, end}},
                       .pending_token = now.pending_token,
                       .facts = "forgot"};
    const SnapshotRecord snapshot = Written(session, now.turns + 1, now.fed_tokens, snapshot_bytes);
    return store_->Apply({TurnOf(session.id, turn), ForgetPast{session.id, snapshot, begin}});
  }
  // Files with that text, if the power fails now.
  int FilesWith(const std::string& text) {
    int files = 0;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      for (const auto& [path, bytes] : disk_.CrashImage(seed)->AllFiles()) {
        files += absl::StrContains(bytes, text) ? 1 : 0;
      }
    }
    return files;
  }

  PowerLossFileSystem disk_;
  FailingFileSystem files_{disk_};
  SessionStore::Options options_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(ErasingTest, GoingBackErasesWhatCameLater) {
  const SessionRecord a = Create("a");
  Feed(a, 10, "kept");
  Feed(a, 10, "dropped");
  const SnapshotRecord later = Snapshot(a);
  ASSERT_TRUE(store_->Apply({AddCheckpoint{a.id, {"a later name", 15, absl::UnixEpoch()}}}).ok());
  EXPECT_GT(FilesWith("dropped facts"), 0);
  ASSERT_EQ(store_->Apply({RewindSession{a.id, {.position = 10}}}), absl::OkStatus());
  for (const char* gone : {"dropped facts", "dropped reply", "key of dropped", "a later name"}) {
    EXPECT_EQ(FilesWith(gone), 0) << gone;
  }
  EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(later.id)));
  EXPECT_GT(FilesWith("kept facts"), 0);
}

// A token that was drawn and not fed, as rows have it.
constexpr int32_t kDrawn = 0x0abcdef1;
std::string InRows() {
  return std::move(RecordWriter().Varint(static_cast<uint64_t>(kDrawn) + 1)).Values();
}

TEST_F(ErasingTest, ATokenThatIsTakenBackIsErased) {
  enum class By { kRewind, kCut, kFork, kOtherToken, kNothingFed };
  for (const By by : {By::kRewind, By::kCut, By::kFork, By::kOtherToken, By::kNothingFed}) {
    const SessionRecord a = Create(absl::StrCat("a", static_cast<int>(by)));
    Feed(a, 4, "before");
    const SnapshotRecord older = Snapshot(a);
    Turn turn = TokenTurn(4, {1, 2, 3});
    turn.pending_token = kDrawn;
    ASSERT_EQ(store_->Apply({TurnOf(a.id, turn)}), absl::OkStatus());
    Turn again = {.begin = 7, .pending_token = kDrawn};  // a request that fed nothing
    ASSERT_EQ(store_->Apply({TurnOf(a.id, again)}), absl::OkStatus());
    const SnapshotRecord newer = Snapshot(a);
    ASSERT_GT(FilesWith(InRows()), 0);
    const int64_t bytes = store_->Find(a.id)->log_bytes;
    uint64_t id = a.id;
    if (by == By::kRewind) {
      ASSERT_EQ(store_->Apply({RewindSession{a.id, {.position = 7}}}), absl::OkStatus());
    } else if (by == By::kCut) {
      const RewindPoint point = {.turns = 3, .part = Turn{.begin = 7}, .fed_tokens = 7};
      ASSERT_EQ(store_->Apply({CutSession{a.id, point}, TurnOf(a.id, TokenTurn(7, {8, 9}))}),
                absl::OkStatus());
    } else if (by == By::kFork) {
      const SessionRecord child = NamedSession(*store_, "child");
      id = child.id;
      ASSERT_EQ(store_->Apply({ForkSession{a.id, child, RewindTarget{.position = 7}}}),
                absl::OkStatus());
      ASSERT_EQ(store_->Apply({DeleteSession{a.id}}), absl::OkStatus());
    } else {
      const Turn next = by == By::kOtherToken ? TokenTurn(7, {8, 9}) : Turn{.begin = 7};
      ASSERT_EQ(store_->Apply({TurnOf(a.id, next)}), absl::OkStatus());
      ASSERT_EQ(store_->Apply({AddCheckpoint{a.id, {"c", 7, absl::UnixEpoch()}}}),
                absl::OkStatus());
      ASSERT_EQ(store_->Apply({DropCheckpoint{a.id, "c"}}), absl::OkStatus()) << "erases";
    }
    const auto turns = store_->ReadTurns(id, 0, 100);
    ASSERT_TRUE(turns.ok()) << turns.status();
    int64_t logged = 0;
    for (const Turn& one : *turns) {
      EXPECT_NE(one.pending_token, kDrawn);
      logged += static_cast<int64_t>(Encode(one).size());
    }
    EXPECT_EQ(store_->Find(id)->log_bytes, logged) << bytes;
    if (by == By::kRewind || by == By::kCut) {
      EXPECT_EQ(FilesWith(InRows()), 0) << static_cast<int>(by);
      EXPECT_TRUE(disk_.AllFiles().contains(store_->SnapshotPath(older.id)));
      EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(newer.id)))
          << "among its last tokens";
    }
    if (by == By::kFork) {
      EXPECT_EQ(FilesWith(InRows()), 0);
      EXPECT_EQ(store_->ReadSnapshots(id)->size(), 1u);
    }
    ASSERT_EQ(store_->Apply({DeleteSession{id}}), absl::OkStatus());
    Open();
  }
}

TEST_F(ErasingTest, ATokenThatACheckpointHasIsKeptForIt) {
  const SessionRecord a = Create("a");
  Turn turn = TokenTurn(0, {1, 2, 3});
  turn.pending_token = kDrawn;
  ASSERT_EQ(store_->Apply({TurnOf(a.id, turn)}), absl::OkStatus());
  const CheckpointRecord there = {"there", 3, absl::UnixEpoch(), /*turns=*/1,
                                  /*has_pending_token=*/true};
  ASSERT_EQ(store_->Apply({AddCheckpoint{a.id, there}}), absl::OkStatus());
  ASSERT_EQ(store_->Apply({TurnOf(a.id, TokenTurn(3, {8, 9}))}), absl::OkStatus());
  ASSERT_EQ(store_->Apply({RewindSession{a.id, {.checkpoint = "there"}}}), absl::OkStatus());
  EXPECT_EQ(store_->Find(a.id)->pending_token, kDrawn);
}

TEST_F(ErasingTest, TurnsThatALongLogLosesAreErased) {
  options_.limits.log_bytes_per_session = 200;
  Open();
  const SessionRecord a = Create("a");
  for (int i = 0; i < 4; ++i) {
    Feed(a, 100, absl::StrCat("turn ", i));
    Snapshot(a);
  }
  EXPECT_EQ(store_->Find(a.id)->first_turn, 3);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(FilesWith(absl::StrCat("turn ", i, " facts")), 0) << i;
  EXPECT_GT(FilesWith("turn 2 facts"), 0) << "of the state that the log begins with";
  EXPECT_GT(FilesWith("turn 3 facts"), 0);
}

// Rows move between pages, and leave copies where they were.
TEST_F(ErasingTest, NoCopyIsLeftOfRowsThatHaveMoved) {
  std::mt19937 random(1);
  std::vector<std::pair<SessionRecord, std::string>> sessions;
  for (int step = 0; step < 150; ++step) {
    if (sessions.size() < 12 || random() % 2 == 0) {
      const std::string secret = absl::StrCat("secret ", step, ";");
      const SessionRecord session = Create(absl::StrCat("session ", step));
      Turn turn = TokenTurn(0, std::vector<int32_t>(1 + random() % 300, 1));
      turn.facts = secret + std::string(random() % 700, 'f');
      ASSERT_EQ(store_->Apply({TurnOf(session.id, turn)}), absl::OkStatus());
      sessions.emplace_back(session, secret);
      continue;
    }
    const auto deleted = sessions.begin() + static_cast<ptrdiff_t>(random() % sessions.size());
    ASSERT_EQ(store_->Apply({DeleteSession{deleted->first.id}}), absl::OkStatus());
    ASSERT_EQ(FilesWith(deleted->second), 0) << "step " << step;
    sessions.erase(deleted);
  }
  for (const auto& [session, secret] : sessions) EXPECT_GT(FilesWith(secret), 0) << secret;
}

TEST_F(ErasingTest, TheSnapshotThatALogBeginsWithStaysAsLongAsThat) {
  const SessionRecord a = Create("a");
  Feed(a, 10, "first");
  ASSERT_EQ(Forget(a, 0, 5), absl::OkStatus());
  const SnapshotRecord first = store_->ReadSnapshots(a.id)->at(0);
  for (int i = 0; i < 4; ++i) {
    Feed(a, 10, "next");
    Snapshot(a);
  }
  ASSERT_EQ(store_->ReadSnapshots(a.id)->size(), 3u);
  EXPECT_EQ(store_->ReadSnapshots(a.id)->front(), first);
  EXPECT_THAT(store_->Apply({RewindSession{a.id, {.position = 9}}}),
              Fails(absl::StatusCode::kOutOfRange,
                    "cannot go back to position 9: its log leads to positions 10 to 51"));
  EXPECT_EQ(store_->Apply({RewindSession{a.id, {.position = 12}}}), absl::OkStatus());
}

TEST_F(ErasingTest, ForgettingLeavesASnapshotAndNothingThatLedToIt) {
  const SessionRecord a = Create("a");
  Feed(a, 10, "before");
  Feed(a, 10, "secret");
  const SnapshotRecord old = Snapshot(a);
  ASSERT_TRUE(store_->Apply({AddCheckpoint{a.id, {"old name", 20, absl::UnixEpoch()}}}).ok());
  ASSERT_EQ(Forget(a, 11, 20), absl::OkStatus());
  for (const char* gone : {"before facts", "secret facts", "secret reply", "old name"}) {
    EXPECT_EQ(FilesWith(gone), 0) << gone;
  }
  EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(old.id)));
  Open();
  const SessionRecord now = *store_->Find(a.id);
  EXPECT_EQ(now.position(), 21);
  EXPECT_EQ(now.facts, "forgot");
  EXPECT_EQ(now.first_turn, now.turns);
  EXPECT_EQ(now.log_bytes, 0);
  EXPECT_EQ(store_->ReadSnapshots(a.id)->size(), 1u);
  // That there were such requests is still known, so that none is fed twice.
  EXPECT_EQ((*store_->FindRequest("owner", "key of secret"))->reply, "");
  EXPECT_EQ((*store_->FindRequest("owner", "key of before"))->reply, "before reply");
}

TEST_F(ErasingTest, ForgettingIsNotRefusedForWantOfBytes) {
  options_.limits.bytes_per_owner = 300;
  Open();
  const SessionRecord a = Create("a");
  Feed(a, 100, "secret");
  Snapshot(a);
  ASSERT_GT(store_->UsageOf("owner").bytes + 150, 300);
  EXPECT_EQ(Forget(a, 0, 50, /*snapshot_bytes=*/150), absl::OkStatus());
  EXPECT_EQ(store_->UsageOf("owner").bytes, 150);
}

TEST_F(ErasingTest, AForkKeepsWhatItsParentForgets) {
  const SessionRecord a = Create("a");
  Feed(a, 10, "secret");
  const SnapshotRecord shared = Snapshot(a);
  const SessionRecord b = NamedSession(*store_, "b");
  ASSERT_EQ(store_->Apply({ForkSession{a.id, b}}), absl::OkStatus());
  ASSERT_EQ(Forget(a, 0, 10), absl::OkStatus());
  EXPECT_TRUE(disk_.AllFiles().contains(store_->SnapshotPath(shared.id)));
  EXPECT_EQ(store_->ReadTurns(b.id, 0, 9)->size(), 1u);
  ASSERT_EQ(store_->Apply({DeleteSession{b.id}}), absl::OkStatus());
  EXPECT_EQ(FilesWith("secret facts"), 0);
  EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(shared.id)));
}

TEST_F(ErasingTest, WhatIsNotDurableIsParkedAnew) {
  const SessionRecord a = Create("a", Durability::kNone);
  const SnapshotRecord parked = Snapshot(a), after = Written(a, 0, 0);
  ASSERT_EQ(store_->Apply({ForgetPast{a.id, after, 0}}), absl::OkStatus());
  EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(parked.id)));
  EXPECT_TRUE(disk_.AllFiles().contains(store_->SnapshotPath(after.id)));
  EXPECT_TRUE(store_->Find(a.id)->parked);
}

TEST_F(ErasingTest, AnImportedStateIsWhereALogBegins) {
  const SessionRecord a = NamedSession(*store_, "a");
  Turn turn = {.events = {StateImported{.fed_tokens = 50}}, .pending_token = 3};
  const SnapshotRecord snapshot = Written(a, 1, 50);
  std::get<StateImported>(turn.events[0]).snapshot = snapshot.id;
  ASSERT_EQ(store_->Apply({CreateSession{a}, TurnOf(a.id, turn), ForgetPast{a.id, snapshot, 50}}),
            absl::OkStatus());
  Feed(a, 5, "next");
  Open();
  EXPECT_EQ(store_->Find(a.id)->fed_tokens, 55);
  EXPECT_EQ(store_->ReadTurns(a.id, 1, 9)->size(), 1u);
  EXPECT_FALSE(CanReach(*store_->Find(a.id), *store_->ReadSnapshots(a.id), 49));
  // Without the snapshot there is nothing.
  ASSERT_EQ(store_->Apply({DropDamagedSnapshot{a.id, snapshot.id}}), absl::OkStatus());
  EXPECT_EQ(store_->Find(a.id)->status, SessionStatus::kLost);
}

TEST_F(ErasingTest, AnswersThatGaveWayToNewerOnesAreErasedSoon) {
  options_.requests_kept = 2;
  options_.lazy = absl::Milliseconds(1);
  options_.erase_within = absl::ZeroDuration();
  Open();
  const SessionRecord a = Create("a");
  for (int i = 0; i < 5; ++i) Feed(a, 1, absl::StrCat("answer ", i, ";"));
  for (int tries = 0; tries < 2000 && FilesWith("answer 0; reply") > 0; ++tries) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(FilesWith("answer 0; reply"), 0);
  EXPECT_GT(FilesWith("answer 4; reply"), 0);
  // And with the end of the store at the latest.
  options_.erase_within = absl::Hours(1);
  Open();
  Feed(a, 1, "one more");
  store_.reset();
  EXPECT_EQ(FilesWith("answer 3; reply"), 0);
}

TEST_F(ErasingTest, ASnapshotWhoseFileCouldNotBeRemovedGoesWithTheNextCommit) {
  const SessionRecord a = Create("a");
  Feed(a, 1, "x");
  const std::string path = store_->SnapshotPath(Snapshot(a).id);
  files_.Fail(FailingFileSystem::Kind::kRemove, 0, absl::UnavailableError("injected"));
  EXPECT_THAT(store_->Apply({DeleteSession{a.id}}),
              Fails(absl::StatusCode::kUnavailable, "injected"));
  EXPECT_TRUE(disk_.AllFiles().contains(path));
  Create("b");
  EXPECT_FALSE(disk_.AllFiles().contains(path));
}

}  // namespace
}  // namespace mneme
