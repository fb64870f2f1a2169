#include "engine/sessions/snapshot_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "models/state_bytes.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

constexpr int64_t kMostTokens = 4096;
constexpr char kHistory[] = "what was said last";

// Of a memory, a window of 100 positions, and rows of 256 bytes for each position.
StateLayout GrowingLayout() {
  StateLayout layout;
  layout.Add({.name = "memory", .shape = {2, 16, 16}});
  layout.Add({.name = "window",
              .shape = {1, 100, 1, 2},
              .guard = StateGuard::kRing,
              .role = StateRole::kAppendOnly});
  layout.Add({.name = "keys",
              .shape = {1, kMostTokens, 1, 64},
              .guard = StateGuard::kFirstRows,
              .role = StateRole::kAppendOnly});
  return layout;
}

class SnapshotFilesTest : public testing::Test {
 protected:
  SnapshotFilesTest() : files_(*store_, disk_, layout_, identity_) {
    session_ = NamedSession(*store_, "a");
    EXPECT_EQ(store_->Apply({CreateSession{session_}}), absl::OkStatus());
  }

  std::unique_ptr<SessionStore> Open() {
    StoreReport report;
    return SessionStore::Open(disk_, folder_.path(), {}, report).value();
  }

  // All that may change is drawn anew each time; a row says its position.
  std::vector<std::byte> State(int64_t tokens) {
    const std::vector<ByteRange> rows = AppendedBytes(layout_, tokens, 0, tokens);
    int64_t bytes = 0;
    for (const ByteRange& range : RewrittenBytes(layout_, tokens)) {
      bytes = std::max(bytes, range.end);
    }
    for (const ByteRange& range : rows) bytes = std::max(bytes, range.end);
    std::vector<std::byte> state(static_cast<size_t>(bytes));
    for (std::byte& one : state) one = static_cast<std::byte>(random_());
    for (const ByteRange& range : rows) {
      std::mt19937 of_row;
      for (int64_t at = range.begin; at < range.end; at += 256) {
        const int64_t position = (at - range.begin) / 256;
        of_row.seed(static_cast<uint32_t>(position));
        for (int64_t i = 0; i < 256; ++i) {
          state[at + i] = position < tokens ? static_cast<std::byte>(of_row()) : std::byte{0};
        }
      }
    }
    return state;
  }

  SlabHead HeadOf(int64_t tokens) const {
    return {.owner = "owner",
            .name = "a",
            .session = session_.id,
            .position = tokens,
            .turn = store_->Find(session_.id)->turns};
  }

  // Feeds so many tokens, and takes a snapshot.
  SnapshotRecord Snapshot(int64_t more, const SnapshotFiles& files) {
    const int64_t fed = store_->Find(session_.id)->fed_tokens;
    const std::vector<int32_t> tokens(static_cast<size_t>(more), 3);
    EXPECT_EQ(store_->Apply({TurnOf(session_.id, TokenTurn(fed, tokens))}), absl::OkStatus());
    state_ = State(fed + more);
    const auto snapshot =
        files.Write(store_->NewId(), HeadOf(fed + more), /*may_go_on=*/true, state_, kHistory);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(store_->Apply({AddSnapshot{session_.id, *snapshot}}), absl::OkStatus());
    return *snapshot;
  }
  SnapshotRecord Snapshot(int64_t more) { return Snapshot(more, files_); }

  // Its newest snapshot is what State() gave last.
  void ExpectRead(const SnapshotRecord& snapshot) {
    std::vector<std::byte> state(state_.size(), std::byte{0xff});
    std::string history;
    uint64_t failed = 0;
    ASSERT_EQ(files_.Read(snapshot, state, history, failed), absl::OkStatus()) << failed;
    EXPECT_TRUE(state == state_) << snapshot.position;
    EXPECT_EQ(history, kHistory);
  }

  const StoreFolder folder_;
  PosixFileSystem disk_;
  const StateLayout layout_ = GrowingLayout();
  const SlabIdentity identity_ = {.model = 7, .state_format = 8};
  std::unique_ptr<SessionStore> store_ = Open();
  const SnapshotFiles files_;
  SessionRecord session_;
  std::mt19937 random_{5};
  std::vector<std::byte> state_;
};

TEST_F(SnapshotFilesTest, RowsAreWrittenOnceAndFilesAreBounded) {
  int64_t written = 0;
  for (int64_t tokens = 0; tokens + 37 <= kMostTokens; tokens += 37) {
    const SnapshotRecord snapshot = Snapshot(37);
    written += snapshot.bytes;
    ExpectRead(snapshot);
    const auto whole = static_cast<int64_t>(state_.size()) + 1000;
    EXPECT_LE(store_->Find(session_.id)->snapshot_bytes, 3 * whole) << tokens;
  }
  const int64_t snapshots = kMostTokens / 37;
  const int64_t rows = kMostTokens * 256;
  // Each time what may change, a block that was not full, and what is said of the file.
  const int64_t each = 2048 + 128 * 8 + 2 * kContextBlock * 256 + 1000;
  EXPECT_LT(written, 8 * rows + snapshots * each) << "all of it each time: 56 times the rows";
}

TEST_F(SnapshotFilesTest, AllOfItIsWrittenWhereLittleStays) {
  EXPECT_EQ(Snapshot(100).base, 0u);
  EXPECT_EQ(Snapshot(1000).base, 0u) << "most of it is new";
  const SnapshotRecord third = Snapshot(10);
  EXPECT_NE(third.base, 0u);
  ExpectRead(third);
  state_ = State(1110);
  const auto alone =
      files_.Write(store_->NewId(), HeadOf(1110), /*may_go_on=*/false, state_, kHistory);
  EXPECT_EQ(alone->base, 0u);
  ExpectRead(*alone);
}

TEST_F(SnapshotFilesTest, NothingGoesOnFromAnotherStateFormat) {
  const SlabIdentity other = {.model = 7, .state_format = 9};
  const SnapshotRecord first = Snapshot(1000, SnapshotFiles(*store_, disk_, layout_, other));
  const SnapshotRecord second = Snapshot(10);
  EXPECT_EQ(second.base, 0u);
  std::string history;
  uint64_t failed = 0;
  EXPECT_EQ(files_.Read(first, state_, history, failed).code(),
            absl::StatusCode::kFailedPrecondition);
}

// Its identity was made by another rule then.
TEST_F(SnapshotFilesTest, ReadsAndGoesOnFromWhatTheModelStoredUnderAnotherIdentity) {
  const SlabIdentity before = {.model = 6, .state_format = 8};
  const SnapshotRecord first = Snapshot(1000, SnapshotFiles(*store_, disk_, layout_, before));
  std::vector<std::byte> state(state_.size());
  std::string history;
  uint64_t failed = 0;
  EXPECT_EQ(files_.Read(first, state, history, failed).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(store_->Apply({TakeOverModel{6, 7}}), absl::OkStatus());
  ExpectRead(first);
  const SnapshotRecord second = Snapshot(10);
  EXPECT_EQ(second.base, first.id);
  ExpectRead(second);
}

TEST_F(SnapshotFilesTest, ADamagedFileIsNamedWhateverGoesOnFromIt) {
  const SnapshotRecord first = Snapshot(1000), second = Snapshot(10), third = Snapshot(10);
  ASSERT_EQ(second.base, first.id);
  ASSERT_EQ(third.base, second.id);
  const std::string path = store_->SnapshotPath(second.id);
  std::fstream file(path, std::ios::in | std::ios::out);
  file.seekp(second.bytes / 2);  // in its rows
  file.put('\xff').put('\0').put('\xff').flush();
  std::string history;
  uint64_t failed = 0;
  EXPECT_EQ(files_.Read(third, state_, history, failed).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(failed, second.id);
  std::filesystem::remove(path);
  EXPECT_EQ(files_.Read(third, state_, history, failed).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(failed, second.id);
}

TEST_F(SnapshotFilesTest, AFileInAnothersPlaceIsNotTakenForIt) {
  const SnapshotRecord first = Snapshot(1000), second = Snapshot(10);
  std::filesystem::copy_file(store_->SnapshotPath(second.id), store_->SnapshotPath(first.id),
                             std::filesystem::copy_options::overwrite_existing);
  std::string history;
  uint64_t failed = 0;
  EXPECT_THAT(files_.Read(second, state_, history, failed),
              Fails(absl::StatusCode::kDataLoss, "in its file is that of id"));
  EXPECT_EQ(failed, first.id);
}

}  // namespace
}  // namespace mneme
