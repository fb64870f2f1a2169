// A session store whose disk fails, is full, or has altered what was written to it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/session_store_harness.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

class SessionStoreFaultsTest : public SessionStoreTest {};

TEST_F(SessionStoreFaultsTest, EveryFailureOfTheDiskIsToldAndSurvived) {
  for (const Kind kind : {Kind::kWrite, Kind::kSync, Kind::kTruncate}) {
    for (const absl::Status& error :
         {absl::UnavailableError("EIO"), absl::ResourceExhaustedError("ENOSPC"),
          absl::FailedPreconditionError("EROFS")}) {
      for (int64_t number = 0;; ++number) {
        Open();
        const SessionRecord session = NamedSession(*store_, absl::StrCat("s", store_->NewId()));
        files_.Fail(kind, number, error);
        const absl::Status first =
            store_->Apply({CreateSession{session}, TurnOf(session.id, TokenTurn(0, {1, 2, 3}))});
        if (files_.count(kind) <= number) {
          EXPECT_EQ(first, absl::OkStatus());
          break;
        }
        // The last write is that of the mark of commits, which nobody waits for.
        if (kind == Kind::kWrite && first.ok()) {
          EXPECT_EQ(files_.count(kind), number + 1);
          Open();
          EXPECT_TRUE(report_.damage.empty());
          EXPECT_EQ(store_->Find("owner", session.name)->turns, 1);
          continue;
        }
        // A failed sync leaves unknown what is on the disk, so its error never reads as a full
        // one's.
        const bool is_full = kind != Kind::kSync && absl::IsResourceExhausted(error);
        const absl::StatusCode code =
            is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable;
        EXPECT_THAT(first, Fails(code, error.message())) << number;
        EXPECT_FALSE(store_->Find(session.id).has_value());
        EXPECT_EQ(store_->Apply({CreateSession{session}}), absl::OkStatus());
        Open();
        EXPECT_TRUE(report_.damage.empty());
        EXPECT_EQ(store_->Find("owner", session.name)->turns, 0);
      }
    }
  }
}

TEST_F(SessionStoreFaultsTest, NothingIsPromisedAfterAFailedSyncUntilAllIsWrittenAnew) {
  Open();
  const SessionRecord session = Create("a");
  files_.Fail(Kind::kSync, 0, absl::UnavailableError("EIO"), /*more=*/1);
  const std::vector<Change> turn = {TurnOf(session.id, TokenTurn(0, {1}))};
  EXPECT_THAT(store_->Apply(turn), Fails(absl::StatusCode::kUnavailable, "EIO"));
  EXPECT_THAT(store_->Apply(turn), Fails(absl::StatusCode::kUnavailable, "EIO"));
  EXPECT_EQ(store_->stats().written_anew, 0);
  EXPECT_EQ(store_->Apply(turn), absl::OkStatus());
  EXPECT_EQ(store_->stats().written_anew, 1);
  EXPECT_TRUE(disk_.AllFiles().contains("/store/catalogue.2.db"));
  EXPECT_FALSE(disk_.AllFiles().contains("/store/catalogue.1.db"));
}

TEST_F(SessionStoreFaultsTest, AFullDiskStillTakesDeletions) {
  Open();
  const SessionRecord a = Create("a");
  files_.set_free_bytes(1000);
  EXPECT_THAT(store_->Apply({TurnOf(a.id, TokenTurn(0, {1}))}),
              Fails(absl::StatusCode::kResourceExhausted, "1000 bytes are free"));
  const SessionRecord b = NamedSession(*store_, "b");
  EXPECT_EQ(store_->Apply({DeleteSession{a.id}}), absl::OkStatus());
  files_.set_free_bytes(int64_t{1} << 30);
  EXPECT_EQ(store_->Apply({CreateSession{b}}), absl::OkStatus());
}

TEST_F(SessionStoreFaultsTest, ADiskThatHasRoomAgainIsFoundThoughNobodyCommits) {
  options_.lazy = options_.probe_every = absl::Milliseconds(5);
  Open();
  const SessionRecord a = Create("a");
  files_.set_free_bytes(1000);
  EXPECT_FALSE(store_->Apply({TurnOf(a.id, TokenTurn(0, {1}))}).ok());
  EXPECT_FALSE(store_->KnownToBeFull().ok());
  EXPECT_FALSE(store_->stats().last_error.ok());
  // Room alone is not enough: nothing can be written.
  files_.Fail(Kind::kWrite, 0, absl::UnavailableError("the disk is broken"), 1 << 20);
  files_.set_free_bytes(int64_t{1} << 30);
  EXPECT_EQ(store_->KnownToBeFull(), absl::OkStatus());
  while (!absl::IsUnavailable(store_->stats().last_error)) absl::SleepFor(absl::Milliseconds(1));
  const int64_t commits = store_->stats().commits;
  files_.Fail(Kind::kWrite, -2, absl::OkStatus());
  while (!store_->stats().last_error.ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(store_->stats().commits, commits);
  EXPECT_EQ(CountFiles("probe.tmp"), 0);
}

TEST_F(SessionStoreFaultsTest, ADiskThatIsFullWhenItOpensIsKnownToBe) {
  Open();
  files_.set_free_bytes(1000);
  Open();
  EXPECT_THAT(store_->KnownToBeFull(),
              Fails(absl::StatusCode::kResourceExhausted, "1000 bytes are free"));
  EXPECT_FALSE(store_->stats().last_error.ok());
}

TEST_F(SessionStoreFaultsTest, AnAlteredTurnTakesItsSessionBackAndNoOther) {
  Open();
  const SessionRecord a = Create("a");
  const SessionRecord b = Create("b");
  Feed(a, {1, 2});
  Turn marked = TokenTurn(2, {3, 4});
  marked.facts = "facts of the second turn";
  ASSERT_TRUE(store_->Apply({TurnOf(a.id, marked)}).ok());
  Turn last = TokenTurn(4, {5});
  last.facts = "facts of the third";
  ASSERT_TRUE(store_->Apply({TurnOf(a.id, last)}).ok());
  Feed(b, {6});
  Open();  // moves all into the database
  store_.reset();
  Alter("/store/catalogue.1.db", marked.facts);
  Open();
  EXPECT_EQ(store_->Find(a.id)->fed_tokens, 5) << "opening does not read logs";
  EXPECT_THAT(store_->ReadTurns(a.id, 0, 10).status(),
              Fails(absl::StatusCode::kDataLoss, absl::StrCat("turn 1 of session ", a.id)));
  Feed(b, {7});  // mends first
  const SessionRecord found = *store_->Find(a.id);
  EXPECT_EQ(found.status, SessionStatus::kLive);
  EXPECT_EQ(found.fed_tokens, 2);
  EXPECT_EQ(found.turns, 1);
  EXPECT_EQ(store_->ReadTurns(a.id, 0, 10)->size(), 1u);
  EXPECT_EQ(store_->Find(b.id)->fed_tokens, 2);
  EXPECT_TRUE(disk_.AllFiles().contains("/store/catalogue.1.db.damaged"));
}

TEST_F(SessionStoreFaultsTest, ASnapshotBehindTheDamageKeepsAll) {
  Open();
  const SessionRecord a = Create("a");
  Turn marked = TokenTurn(0, {3, 4});
  marked.facts = "facts of the first turn";
  ASSERT_TRUE(store_->Apply({TurnOf(a.id, marked)}).ok());
  Feed(a, {5});
  Snapshot(a);
  Feed(a, {6});
  Open();
  store_.reset();
  Alter("/store/catalogue.1.db", marked.facts);
  Open();
  EXPECT_FALSE(store_->ReadTurns(a.id, 0, 10).ok());
  Create("b");
  EXPECT_EQ(store_->Find(a.id)->fed_tokens, 4);
  EXPECT_EQ(store_->Find(a.id)->first_turn, 2);
  EXPECT_EQ(store_->ReadTurns(a.id, 2, 10)->size(), 1u);
}

TEST_F(SessionStoreFaultsTest, ACatalogueThatIsNoneLeavesSnapshotsAndDoubt) {
  Open();
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  Snapshot(a);
  Create("b");
  Open();
  store_.reset();
  Alter("/store/catalogue.1.db", "SQLite format 3");
  Open();
  EXPECT_EQ(report_.set_aside, (std::vector<std::string>{"/store/catalogue.1.db-wal.damaged",
                                                         "/store/catalogue.1.db.damaged"}));
  ASSERT_EQ(report_.fallen_back.size(), 1u);
  EXPECT_EQ(store_->Find("owner", "a")->fed_tokens, 3);
  EXPECT_EQ(store_->ReadSnapshots(a.id)->size(), 1u);
  EXPECT_FALSE(store_->Find("owner", "b").has_value());
  EXPECT_TRUE(store_->names_in_doubt());
  StoreStats stats = store_->stats();
  EXPECT_TRUE(stats.names_in_doubt);
  EXPECT_EQ(stats.damaged, static_cast<int64_t>(report_.damage.size()));
  EXPECT_EQ(stats.fallen_back, 1);
  EXPECT_EQ(stats.written_anew, 1);
  Open();
  EXPECT_TRUE(store_->names_in_doubt());
  stats = store_->stats();
  EXPECT_TRUE(stats.names_in_doubt);
  EXPECT_EQ(stats.damaged + stats.fallen_back + stats.written_anew, 0) << "nothing new";
  ASSERT_TRUE(store_->TrustNames().ok());
  EXPECT_FALSE(store_->stats().names_in_doubt);
  Open();
  EXPECT_FALSE(store_->names_in_doubt());
}

TEST_F(SessionStoreFaultsTest, AFolderThatIsGoneTakesNoDeletions) {
  Open();
  const SessionRecord a = Create("a");
  files_.set_gone(true);
  EXPECT_THAT(store_->Apply({DeleteSession{a.id}}),
              Fails(absl::StatusCode::kUnavailable, "No such file"));
  EXPECT_THAT(store_->CheckRoom(1), Fails(absl::StatusCode::kUnavailable, "No such file"));
  EXPECT_FALSE(store_->stats().last_error.ok());
  files_.set_gone(false);
  EXPECT_EQ(store_->Apply({DeleteSession{a.id}}), absl::OkStatus());
}

TEST_F(SessionStoreFaultsTest, AnAlteredWalIsNoPowerLoss) {
  Open();
  const SessionRecord a = Create("a");
  for (int i = 0; i < 4; ++i) {
    Turn turn = TokenTurn(i, {5});
    turn.facts = absl::StrCat("facts of turn ", i);
    ASSERT_TRUE(store_->Apply({TurnOf(a.id, turn)}).ok());
  }
  const auto killed = disk_.KillImage();
  store_.reset();
  const std::string path = "/store/catalogue.1.db-wal";
  for (int damaged = 0; damaged < 4; ++damaged) {
    SCOPED_TRACE(damaged);
    PowerLossFileSystem copy;
    ASSERT_TRUE(copy.CreateDirectory("/store").ok());
    for (const auto& [name, bytes] : killed->AllFiles()) {
      if (name == "/store/commits") continue;  // a power loss may have taken it
      std::string altered = bytes;
      if (name == path) altered[bytes.find(absl::StrCat("facts of turn ", damaged))] = '#';
      const auto file = copy.Open(name, OpenMode::kCreate);
      ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span(altered))).ok());
    }
    StoreReport report;
    const auto store = SessionStore::Open(copy, kFolder, options_, report);
    ASSERT_TRUE(store.ok()) << store.status();
    const bool last = damaged == 3;  // as if the power had failed in it
    // Later commits have written the same pages again.
    EXPECT_EQ((*store)->Find(a.id)->turns, last ? 3 : 4);
    EXPECT_EQ((*store)->ReadTurns(a.id, 0, 9)->size(), last ? 3u : 4u);
    EXPECT_FALSE((*store)->names_in_doubt());
    EXPECT_FALSE((*store)->Find(a.id)->doubted_at.has_value());
    ASSERT_EQ(report.damage.size(), last ? 0u : 1u);
    if (last) continue;
    EXPECT_THAT(report.damage[0],
                Fails(absl::StatusCode::kDataLoss, "there are commits behind it; none is lost"));
    EXPECT_EQ(report.set_aside[0], path + ".damaged");
  }
}

// Cut at the end of each commit, and within each: an end of a WAL like any other.
TEST_F(SessionStoreFaultsTest, AShortenedWalIsNoPowerLoss) {
  Open();
  const SessionRecord a = Create("a");
  std::vector<size_t> ends;
  const std::string path = "/store/catalogue.1.db-wal";
  for (int i = 0; i < 4; ++i) {
    ends.push_back(disk_.AllFiles().at(path).size());
    ASSERT_TRUE(store_->Apply({TurnOf(a.id, TokenTurn(i, {5}))}).ok());
  }
  const auto killed = disk_.KillImage();
  store_.reset();
  const size_t whole = killed->AllFiles().at(path).size();
  for (size_t cut :
       {ends[0], ends[1], ends[3], ends[3] + 4096 + 24, whole - 1, size_t{32}, size_t{0}, whole}) {
    for (const bool again : {false, true}) {
      SCOPED_TRACE(absl::StrCat("cut to ", cut, " of ", whole));
      PowerLossFileSystem copy;
      ASSERT_TRUE(copy.CreateDirectory("/store").ok());
      for (const auto& [name, bytes] : killed->AllFiles()) {
        const auto file = copy.Open(name, OpenMode::kCreate);
        const std::string left = name == path ? bytes.substr(0, cut) : bytes;
        ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span(left))).ok());
      }
      StoreReport report;
      auto store = SessionStore::Open(copy, kFolder, options_, report);
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_EQ((*store)->names_in_doubt(), cut < whole);
      ASSERT_EQ(report.damage.size(), cut < whole ? 1u : 0u);
      if (cut == whole) continue;
      EXPECT_THAT(report.damage[0],
                  Fails(absl::StatusCode::kDataLoss, "the last commits are lost"));
      EXPECT_TRUE(!(*store)->Find(a.id).has_value() ||
                  (*store)->Find(a.id)->doubted_at.has_value());
      EXPECT_THAT(report.set_aside, testing::Contains(path + ".damaged"));
      if (cut == ends[3]) {
        EXPECT_EQ((*store)->Find(a.id)->fed_tokens, 3);
      }
      // It is told once, whether or not anything is committed before the next start.
      if (again) {
        ASSERT_EQ((*store)->Apply({CreateSession{NamedSession(**store, "b")}}), absl::OkStatus());
      }
      store->reset();
      StoreReport later;
      store = SessionStore::Open(copy, kFolder, options_, later);
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE(later.damage.empty());
      EXPECT_TRUE((*store)->names_in_doubt()) << "until somebody trusts them";
    }
  }
}

TEST_F(SessionStoreFaultsTest, APageOfRubbishTakesFewSessionsWithIt) {
  Open();
  constexpr int kSessions = 300;
  for (int i = 0; i < kSessions; ++i) Create(absl::StrCat("session ", i));
  for (const SessionRecord& one : store_->List(std::nullopt, "", {}, kSessions)) Feed(one, {1, 2});
  Open();
  store_.reset();
  const size_t pages = disk_.AllFiles().at("/store/catalogue.1.db").size() / 4096;
  ASSERT_GT(pages, 10u);
  for (size_t page = 2; page < pages; ++page) {
    PowerLossFileSystem copy;
    ASSERT_TRUE(copy.CreateDirectory("/store").ok());
    std::string bytes = disk_.AllFiles().at("/store/catalogue.1.db");
    bytes.replace(page * 4096, 4096, std::string(4096, '#'));
    const auto file = copy.Open("/store/catalogue.1.db", OpenMode::kCreate);
    ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span(bytes))).ok());
    StoreReport report;
    const auto store = SessionStore::Open(copy, kFolder, options_, report);
    ASSERT_TRUE(store.ok()) << page << store.status();
    // Opening does not read all: damage elsewhere is found when it is read, and mended by the next
    // commit.
    for (const SessionRecord& one : (*store)->List(std::nullopt, "", {}, kSessions)) {
      (void)(*store)->ReadTurns(one.id, 0, 10);
    }
    EXPECT_TRUE((*store)->Apply({CreateSession{NamedSession(**store, "new")}}).ok());
    int whole = 0;
    for (const SessionRecord& one : (*store)->List(std::nullopt, "session", {}, kSessions)) {
      if (one.status == SessionStatus::kLost) continue;
      EXPECT_EQ((*store)->ReadTurns(one.id, 0, 10)->size(), 1u);
      EXPECT_EQ(one.fed_tokens, 2);
      ++whole;
    }
    EXPECT_GT(whole, kSessions / 2) << page;
    EXPECT_TRUE(whole == kSessions || copy.AllFiles().contains("/store/catalogue.1.db.damaged"));
    if ((*store)->List(std::nullopt, "session", {}, kSessions).size() < kSessions) {
      EXPECT_TRUE((*store)->names_in_doubt()) << page;
    }
  }
}

TEST_F(SessionStoreFaultsTest, ADamagedSnapshotIsSetAside) {
  Open();
  const SessionRecord a = Create("a");
  Feed(a, {1});
  const SnapshotRecord snapshot = Snapshot(a);
  const std::string path = store_->SnapshotPath(snapshot.id);
  Alter(path, "bytes of a state");
  EXPECT_THAT(SlabReader::Open(files_, path).status(), Fails(absl::StatusCode::kDataLoss, path));
  EXPECT_EQ(store_->Apply({DropDamagedSnapshot{a.id, snapshot.id}}), absl::OkStatus());
  EXPECT_EQ(store_->Find(a.id)->status, SessionStatus::kLive) << "its log has everything";
  EXPECT_TRUE(disk_.AllFiles().contains(path + ".damaged"));
  EXPECT_TRUE(store_->ReadSnapshots(a.id)->empty());
}

}  // namespace
}  // namespace mneme
