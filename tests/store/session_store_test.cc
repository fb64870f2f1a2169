#include "store/session_store.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/store/session_store_harness.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

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
