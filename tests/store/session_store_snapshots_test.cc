// Which snapshots a session store keeps, and what they stand for.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/store/session_store_harness.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

class SessionStoreSnapshotsTest : public SessionStoreTest {};

TEST_F(SessionStoreSnapshotsTest, LongLogsLoseWhatTwoSnapshotsStandFor) {
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

TEST_F(SessionStoreSnapshotsTest, CheckpointsKeepTheirSnapshots) {
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

TEST_F(SessionStoreSnapshotsTest, SnapshotsAreSpacedOverThePast) {
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

TEST_F(SessionStoreSnapshotsTest, ALongLogBeginsAtTheOldestSnapshotThatItsBoundLeaves) {
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

TEST_F(SessionStoreSnapshotsTest, SnapshotsOfThePastGiveWayToWhatSessionsNeed) {
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
  // A session gives up snapshots of its own before it is refused anything.
  const SnapshotRecord large = Written(a, 900);
  ASSERT_EQ(store_->Apply({AddSnapshot{a.id, large}}), absl::OkStatus());
  EXPECT_EQ(count(a), 3u) << "the two newest, when it came";
  EXPECT_LE(store_->UsageOf("owner").bytes, 2000);
}

TEST_F(SessionStoreSnapshotsTest, ForksShareSnapshotsUntilTheLastIsDeleted) {
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

}  // namespace
}  // namespace mneme
