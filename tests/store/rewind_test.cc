// Where a store's sessions go back to, and what is left of them there.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/session_store.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

// The facts of a turn are "after N", and of a part of one what they are made of.
std::string FactsOfPart(absl::string_view before, const Turn& part) {
  return absl::StrCat("(", before, ") and ", part.end() - part.begin, " of (", part.facts, ")");
}

class StoreRewindTest : public testing::Test {
 protected:
  StoreRewindTest() { Open({}); }

  void Open(StoreLimits limits) {
    store_.reset();
    StoreReport report;
    SessionStore::Options options;
    options.limits = limits;
    store_ = *SessionStore::Open(disk_, "/store", options, report);
  }
  SessionRecord Create(const std::string& name) {
    const SessionRecord session = NamedSession(*store_, name);
    EXPECT_EQ(store_->Apply({CreateSession{session}}), absl::OkStatus());
    return session;
  }
  // Adds a turn behind the others; the pending token of each is the number of tokens then.
  void Feed(const SessionRecord& session, std::vector<int32_t> tokens, bool pends = true) {
    Turn turn = TokenTurn(Now(session).fed_tokens, std::move(tokens));
    turn.pending_token = pends ? std::optional<int32_t>(turn.end()) : std::nullopt;
    turn.facts = absl::StrCat("after ", turn.end());
    turn.state_digest = static_cast<uint64_t>(turn.end());
    EXPECT_EQ(store_->Apply({TurnOf(session.id, turn)}), absl::OkStatus());
  }
  void Forget(const SessionRecord& session) {
    Turn turn = {.begin = Now(session).fed_tokens, .events = {RangeForgotten{0, 1}}};
    turn.pending_token = Now(session).pending_token;
    turn.facts = "forgot";
    EXPECT_EQ(store_->Apply({TurnOf(session.id, turn)}), absl::OkStatus());
  }
  SnapshotRecord Snapshot(const SessionRecord& session) {
    const SessionRecord now = Now(session);
    const SnapshotRecord snapshot = {store_->NewId(), now.fed_tokens, now.turns, 100};
    EXPECT_EQ(WriteSlab(disk_, *store_, session, snapshot), absl::OkStatus());
    EXPECT_EQ(store_->Apply({AddSnapshot{session.id, snapshot, now.rewinds}}), absl::OkStatus());
    return snapshot;
  }
  void Checkpoint(const SessionRecord& session, const std::string& name) {
    const SessionRecord now = Now(session);
    EXPECT_EQ(store_->Apply({AddCheckpoint{session.id,
                                           {name, now.fed_tokens, absl::UnixEpoch(), now.turns,
                                            now.pending_token.has_value()}}}),
              absl::OkStatus());
  }
  absl::Status Rewind(const SessionRecord& session, RewindTarget to) {
    return store_->Apply({RewindSession{session.id, std::move(to), &FactsOfPart}});
  }
  SessionRecord Now(const SessionRecord& session) { return *store_->Find(session.id); }
  // Back to so many tokens fed, for what follows in the batch.
  CutSession CutAt(const SessionRecord& session, int64_t fed) {
    const SessionRecord now = Now(session);
    const auto point = FindFed(now, *store_->ReadTurns(session.id, now.first_turn, 99),
                               *store_->ReadSnapshots(session.id), fed, &FactsOfPart);
    return {session.id, point.value(), now.rewinds};
  }
  // A turn behind so many tokens fed.
  AddTurn Next(const SessionRecord& session, int64_t begin, std::vector<int32_t> tokens) {
    return TurnOf(session.id, TokenTurn(begin, std::move(tokens)));
  }

  PowerLossFileSystem disk_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(StoreRewindTest, TheEndOfATurnIsWhatItWasWithItsPendingToken) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  Feed(a, {3, 4});
  Feed(a, {5, 6});
  ASSERT_EQ(Rewind(a, {.position = 6}), absl::OkStatus());
  const SessionRecord now = Now(a);
  EXPECT_EQ(now.fed_tokens, 5);
  EXPECT_EQ(now.pending_token, 5);
  EXPECT_EQ(now.facts, "after 5");
  EXPECT_EQ(now.state_digest, 5u);
  EXPECT_EQ(now.turns, 2);
  EXPECT_EQ(now.rewinds, 1);
}

// A session may go back while its snapshot is still written.
TEST_F(StoreRewindTest, ASnapshotThatComesLateHoldsInFrontOfWhereTheSessionWentBackTo) {
  const SessionRecord a = Create("a");
  const auto copy = [&] {
    const SessionRecord now = Now(a);
    return AddSnapshot{a.id, {store_->NewId(), now.fed_tokens, now.turns, 100}, now.rewinds};
  };
  const auto add = [&](const AddSnapshot& late) {
    EXPECT_EQ(WriteSlab(disk_, *store_, a, late.snapshot), absl::OkStatus());
    return store_->Apply({late});
  };
  std::vector<AddSnapshot> copies;
  for (int32_t turn = 0; turn < 4; ++turn) {
    Feed(a, {2 * turn, 2 * turn + 1}, /*pends=*/turn != 0);  // what was pending, too
    copies.push_back(copy());
  }
  ASSERT_EQ(Rewind(a, {.position = 5}), absl::OkStatus());  // the end of the second turn
  const auto refused = Fails(absl::StatusCode::kNotFound, "was rewound since its state was copied");
  EXPECT_THAT(add(copies[3]), refused);
  EXPECT_THAT(add(copies[2]), refused);
  EXPECT_EQ(add(copies[1]), absl::OkStatus());
  EXPECT_EQ(store_->ReadSnapshots(a.id)->back().pending_token, 4) << "its turn's, as it is logged";

  Feed(a, {4, 8});
  ASSERT_EQ(Rewind(a, {.position = 4}), absl::OkStatus());  // without what was pending there
  copies[1].snapshot.id = store_->NewId();
  EXPECT_THAT(add(copies[1]), refused) << "it has the token that was taken back";
  Feed(a, {4, 8});
  ASSERT_EQ(Rewind(a, {.position = 2}), absl::OkStatus());
  EXPECT_THAT(add(copies[1]), refused);
  for (int i = 0; i < 6; ++i) {
    Feed(a, {5});
    ASSERT_EQ(Rewind(a, {.position = 2}), absl::OkStatus());
    AddSnapshot late = copies[0];
    late.snapshot.id = store_->NewId();
    if (i < 5) {
      EXPECT_EQ(add(late), absl::OkStatus()) << i;
    } else {
      EXPECT_THAT(add(late), refused) << "the session went back too often to know";
    }
  }
}

TEST_F(StoreRewindTest, WithinATurnNothingIsPending) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  Feed(a, {3, 4, 5, 6});
  ASSERT_EQ(Rewind(a, {.position = 5}), absl::OkStatus());
  const SessionRecord now = Now(a);
  EXPECT_EQ(now.fed_tokens, 5);
  EXPECT_EQ(now.pending_token, std::nullopt);
  EXPECT_EQ(now.facts, "(after 3) and 2 of (after 7)");
  EXPECT_EQ(now.state_digest, 0u);
  const auto turns = store_->ReadTurns(a.id, 0, 9);
  ASSERT_EQ(turns->size(), 2u);
  EXPECT_EQ((*turns)[1].events, (std::vector<Event>{TokensFed{{3, 4}}}));
  // Before a turn's pending token: that is taken back by a turn of its own.
  ASSERT_EQ(Rewind(a, {.position = 3}), absl::OkStatus());
  EXPECT_EQ(Now(a).fed_tokens, 3);
  EXPECT_EQ(Now(a).pending_token, std::nullopt);
  EXPECT_EQ(Now(a).facts, "(after 3) and 0 of ()");
  EXPECT_EQ(Now(a).turns, 2);
}

TEST_F(StoreRewindTest, APendingTokenThatWasTakenBackIsInNoConversation) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  Feed(a, {9, 8});  // and not the 3 that was pending
  ASSERT_EQ(Rewind(a, {.position = 4}), absl::OkStatus());
  EXPECT_EQ(Now(a).fed_tokens, 4);
  EXPECT_EQ(store_->ReadTurns(a.id, 1, 9)->back().events, (std::vector<Event>{TokensFed{{9}}}));
}

TEST_F(StoreRewindTest, ACheckpointIsOfItsTurnAndAPositionOfTheLastOne) {
  for (const bool by_name : {true, false}) {
    const SessionRecord a = Create(by_name ? "a" : "b");
    Feed(a, {1, 2, 3});
    Checkpoint(a, "before");
    Forget(a);
    Checkpoint(a, "after");
    Feed(a, {3, 4});
    ASSERT_EQ(
        Rewind(a, by_name ? RewindTarget{.checkpoint = "before"} : RewindTarget{.position = 4}),
        absl::OkStatus());
    EXPECT_EQ(Now(a).facts, by_name ? "after 3" : "forgot");
    EXPECT_EQ(Now(a).pending_token, 3);
    EXPECT_EQ(Now(a).checkpoints, by_name ? 1 : 2);
    EXPECT_EQ(store_->ReadCheckpoints(a.id)->size(), by_name ? 1u : 2u);
  }
}

TEST_F(StoreRewindTest, WhatWasCutOffIsNamedAndTheRestKnowsItsFacts) {
  Open({.log_bytes_per_session = 50});
  const SessionRecord a = Create("a");
  for (int i = 0; i < 5; ++i) {
    Feed(a, std::vector<int32_t>(40, 1));
    Snapshot(a);
  }
  ASSERT_GT(Now(a).first_turn, 2);
  const std::string first = absl::StrCat("positions ", 40 * Now(a).first_turn, " to 201");
  EXPECT_THAT(Rewind(a, {.position = 100}), Fails(absl::StatusCode::kOutOfRange, first));
  EXPECT_THAT(Rewind(a, {.position = 202}), Fails(absl::StatusCode::kOutOfRange, first));
  const int64_t within = 40 * Now(a).first_turn + 7;
  ASSERT_EQ(Rewind(a, {.position = within}), absl::OkStatus());
  EXPECT_EQ(Now(a).facts,
            absl::StrCat("(after ", within - 7, ") and 7 of (after ", within + 33, ")"));
  // Where its oldest snapshot is of.
  ASSERT_EQ(Rewind(a, {.position = within - 7}), absl::OkStatus());
  EXPECT_EQ(Now(a).pending_token, std::nullopt);
  EXPECT_EQ(Now(a).facts, absl::StrCat("(after ", within - 7, ") and 0 of ()"));
}

TEST_F(StoreRewindTest, ASnapshotThatWasCopiedBeforeIsRefused) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2});
  const SnapshotRecord late = {store_->NewId(), 2, 1, 100};
  ASSERT_EQ(WriteSlab(disk_, *store_, a, late), absl::OkStatus());
  ASSERT_EQ(Rewind(a, {.position = 0}), absl::OkStatus());
  Feed(a, {8, 9});
  EXPECT_THAT(store_->Apply({AddSnapshot{a.id, late}}),
              Fails(absl::StatusCode::kNotFound, "rewound"));
  Feed(a, {9});  // whose commit removes what the one before refused
  EXPECT_FALSE(disk_.AllFiles().contains(store_->SnapshotPath(late.id)));
}

TEST_F(StoreRewindTest, WhatIsGoneIsErased) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2});
  Turn secret = TokenTurn(2, {2, 3});
  secret.facts = "a secret of the second turn";
  ASSERT_EQ(store_->Apply({TurnOf(a.id, secret)}), absl::OkStatus());
  ASSERT_EQ(Rewind(a, {.position = 3}), absl::OkStatus());
  for (const auto& [path, bytes] : disk_.AllFiles()) {
    EXPECT_EQ(bytes.find(secret.facts), std::string::npos) << path;
  }
}

TEST_F(StoreRewindTest, AForkOfThePastHasWhatLeadsThere) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  const SnapshotRecord early = Snapshot(a);
  Checkpoint(a, "here");
  Feed(a, {3, 4, 5});
  Snapshot(a);
  const SessionRecord b = NamedSession(*store_, "b"), c = NamedSession(*store_, "c");
  ASSERT_EQ(store_->Apply({ForkSession{a.id, b, RewindTarget{.checkpoint = "here"}, &FactsOfPart}}),
            absl::OkStatus());
  EXPECT_EQ(Now(b).position(), 4);
  EXPECT_EQ(Now(b).checkpoints, 0);
  EXPECT_THAT(*store_->ReadSnapshots(b.id), ElementsAre(Field(&SnapshotRecord::id, early.id)));
  ASSERT_EQ(store_->Apply({ForkSession{a.id, c, RewindTarget{.position = 5}, &FactsOfPart}}),
            absl::OkStatus());
  EXPECT_EQ(Now(c).facts, "(after 3) and 2 of (after 6)");
  EXPECT_THAT(store_->Apply({ForkSession{a.id, NamedSession(*store_, "d"),
                                         RewindTarget{.position = 8}, &FactsOfPart}}),
              Fails(absl::StatusCode::kOutOfRange, "positions 0 to 7"));
  EXPECT_EQ(Now(a).position(), 7);
}

TEST_F(StoreRewindTest, ACutAndWhatFollowsItAreOneChange) {
  const SessionRecord a = Create("a");
  AddTurn before = Next(a, 0, {1, 2, 3});
  before.request =
      RequestRecord{.owner = "owner", .key = "before", .position = 4, .reply = "three"};
  ASSERT_EQ(store_->Apply({before}), absl::OkStatus());
  const SnapshotRecord early = Snapshot(a);
  Checkpoint(a, "early");
  AddTurn answered = Next(a, 3, {3, 4, 5});
  answered.request = RequestRecord{.owner = "owner", .key = "key", .position = 7, .reply = "six"};
  ASSERT_EQ(store_->Apply({answered}), absl::OkStatus());
  Checkpoint(a, "late");
  Snapshot(a);
  CutSession cut = CutAt(a, 5);
  cut.outcome = 3;
  // What follows does not: nothing has happened.
  EXPECT_THAT(store_->Apply({cut, Next(a, 6, {9})}),
              Fails(absl::StatusCode::kInvalidArgument, "stands at 5 tokens fed"));
  EXPECT_EQ(Now(a).fed_tokens, 6);
  EXPECT_EQ(Now(a).rewinds, 0);
  EXPECT_EQ(store_->ReadSnapshots(a.id)->size(), 2u);

  ASSERT_EQ(store_->Apply({cut, Next(a, 5, {8, 9})}), absl::OkStatus());
  EXPECT_THAT(store_->Apply({cut, Next(a, 5, {8, 9})}),
              Fails(absl::StatusCode::kNotFound, "was rewound"))
      << "it was looked up before the log changed";
  for (const bool restarted : {false, true}) {
    if (restarted) Open({});
    const SessionRecord now = Now(a);
    EXPECT_EQ(now.fed_tokens, 7);
    EXPECT_EQ(now.turns, 3);
    const auto turns = store_->ReadTurns(a.id, 0, 9);
    ASSERT_EQ(turns->size(), 3u);
    EXPECT_EQ((*turns)[1].events, (std::vector<Event>{TokensFed{{3, 4}}}));
    EXPECT_EQ((*turns)[2].events, (std::vector<Event>{TokensFed{{8, 9}}}));
    EXPECT_THAT(*store_->ReadSnapshots(a.id), ElementsAre(Field(&SnapshotRecord::id, early.id)));
    EXPECT_THAT(*store_->ReadCheckpoints(a.id),
                ElementsAre(Field(&CheckpointRecord::name, "early")));
    EXPECT_EQ(now.checkpoints, 1);
    const RequestRecord known = **store_->FindRequest("owner", "key");
    EXPECT_EQ(known.reply, "") << "what the session does not hold";
    EXPECT_EQ(known.outcome, 3);
    EXPECT_EQ((*store_->FindRequest("owner", "before"))->reply, "three");
  }
}

TEST_F(StoreRewindTest, ACutThatIsNotInTheLogIsRefused) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  Feed(a, {3, 4});
  const auto refused = [&](RewindPoint to) { return store_->Apply({CutSession{a.id, to, 0}}); };
  EXPECT_THAT(refused({.turns = 3, .fed_tokens = 5}),
              Fails(absl::StatusCode::kOutOfRange, "turn 3, its log has those from 0 to 2"));
  EXPECT_THAT(refused({.turns = 1, .fed_tokens = 4}),
              Fails(absl::StatusCode::kInvalidArgument, "has 3 there"));
  EXPECT_THAT(refused({.turns = 1, .part = TokenTurn(3, {3}), .fed_tokens = 5}),
              Fails(absl::StatusCode::kInvalidArgument, "to 4"));
  EXPECT_EQ(Now(a).fed_tokens, 5);
}

TEST_F(StoreRewindTest, AnySessionCanBeginAnew) {
  const SessionRecord a = Create("a");
  Open({.log_bytes_per_session = 1});
  for (int turn = 0; turn < 4; ++turn) {
    Feed(a, {1, 2, 3});
    Snapshot(a);
  }
  ASSERT_GT(Now(a).first_turn, 0);
  ASSERT_EQ(store_->Apply({CutSession{a.id, {}, 0}, Next(a, 0, {7})}), absl::OkStatus());
  const SessionRecord now = Now(a);
  EXPECT_EQ(now.first_turn, 0);
  EXPECT_EQ(now.turns, 1);
  EXPECT_EQ(now.fed_tokens, 1);
  EXPECT_EQ(now.snapshot_bytes, 0);
  EXPECT_EQ(store_->ReadTurns(a.id, 0, 9)->at(0).events, (std::vector<Event>{TokensFed{{7}}}));
  EXPECT_TRUE(store_->ReadSnapshots(a.id)->empty());
  // One that has no log, too.
  const SessionRecord b = NamedSession(*store_, "b", Durability::kNone);
  AddTurn told = {b.id, Turn(), 4, absl::UnixEpoch(), std::nullopt};
  ASSERT_EQ(store_->Apply({CreateSession{b}, told}), absl::OkStatus());
  told.fed_tokens = 2;
  ASSERT_EQ(store_->Apply({CutSession{b.id, {}, 0}, told}), absl::OkStatus());
  EXPECT_EQ(Now(b).fed_tokens, 2);
}

TEST_F(StoreRewindTest, ACheckpointBehindATokenThatIsTakenBackIsGone) {
  const SessionRecord a = Create("a");
  Feed(a, {1, 2, 3});
  Checkpoint(a, "pending");  // at position 4, with 3 tokens fed
  ASSERT_EQ(Rewind(a, {.position = 3}), absl::OkStatus());
  EXPECT_FALSE(Now(a).pending_token.has_value());
  EXPECT_EQ(Now(a).checkpoints, 0);
  EXPECT_TRUE(store_->ReadCheckpoints(a.id)->empty());
  EXPECT_TRUE(absl::IsNotFound(Rewind(a, {.checkpoint = "pending"})));
}

TEST_F(StoreRewindTest, CheckpointsAreCountedByOwner) {
  const SessionRecord a = Create("a"), b = Create("b");
  for (const SessionRecord& one : {a, b}) {
    Feed(one, {1});
    Checkpoint(one, "x");
  }
  Feed(a, {1});
  Checkpoint(a, "y");
  EXPECT_EQ(store_->UsageOf("owner").checkpoints, 3);
  Open({});
  EXPECT_EQ(store_->UsageOf("owner").checkpoints, 3);
  ASSERT_EQ(store_->Apply({DropCheckpoint{b.id, "x"}}), absl::OkStatus());
  ASSERT_EQ(Rewind(a, {.position = 2}), absl::OkStatus());
  EXPECT_EQ(store_->UsageOf("owner").checkpoints, 1);
  ASSERT_EQ(store_->Apply({DeleteSession{a.id}}), absl::OkStatus());
  EXPECT_EQ(store_->UsageOf("owner").checkpoints, 0);
}

}  // namespace
}  // namespace mneme
