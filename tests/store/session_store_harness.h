// The fixture of tests of the session store: one on a disk that can fail and lose power.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "store/session_store.h"
#include "tests/store/failing_fs.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/store_testing.h"

namespace mneme {

class SessionStoreTest : public testing::Test {
 protected:
  using Kind = FailingFileSystem::Kind;
  static constexpr char kFolder[] = "/store";

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

}  // namespace mneme
