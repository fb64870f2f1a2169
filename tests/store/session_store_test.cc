#include "store/session_store.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/store/failing_fs.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

using Kind = FailingFileSystem::Kind;
constexpr char kFolder[] = "/store";

class SessionStoreTest : public testing::Test {
 protected:
  void Open() {
    store_.reset();
    report_ = {};
    files_.Fail(Kind::kOpen, -2, absl::OkStatus());
    auto opened = SessionStore::Open(files_, kFolder, options_, report_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  SessionRecord Create(const std::string& name, Durability durability = Durability::kTurn) {
    const SessionRecord session = NamedSession(*store_, name, durability);
    EXPECT_EQ(store_->Apply({CreateSession{session}}), absl::OkStatus());
    return session;
  }
  void Feed(const SessionRecord& session, std::vector<int32_t> tokens) {
    const int64_t begin = store_->Find(session.id)->fed_tokens;
    EXPECT_EQ(store_->Apply({TurnOf(session.id, TokenTurn(begin, std::move(tokens)))}),
              absl::OkStatus());
  }
  SnapshotRecord Written(const SessionRecord& session, int64_t bytes) {
    const SessionRecord now = *store_->Find(session.id);
    const SnapshotRecord snapshot = {store_->NewId(), now.fed_tokens, now.turns, bytes};
    EXPECT_EQ(WriteSlab(files_, *store_, session, snapshot), absl::OkStatus());
    return snapshot;
  }
  SnapshotRecord Snapshot(const SessionRecord& session) {
    const SnapshotRecord snapshot = Written(session, 100);
    EXPECT_EQ(store_->Apply({AddSnapshot{session.id, snapshot}}), absl::OkStatus());
    return snapshot;
  }
  int64_t CountFiles(const std::string& suffix) {
    const auto files = disk_.AllFiles();
    return std::count_if(files.begin(), files.end(),
                         [&](const auto& file) { return file.first.ends_with(suffix); });
  }
  // Alters bytes of a file, and of none other.
  void Alter(const std::string& path, const std::string& what) {
    const std::string bytes = disk_.AllFiles().at(path);
    const size_t at = bytes.find(what);
    ASSERT_NE(at, std::string::npos);
    const auto file = disk_.Open(path, OpenMode::kReadWrite);
    const std::string other(what.size(), '#');
    ASSERT_TRUE((*file)->Write(static_cast<int64_t>(at), std::as_bytes(std::span(other))).ok());
  }

  PowerLossFileSystem disk_;
  FailingFileSystem files_{disk_};
  SessionStore::Options options_;
  StoreReport report_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(SessionStoreTest, GoesOnAfterARestart) {
  Open();
  const SessionRecord session = Create("../../etc/passwd");
  Turn turn = TokenTurn(0, {1, 2, 300'000});
  turn.events.push_back(MemorySeeded{.seed = 11});
  turn.events.push_back(RangeForgotten{1, 2});
  turn.events.push_back(AdapterChosen{.adapter = 12});
  turn.events.push_back(StateImported{.snapshot = 13, .fed_tokens = 50});
  turn.facts = "facts";
  AddTurn change = TurnOf(session.id, turn);
  change.request = RequestRecord{.owner = "owner", .key = "key", .digest = 3, .reply = "text"};
  ASSERT_TRUE(store_->Apply({change}).ok());
  Open();
  const std::optional<SessionRecord> found = store_->Find("owner", "../../etc/passwd");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->id, session.id);
  EXPECT_EQ(found->fed_tokens, 50);
  EXPECT_EQ(found->position(), 51);
  EXPECT_EQ(found->facts, "facts");
  EXPECT_EQ(found->ttl, absl::InfiniteDuration());
  EXPECT_EQ(*store_->ReadTurns(session.id, 0, 10), std::vector<Turn>{turn});
  const auto request = store_->FindRequest("owner", "key");
  ASSERT_TRUE(request.ok() && request->has_value());
  EXPECT_EQ((*request)->reply, "text");
  EXPECT_EQ((*request)->session, session.id);
  EXPECT_FALSE(store_->FindRequest("other", "key")->has_value());
}

TEST_F(SessionStoreTest, ASeedStaysHoweverFarASessionGoesBack) {
  Open();
  SessionRecord session = NamedSession(*store_, "a");
  session.memory_seed = ~uint64_t{0};
  Turn turn = TokenTurn(0, {1, 2, 3});
  turn.events.insert(turn.events.begin(), MemorySeeded{.seed = *session.memory_seed});
  ASSERT_EQ(store_->Apply({CreateSession{session}, TurnOf(session.id, turn)}), absl::OkStatus());
  const SessionRecord fork = NamedSession(*store_, "fork");
  ASSERT_EQ(store_->Apply({ForkSession{session.id, fork, RewindTarget{.position = 0}},
                           RewindSession{session.id, {.position = 0}}}),
            absl::OkStatus());
  Open();
  for (const uint64_t id : {session.id, fork.id}) {
    EXPECT_EQ(store_->Find(id)->fed_tokens, 0);
    EXPECT_EQ(store_->Find(id)->memory_seed, session.memory_seed);
  }
  // Beside what was lost, too.
  SessionRecord doubted = *store_->Find(session.id);
  doubted.doubted_at = 7;
  for (const bool has_seed : {true, false}) {
    if (!has_seed) doubted.memory_seed.reset();
    const std::string record = Encode(doubted).Seal("row");
    const auto read = DecodeSession(*RecordReader::Open(record, "row"), "row");
    ASSERT_EQ(read.status(), absl::OkStatus());
    EXPECT_EQ(read->doubted_at, 7);
    EXPECT_EQ(read->memory_seed, doubted.memory_seed);
  }
}

TEST_F(SessionStoreTest, ABatchIsWholeOrAbsent) {
  Open();
  const SessionRecord session = NamedSession(*store_, "a");
  EXPECT_THAT(store_->Apply({CreateSession{session}, TurnOf(session.id, TokenTurn(9, {1}))}),
              Fails(absl::StatusCode::kInvalidArgument, "stands at 0 tokens fed, the turn at 9"));
  EXPECT_FALSE(store_->Find(session.id).has_value());
  Open();
  EXPECT_FALSE(store_->Find("owner", "a").has_value());
}

TEST_F(SessionStoreTest, BatchesThatWaitShareACommit) {
  Open();
  std::vector<SessionRecord> sessions;
  for (int i = 0; i < 50; ++i) sessions.push_back(Create(absl::StrCat("s", i)));
  // The first holds the disk up, until all others are queued.
  absl::Notification held;
  absl::Notification go;
  disk_.before_change = [&] {
    if (!held.HasBeenNotified()) held.Notify();
    go.WaitForNotification();
  };
  const int64_t before = store_->stats().commits;
  absl::BlockingCounter left(50);
  for (size_t i = 0; i < sessions.size(); ++i) {
    ASSERT_TRUE(store_
                    ->Submit({TurnOf(sessions[i].id, TokenTurn(0, {1}))},
                             [&](const absl::Status& status) {
                               EXPECT_EQ(status, absl::OkStatus());
                               left.DecrementCount();
                             })
                    .ok());
    if (i == 0) held.WaitForNotification();
  }
  go.Notify();
  left.Wait();
  disk_.before_change = nullptr;
  EXPECT_EQ(store_->stats().commits - before, 2);
  EXPECT_EQ(store_->stats().turns, 50);
}

TEST_F(SessionStoreTest, WhatComesBehindSeveralWaitsForMore) {
  options_.gather = absl::Seconds(3600);
  options_.batches_per_commit = 3;
  Open();
  const auto add = [this](absl::BlockingCounter& left) {
    ASSERT_TRUE(store_
                    ->Submit({CreateSession{NamedSession(
                                 *store_, absl::StrCat("s", store_->NewId()), Durability::kTurn)}},
                             [&left](const absl::Status& status) {
                               EXPECT_EQ(status, absl::OkStatus());
                               left.DecrementCount();
                             })
                    .ok());
  };
  // One alone, and one behind it, are held up by nothing.
  const int64_t before = store_->stats().commits;
  for (int i = 0; i < 2; ++i) {
    absl::BlockingCounter left(1);
    add(left);
    left.Wait();
  }
  EXPECT_EQ(store_->stats().commits - before, 2);
  // Three that fell together, then three one after the other, which are waited for.
  absl::Notification held;
  absl::Notification go;
  disk_.before_change = [&] {
    if (!held.HasBeenNotified()) held.Notify();
    go.WaitForNotification();
  };
  absl::BlockingCounter together(4);
  add(together);
  held.WaitForNotification();
  for (int i = 0; i < 3; ++i) add(together);
  go.Notify();
  together.Wait();
  disk_.before_change = nullptr;
  EXPECT_EQ(store_->stats().commits - before, 4);
  absl::BlockingCounter apart(3);
  for (int i = 0; i < 3; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
    add(apart);
  }
  apart.Wait();
  EXPECT_EQ(store_->stats().commits - before, 5);
  store_.reset();  // Waits for nobody.
}

TEST_F(SessionStoreTest, AFullQueueRefuses) {
  options_.queue_batches = 0;
  Open();
  EXPECT_THAT(store_->Submit({}, [](const absl::Status&) {}),
              Fails(absl::StatusCode::kResourceExhausted, "takes no more"));
}

TEST_F(SessionStoreTest, EveryFailureOfTheDiskIsToldAndSurvived) {
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
        // What a failed sync has covered is unknown, whatever it says.
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

TEST_F(SessionStoreTest, NothingIsPromisedAfterAFailedSyncUntilAllIsWrittenAnew) {
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

TEST_F(SessionStoreTest, AFullDiskStillTakesDeletions) {
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

TEST_F(SessionStoreTest, ADiskThatHasRoomAgainIsFoundThoughNobodyCommits) {
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

TEST_F(SessionStoreTest, ADiskThatIsFullWhenItOpensIsKnownToBe) {
  Open();
  files_.set_free_bytes(1000);
  Open();
  EXPECT_THAT(store_->KnownToBeFull(),
              Fails(absl::StatusCode::kResourceExhausted, "1000 bytes are free"));
  EXPECT_FALSE(store_->stats().last_error.ok());
}

TEST_F(SessionStoreTest, AnAlteredTurnTakesItsSessionBackAndNoOther) {
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

TEST_F(SessionStoreTest, ASnapshotBehindTheDamageKeepsAll) {
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

TEST_F(SessionStoreTest, ACatalogueThatIsNoneLeavesSnapshotsAndDoubt) {
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

TEST_F(SessionStoreTest, ModelsAreToldApartAndHaveNames) {
  Open();
  std::vector<SessionRecord> sessions;
  for (const uint64_t model : {1, 2, 2, 3}) {
    SessionRecord session = NamedSession(*store_, absl::StrCat("s", sessions.size()));
    session.model = model;
    ASSERT_EQ(store_->Apply({CreateSession{session}}), absl::OkStatus());
    sessions.push_back(session);
  }
  ASSERT_EQ(store_->Apply({NameModel{2, "old"}, NameModel{3, "three"}}), absl::OkStatus());
  ASSERT_EQ(store_->Apply({NameModel{2, "two"}}), absl::OkStatus());
  ASSERT_EQ(store_->Apply({ChangeSession{.session = sessions[3].id, .lost = true}}),
            absl::OkStatus());
  const auto check = [&] {
    const SessionTotals totals = store_->TotalsFor(2);
    EXPECT_EQ(totals.all, 4);
    EXPECT_EQ(totals.lost, 1);
    EXPECT_EQ(totals.of_other_models, 1);
    EXPECT_EQ(store_->TotalsFor(7).of_other_models, 3);
    EXPECT_EQ(store_->NameOfModel(1), "");
    EXPECT_EQ(store_->NameOfModel(2), "two");
    EXPECT_EQ(store_->NameOfModel(3), "three");
  };
  check();
  Open();
  check();
  files_.Fail(Kind::kSync, 0, absl::UnavailableError("EIO"));
  EXPECT_FALSE(store_->Apply({NameModel{1, "one"}}).ok());
  ASSERT_EQ(store_->Apply({ChangeSession{.session = sessions[0].id}}), absl::OkStatus());
  ASSERT_EQ(store_->stats().written_anew, 1);
  Open();
  check();
  ASSERT_EQ(store_->Apply({DeleteSession{sessions[0].id}}), absl::OkStatus());
  EXPECT_EQ(store_->TotalsFor(2).of_other_models, 0);
}

TEST_F(SessionStoreTest, SessionsOfAnEarlierIdentityGoToTheFirstThatAsks) {
  Open();
  std::vector<SessionRecord> sessions;
  for (const uint64_t model : {1, 1, 2}) {
    SessionRecord session = NamedSession(*store_, absl::StrCat("s", sessions.size()));
    session.model = model;
    ASSERT_EQ(store_->Apply({CreateSession{session}}), absl::OkStatus());
    sessions.push_back(session);
  }
  EXPECT_TRUE(store_->HasSessionsOf(1));
  ASSERT_EQ(store_->Apply({TakeOverModel{1, 11}}), absl::OkStatus());
  ASSERT_EQ(store_->Apply({TakeOverModel{1, 12}}), absl::OkStatus());  // too late
  const auto check = [&] {
    EXPECT_FALSE(store_->HasSessionsOf(1));
    EXPECT_FALSE(store_->HasSessionsOf(12));
    EXPECT_EQ(store_->TotalsFor(11).of_other_models, 1);
    EXPECT_EQ(store_->Find(sessions[0].id)->model, 11u);
    EXPECT_EQ(store_->Find(sessions[2].id)->model, 2u);
    EXPECT_EQ(store_->SuccessorOf(1), 11u);
    EXPECT_EQ(store_->SuccessorOf(2), 2u);
  };
  check();
  Open();
  check();
  Feed(sessions[0], {1, 2});  // its row is written anew
  check();
  Open();
  check();
}

TEST_F(SessionStoreTest, AFolderThatIsGoneTakesNoDeletions) {
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

TEST_F(SessionStoreTest, AnAlteredWalIsNoPowerLoss) {
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
TEST_F(SessionStoreTest, AShortenedWalIsNoPowerLoss) {
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

TEST_F(SessionStoreTest, APageOfRubbishTakesFewSessionsWithIt) {
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
    // What opening has not read is found when it is, and mended by the next commit.
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

TEST_F(SessionStoreTest, ANewerStoreIsLeftAlone) {
  Open();
  store_.reset();
  ASSERT_TRUE(
      (*Database::Open(disk_, "/store/catalogue.1.db"))->Execute("PRAGMA user_version = 2").ok());
  EXPECT_THAT(
      SessionStore::Open(files_, kFolder, options_, report_).status(),
      Fails(absl::StatusCode::kFailedPrecondition, "is of version 2, this program reads up to 1"));
  EXPECT_TRUE(disk_.AllFiles().contains("/store/catalogue.1.db"));
}

TEST_F(SessionStoreTest, ADamagedSnapshotIsSetAside) {
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

TEST_F(SessionStoreTest, LongLogsLoseWhatTwoSnapshotsStandFor) {
  options_.limits.log_bytes_per_session = 50;
  Open();
  const SessionRecord a = Create("a");
  const std::vector<int32_t> tokens(40, 1);
  std::vector<SnapshotRecord> snapshots;
  for (int i = 0; i < 4; ++i) {
    Feed(a, tokens);
    snapshots.push_back(Snapshot(a));
  }
  EXPECT_EQ(store_->Find(a.id)->first_turn, 3);
  EXPECT_THAT(*store_->ReadSnapshots(a.id),
              testing::ElementsAre(testing::Field(&SnapshotRecord::id, snapshots[2].id),
                                   testing::Field(&SnapshotRecord::id, snapshots[3].id)));
  EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(snapshots[0].id)));
  EXPECT_THAT(store_->Apply({RewindSession{a.id, {.position = 100}}}),
              Fails(absl::StatusCode::kOutOfRange,
                    "cannot go back to position 100: its log leads to positions 120 to 161"));
  EXPECT_EQ(store_->Apply({RewindSession{a.id, {.position = 130}}}), absl::OkStatus());
  EXPECT_EQ(store_->Apply({DropDamagedSnapshot{a.id, snapshots[2].id}}), absl::OkStatus());
  EXPECT_EQ(store_->Find(a.id)->status, SessionStatus::kLost);
}

TEST_F(SessionStoreTest, CheckpointsKeepTheirSnapshots) {
  Open();
  const SessionRecord a = Create("a");
  Feed(a, {1});
  const SnapshotRecord first = Snapshot(a);
  ASSERT_TRUE(store_->Apply({AddCheckpoint{a.id, {"start", 1, absl::UnixEpoch()}}}).ok());
  EXPECT_THAT(store_->Apply({AddCheckpoint{a.id, {"start", 1, absl::UnixEpoch()}}}),
              Fails(absl::StatusCode::kAlreadyExists, "checkpoint start"));
  for (int i = 0; i < 3; ++i) {
    Feed(a, {2});
    Snapshot(a);
  }
  EXPECT_EQ(store_->ReadSnapshots(a.id)->front().id, first.id);
  EXPECT_EQ(store_->ReadCheckpoints(a.id)->size(), 1u);
  ASSERT_TRUE(store_->Apply({DropCheckpoint{a.id, "start"}}).ok());
  EXPECT_EQ(store_->ReadSnapshots(a.id)->size(), 2u);
}

TEST_F(SessionStoreTest, SnapshotsAreSpacedOverThePast) {
  options_.limits.snapshots_per_session = 5;
  Open();
  const SessionRecord a = Create("a");
  std::vector<int64_t> kept;
  for (int i = 0; i < 16; ++i) {
    Feed(a, std::vector<int32_t>(10, 1));
    Snapshot(a);
    kept.clear();
    const auto snapshots = store_->ReadSnapshots(a.id);
    for (const SnapshotRecord& one : *snapshots) kept.push_back(one.position);
    EXPECT_EQ(store_->Find(a.id)->snapshot_bytes, 100 * static_cast<int64_t>(kept.size()));
  }
  EXPECT_EQ(kept.size(), 5u);
  EXPECT_EQ(kept[3], 150);
  EXPECT_EQ(kept[4], 160);
  for (int i = 0; i < 3; ++i) EXPECT_GE(kept[i + 1] - kept[i], kept[i + 2] - kept[i + 1]) << i;
  EXPECT_LE(kept[0], 110) << "and none lies close to the next";
  EXPECT_EQ(CountFiles(".slab"), 5);
  Open();
  EXPECT_EQ(store_->ReadSnapshots(a.id)->size(), 5u);
  options_.limits.snapshots_per_session = 2;
  Open();
  Feed(a, {1});
  Snapshot(a);
  EXPECT_EQ(store_->ReadSnapshots(a.id)->size(), 2u) << "as few as are asked for now";
}

TEST_F(SessionStoreTest, ALongLogBeginsAtTheOldestSnapshotThatItsBoundLeaves) {
  options_.limits.snapshots_per_session = 6;
  options_.limits.log_bytes_per_session = 400;
  Open();
  const SessionRecord a = Create("a");
  for (int i = 0; i < 24; ++i) {
    Feed(a, std::vector<int32_t>(40, 1));
    Snapshot(a);
    const SessionRecord now = *store_->Find(a.id);
    EXPECT_LE(now.log_bytes, 400) << i;
    const auto snapshots = store_->ReadSnapshots(a.id);
    if (now.first_turn > 0) {
      EXPECT_EQ(snapshots->front().turn, now.first_turn) << "older ones lead nowhere";
      EXPECT_LE(now.first_turn, now.turns - 3) << "no more than has to go";
    }
  }
  EXPECT_GT(store_->Find(a.id)->first_turn, 0);
}

TEST_F(SessionStoreTest, SnapshotsOfThePastGiveWayToWhatSessionsNeed) {
  options_.limits.snapshots_per_session = 8;
  options_.limits.bytes_per_owner = 2000;
  Open();
  const SessionRecord a = Create("a");
  for (int i = 0; i < 12; ++i) {
    Feed(a, {1});
    Snapshot(a);
  }
  const auto count = [&](const SessionRecord& session) {
    return store_->ReadSnapshots(session.id)->size();
  };
  EXPECT_EQ(count(a), 8u);
  // More than a half: the next one of a session leaves it what it needs.
  const SessionRecord b = Create("b");
  for (int i = 0; i < 6; ++i) {
    Feed(b, {1});
    Snapshot(b);
  }
  EXPECT_LE(count(b), 3u);
  EXPECT_EQ(count(a), 8u) << "until it has another one itself";
  // Of those that are there, the session's own go before it is refused anything.
  const SnapshotRecord large = Written(a, 900);
  ASSERT_EQ(store_->Apply({AddSnapshot{a.id, large}}), absl::OkStatus());
  EXPECT_EQ(count(a), 3u) << "the two newest, when it came";
  EXPECT_LE(store_->UsageOf("owner").bytes, 2000);
}

TEST_F(SessionStoreTest, ForksShareSnapshotsUntilTheLastIsDeleted) {
  Open();
  const SessionRecord a = Create("a");
  Feed(a, {1, 2});
  const std::string path = store_->SnapshotPath(Snapshot(a).id);
  Feed(a, {3});
  const SessionRecord b = NamedSession(*store_, "b");
  EXPECT_EQ(store_->Apply({ForkSession{a.id, b, RewindTarget{.position = 1}}}), absl::OkStatus());
  EXPECT_EQ(store_->Find(b.id)->fed_tokens, 1);
  const SessionRecord c = NamedSession(*store_, "c");
  EXPECT_EQ(store_->Apply({ForkSession{a.id, c}}), absl::OkStatus());
  EXPECT_EQ(*store_->ReadTurns(c.id, 0, 9), *store_->ReadTurns(a.id, 0, 9));
  EXPECT_EQ(store_->Apply({DeleteSession{a.id}}), absl::OkStatus());
  Open();
  EXPECT_EQ(report_.orphans_removed, 0);
  EXPECT_TRUE(disk_.AllFiles().contains(path));
  EXPECT_EQ(store_->Apply({DeleteSession{c.id}}), absl::OkStatus());
  EXPECT_FALSE(disk_.AllFiles().contains(path));
}

TEST_F(SessionStoreTest, WhatIsNotDurableIsLostByNameAndPosition) {
  Open();
  const SessionRecord a = Create("a", Durability::kNone);
  const SessionRecord b = Create("b", Durability::kNone);
  for (const SessionRecord& session : {a, b}) {
    ASSERT_TRUE(store_
                    ->Apply({AddTurn{session.id, Turn{.begin = 0, .pending_token = 1}, 500,
                                     absl::UnixEpoch(), std::nullopt}})
                    .ok());
  }
  Snapshot(b);
  Open();
  ASSERT_EQ(report_.lost.size(), 1u);
  EXPECT_EQ(store_->Find(a.id)->status, SessionStatus::kLost);
  EXPECT_EQ(store_->Find(a.id)->position(), 501);
  EXPECT_EQ(store_->Find(b.id)->status, SessionStatus::kLive);
  EXPECT_THAT(store_->Apply({TurnOf(a.id, TokenTurn(500, {1}))}),
              Fails(absl::StatusCode::kFailedPrecondition, "was lost at position 501"));
  // Once it goes on, its snapshot is not all of it any more.
  ASSERT_TRUE(store_
                  ->Apply({AddTurn{b.id, Turn{.begin = 500, .pending_token = 1}, 600,
                                   absl::UnixEpoch(), std::nullopt}})
                  .ok());
  Open();
  EXPECT_EQ(store_->Find(b.id)->status, SessionStatus::kLost);
  EXPECT_EQ(store_->Apply({DeleteSession{a.id}, CreateSession{NamedSession(*store_, "a")}}),
            absl::OkStatus());
}

TEST_F(SessionStoreTest, OwnersHaveLimits) {
  options_.limits.sessions_per_owner = 2;
  options_.limits.bytes_per_owner = 300;
  Open();
  const SessionRecord a = Create("a");
  Create("b");
  EXPECT_THAT(store_->Apply({CreateSession{NamedSession(*store_, "c")}}),
              Fails(absl::StatusCode::kResourceExhausted, "has 2 stored sessions"));
  EXPECT_THAT(store_->Apply({TurnOf(a.id, TokenTurn(0, std::vector<int32_t>(400, 1)))}),
              Fails(absl::StatusCode::kResourceExhausted, "of 300 allowed"));
  EXPECT_THAT(store_->Apply({CreateSession{NamedSession(*store_, "a")}}),
              Fails(absl::StatusCode::kAlreadyExists, "there is a session a already"));
}

TEST_F(SessionStoreTest, WhatIsToldOfBytesIsWhatLimitsCount) {
  Open();
  const auto check = [&] {
    OwnerUsage sum;
    for (const SessionRecord& session : store_->List(std::nullopt, "", {}, 100)) {
      ++sum.sessions;
      sum.bytes += store_->StoredBytesOf(session.owner, session.name);
      sum.checkpoints += session.checkpoints;
    }
    const OwnerUsage all = store_->UsageOfAll();
    EXPECT_EQ(all.sessions, sum.sessions);
    EXPECT_EQ(all.bytes, sum.bytes);
    EXPECT_EQ(all.checkpoints, sum.checkpoints);
    EXPECT_EQ(all.bytes, store_->UsageOf("owner").bytes + store_->UsageOf("other").bytes);
  };
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  const int64_t log = store_->StoredBytesOf("owner", "a");
  EXPECT_EQ(log, static_cast<int64_t>(Encode((*store_->ReadTurns(a.id, 0, 1))[0]).size()));
  Snapshot(a);  // of 100 bytes
  EXPECT_EQ(store_->StoredBytesOf("owner", "a"), log + 100);
  EXPECT_EQ(store_->StoredBytesOf("owner", "none"), 0);
  check();
  ASSERT_EQ(store_->Apply({AddCheckpoint{a.id, {.name = "c", .position = 3}}}), absl::OkStatus());
  SessionRecord b = NamedSession(*store_, "b");
  b.owner = "other";
  ASSERT_EQ(store_->Apply({CreateSession{b}}), absl::OkStatus());
  Feed(b, {1});
  const SessionRecord fork = NamedSession(*store_, "fork");
  ASSERT_EQ(store_->Apply({ForkSession{a.id, fork}}), absl::OkStatus());
  EXPECT_EQ(store_->StoredBytesOf("owner", "fork"), log + 100) << "though they share the file";
  Feed(a, {4});
  Snapshot(a);
  check();
  // The message has the same number.
  const int64_t before = store_->UsageOf("owner").bytes;
  options_.limits.bytes_per_owner = before;
  Open();
  EXPECT_EQ(store_->UsageOf("owner").bytes, before);
  check();
  EXPECT_THAT(store_->Apply({TurnOf(fork.id, TokenTurn(3, std::vector<int32_t>(400, 5)))}),
              Fails(absl::StatusCode::kResourceExhausted,
                    absl::StrCat(" ", before, " bytes stored of ", before, " allowed")));
  ASSERT_EQ(store_->Apply({RewindSession{a.id, {.position = 0}}}), absl::OkStatus());
  EXPECT_EQ(store_->StoredBytesOf("owner", "a"), 0);
  check();
  ASSERT_EQ(store_->Apply({DeleteSession{a.id}, DeleteSession{b.id}, DeleteSession{fork.id}}),
            absl::OkStatus());
  EXPECT_EQ(store_->UsageOfAll().sessions, 0);
  EXPECT_EQ(store_->UsageOfAll().bytes, 0);
  check();
}

TEST_F(SessionStoreTest, AHugeTurnIsRefusedAndNobodyElse) {
  Open();
  const SessionRecord a = Create("a");
  AddTurn huge = TurnOf(a.id, TokenTurn(0, {1}));
  huge.request = RequestRecord{.key = "key", .reply = std::string(size_t{65} << 20, 'x')};
  EXPECT_THAT(store_->Apply({huge}),
              Fails(absl::StatusCode::kInvalidArgument, "a row has room for"));
  EXPECT_EQ(store_->stats().written_anew, 0);
  Feed(a, {1});
}

TEST_F(SessionStoreTest, OldRequestsAreForgotten) {
  options_.requests_kept = 3;
  Open();
  const SessionRecord a = Create("a");
  for (int i = 0; i < 10; ++i) {
    if (i == 5) Open();
    AddTurn change = TurnOf(a.id, TokenTurn(i, {1}));
    change.request = RequestRecord{.owner = "owner", .key = absl::StrCat(i)};
    ASSERT_TRUE(store_->Apply({change}).ok());
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(store_->FindRequest("owner", absl::StrCat(i))->has_value(), i >= 7) << i;
  }
}

TEST_F(SessionStoreTest, ListsInOrderPageByPage) {
  Open();
  for (const char* name : {"b1", "a", "b3", "b2"}) Create(name);
  std::vector<std::string> names;
  std::pair<std::string, std::string> after;
  while (true) {
    const std::vector<SessionRecord> page = store_->List("owner", "b", after, 2);
    if (page.empty()) break;
    for (const SessionRecord& one : page) names.push_back(one.name);
    after = {page.back().owner, page.back().name};
  }
  EXPECT_EQ(names, (std::vector<std::string>{"b1", "b2", "b3"}));
  EXPECT_TRUE(store_->List("other", "", {}, 10).empty());
}

TEST(SessionStoreFolderTest, ASecondServerIsRefused) {
  StoreFolder folder;
  PosixFileSystem files;
  StoreReport report;
  const auto first = SessionStore::Open(files, folder.path(), {}, report);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(SessionStore::Open(files, folder.path(), {}, report).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "held by process"));
}

}  // namespace
}  // namespace mneme
