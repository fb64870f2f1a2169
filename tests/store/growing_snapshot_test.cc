// Snapshots that go on from others, which are kept as long as these.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/session_store.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

class GrowingSnapshotTest : public testing::Test {
 protected:
  GrowingSnapshotTest() {
    Open();
    session_ = NamedSession(*store_, "a");
    EXPECT_EQ(store_->Apply({CreateSession{session_}}), absl::OkStatus());
  }

  void Open() {
    store_.reset();
    StoreReport report;
    auto store = SessionStore::Open(files_, folder_.path(), {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  void LoseCatalogue() {
    store_.reset();
    std::ofstream(folder_.path() + "/catalogue.1.db") << "no catalogue";
  }

  // Feeds ten tokens and takes a snapshot that goes on from `base`; 0: a whole one.
  absl::StatusOr<uint64_t> Snapshot(uint64_t base) {
    const int64_t fed = store_->Find(session_.id)->fed_tokens;
    const absl::Status turned = store_->Apply(
        {TurnOf(session_.id, TokenTurn(fed, std::vector<int32_t>(10, 1 + ++turns_)))});
    if (!turned.ok()) return turned;
    SnapshotRecord snapshot = {store_->NewId(), fed + 10, turns_, 100};
    snapshot.base = base;
    absl::Status added = WriteSlab(files_, *store_, session_, snapshot);
    if (added.ok()) added = store_->Apply({AddSnapshot{session_.id, snapshot}});
    if (!added.ok()) return added;
    return snapshot.id;
  }

  std::vector<uint64_t> Kept(uint64_t session) {
    std::vector<uint64_t> ids;
    const auto snapshots = store_->ReadSnapshots(session);
    for (const SnapshotRecord& one : *snapshots) {
      EXPECT_TRUE(std::filesystem::exists(store_->SnapshotPath(one.id)));
      ids.push_back(one.id);
    }
    return ids;
  }
  int64_t Files() {
    const std::filesystem::directory_iterator slabs(folder_.path() + "/slabs");
    return std::distance(begin(slabs), end(slabs));
  }

  uint64_t Fork(const std::string& name) {
    const SessionRecord child = NamedSession(*store_, name);
    EXPECT_EQ(store_->Apply({ForkSession{session_.id, child}}), absl::OkStatus());
    return child.id;
  }

  const StoreFolder folder_;
  PosixFileSystem files_;
  std::unique_ptr<SessionStore> store_;
  SessionRecord session_;
  int turns_ = 0;
};

TEST_F(GrowingSnapshotTest, ThoseThatOthersGoOnFromAreKept) {
  const uint64_t a = *Snapshot(0), b = *Snapshot(a), c = *Snapshot(b), d = *Snapshot(c);
  EXPECT_THAT(Kept(session_.id), ElementsAre(a, b, c, d));
  EXPECT_EQ(store_->Find(session_.id)->snapshot_bytes, 400);
  const uint64_t e = *Snapshot(0);
  EXPECT_THAT(Kept(session_.id), ElementsAre(a, b, c, d, e)) << "d is one of the two newest";
  const uint64_t f = *Snapshot(e);
  EXPECT_THAT(Kept(session_.id), ElementsAre(e, f));
  EXPECT_EQ(Files(), 2);
  EXPECT_EQ(store_->Find(session_.id)->snapshot_bytes, 200);
  Open();
  EXPECT_THAT(Kept(session_.id), ElementsAre(e, f));
}

TEST_F(GrowingSnapshotTest, NoneGoesOnFromOneThatIsGone) {
  const uint64_t a = *Snapshot(0);
  *Snapshot(0);
  *Snapshot(0);
  EXPECT_THAT(Snapshot(a).status(), Fails(absl::StatusCode::kNotFound, "is gone"));
  Open();
  EXPECT_EQ(Files(), 2) << "a file that was refused is removed";
}

TEST_F(GrowingSnapshotTest, ADamagedOneTakesThoseWithItThatGoOnFromIt) {
  const uint64_t a = *Snapshot(0), b = *Snapshot(a), c = *Snapshot(0), d = *Snapshot(b);
  const uint64_t fork = Fork("fork");
  ASSERT_EQ(store_->Apply({DropDamagedSnapshot{session_.id, a}}), absl::OkStatus());
  EXPECT_THAT(Kept(session_.id), ElementsAre(c));
  EXPECT_THAT(Kept(fork), ElementsAre(c));
  EXPECT_FALSE(std::filesystem::exists(store_->SnapshotPath(b)));
  EXPECT_FALSE(std::filesystem::exists(store_->SnapshotPath(d)));
}

TEST_F(GrowingSnapshotTest, WhatGoesBackKeepsThoseBefore) {
  const uint64_t a = *Snapshot(0), b = *Snapshot(a);
  *Snapshot(b);
  *Snapshot(0);
  ASSERT_EQ(store_->Apply({RewindSession{session_.id, {.position = 21}}}), absl::OkStatus());
  EXPECT_THAT(Kept(session_.id), ElementsAre(a, b));
  const uint64_t fork = Fork("fork");
  ASSERT_EQ(store_->Apply({DeleteSession{session_.id}}), absl::OkStatus());
  EXPECT_THAT(Kept(fork), ElementsAre(a, b));
  ASSERT_EQ(store_->Apply({DeleteSession{fork}}), absl::OkStatus());
  EXPECT_EQ(Files(), 0);
}

TEST_F(GrowingSnapshotTest, WithoutACatalogueFilesSayWhatTheyGoOnFrom) {
  const uint64_t a = *Snapshot(0), b = *Snapshot(a);
  const uint64_t fork = Fork("fork");
  SnapshotRecord own = {store_->NewId(), 20, 2, 100};
  own.base = b;
  SessionRecord child = session_;
  child.id = fork;
  child.name = "fork";
  ASSERT_EQ(WriteSlab(files_, *store_, child, own), absl::OkStatus());
  ASSERT_EQ(store_->Apply({AddSnapshot{fork, own}}), absl::OkStatus());
  LoseCatalogue();
  Open();
  EXPECT_THAT(Kept(session_.id), ElementsAre(a, b));
  EXPECT_THAT(Kept(fork), ElementsAre(a, b, own.id));
}

TEST_F(GrowingSnapshotTest, FilesOfACatalogueThatAreGonePutNamesInDoubt) {
  const uint64_t a = *Snapshot(0);
  // As a process leaves it that is killed: one that ends in order leaves nothing in the WAL.
  StoreFolder killed;
  std::filesystem::copy(folder_.path(), killed.path(), std::filesystem::copy_options::recursive);
  store_.reset();
  std::filesystem::remove_all(folder_.path());
  std::filesystem::rename(killed.path(), folder_.path());
  for (const char* gone : {"catalogue.1.db-wal", "catalogue.2.db", ""}) {
    store_.reset();
    if (*gone != '\0') std::filesystem::remove(folder_.path() + "/" + gone);
    Open();
    EXPECT_TRUE(store_->names_in_doubt()) << gone;
    EXPECT_THAT(Kept(session_.id), ElementsAre(a)) << gone;
  }
}

TEST_F(GrowingSnapshotTest, WithoutAFileThoseThatGoOnFromItAreOfNoUse) {
  const uint64_t a = *Snapshot(0);
  *Snapshot(a);
  const std::string path = store_->SnapshotPath(a);
  LoseCatalogue();
  std::filesystem::remove(path);
  Open();
  EXPECT_FALSE(store_->Find(session_.id).has_value());
  EXPECT_EQ(Files(), 1) << "set aside";
}

}  // namespace
}  // namespace mneme
