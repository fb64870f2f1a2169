// What tests of the store share.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/session_store.h"

namespace mneme {

// A status of that code, with `text` in its message.
MATCHER_P2(Fails, code, text, "") {
  return arg.code() == code && absl::StrContains(arg.message(), text);
}

// A folder of a test's own, removed with all that is in it.
class StoreFolder {
 public:
  StoreFolder() : path_(testing::TempDir() + "/mneme_store_XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~StoreFolder() { std::filesystem::remove_all(path_); }
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline SessionRecord NamedSession(SessionStore& store, const std::string& name,
                                  Durability durability = Durability::kTurn) {
  return {
      .id = store.NewId(), .owner = "owner", .name = name, .durability = durability, .model = 7};
}

inline Turn TokenTurn(int64_t begin, std::vector<int32_t> tokens) {
  return {.begin = begin, .events = {TokensFed{std::move(tokens)}}, .pending_token = 5};
}

inline AddTurn TurnOf(uint64_t session, const Turn& turn) {
  return {session, turn, turn.end(), absl::FromUnixSeconds(100), std::nullopt};
}

// A snapshot's file, with some bytes in it.
inline absl::Status WriteSlab(FileSystem& files, const SessionStore& store,
                              const SessionRecord& session, const SnapshotRecord& snapshot) {
  const SlabHead head = {.identity = {.model = session.model},
                         .id = snapshot.id,
                         .owner = session.owner,
                         .name = session.name,
                         .session = session.id,
                         .position = snapshot.position,
                         .turn = snapshot.turn,
                         .base = snapshot.base};
  auto writer = SlabWriter::Create(files, store.SnapshotPath(snapshot.id), head);
  if (!writer.ok()) return writer.status();
  const absl::Status added =
      (*writer)->AddSection("state", std::as_bytes(std::span("bytes of a state")), true);
  return added.ok() ? (*writer)->Finish().status() : added;
}

}  // namespace mneme
