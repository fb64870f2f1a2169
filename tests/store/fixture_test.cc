// Stores that earlier versions have written are read for as long as there are any.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "store/session_store.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

constexpr char kFixture[] = "tests/store/fixtures/version_1";

std::vector<Turn> Turns() {
  Turn first = {.begin = 0, .pending_token = 5, .state_digest = 77, .facts = "facts"};
  first.events = {AdapterChosen{.adapter = 3}, MemorySeeded{.seed = 4},
                  TokensFed{{0, 127, 128, 300'000, 2'000'000'000}}};
  Turn second = {.begin = 5};
  second.events = {RangeForgotten{1, 3}, StateImported{.snapshot = 9, .fed_tokens = 60}};
  return {first, second};
}

RequestRecord Request() {
  return {
      .owner = "owner", .key = "key", .digest = 8, .outcome = 1, .position = 6, .reply = "text"};
}

// Wrote the fixture, with MNEME_WRITE_STORE_FIXTURE=1, at the commit that made version 1.
void Write(const std::string& folder) {
  PosixFileSystem files;
  StoreReport report;
  std::filesystem::create_directories(folder);
  const auto store = SessionStore::Open(files, folder, {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  SessionRecord session = NamedSession(**store, "../name");
  session.ttl = absl::Hours(5);
  session.created = absl::FromUnixSeconds(1'700'000'000);
  AddTurn turn = TurnOf(session.id, Turns()[0]);
  turn.request = Request();
  ASSERT_TRUE((*store)->Apply({CreateSession{session}, turn}).ok());
  const SnapshotRecord snapshot = {(*store)->NewId(), 5, 1, 400};
  ASSERT_TRUE(WriteSlab(files, **store, session, snapshot).ok());
  ASSERT_TRUE((*store)
                  ->Apply({AddSnapshot{session.id, snapshot},
                           AddCheckpoint{session.id, {"start", 5, absl::UnixEpoch()}},
                           TurnOf(session.id, Turns()[1])})
                  .ok());
  ASSERT_TRUE(
      (*store)->Apply({CreateSession{NamedSession(**store, "gone", Durability::kNone)}}).ok());
}

TEST(StoreFixtureTest, ReadsVersion1) {
  if (std::getenv("MNEME_WRITE_STORE_FIXTURE") != nullptr) Write(kFixture);
  const StoreFolder folder;
  std::filesystem::copy(kFixture, folder.path(), std::filesystem::copy_options::recursive);
  PosixFileSystem files;
  StoreReport report;
  const auto store = SessionStore::Open(files, folder.path(), {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(report.damage.empty());
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_EQ(report.lost[0].name, "gone");
  const std::optional<SessionRecord> session = (*store)->Find("owner", "../name");
  ASSERT_TRUE(session.has_value());
  EXPECT_EQ(session->ttl, absl::Hours(5));
  EXPECT_EQ(session->created, absl::FromUnixSeconds(1'700'000'000));
  EXPECT_EQ(session->model, 7u);
  EXPECT_EQ(session->fed_tokens, 60);
  EXPECT_EQ(*(*store)->ReadTurns(session->id, 0, 10), Turns());
  const auto checkpoints = (*store)->ReadCheckpoints(session->id);
  ASSERT_EQ(checkpoints->size(), 1u);
  EXPECT_EQ((*checkpoints)[0], (CheckpointRecord{"start", 5, absl::UnixEpoch()}));
  const auto request = (*store)->FindRequest("owner", "key");
  ASSERT_TRUE(request.ok() && request->has_value());
  RequestRecord expected = Request();
  expected.session = session->id;
  EXPECT_EQ(**request, expected);
  const auto snapshots = (*store)->ReadSnapshots(session->id);
  ASSERT_EQ(snapshots->size(), 1u);
  const auto slab = SlabReader::Open(files, (*store)->SnapshotPath((*snapshots)[0].id));
  ASSERT_TRUE(slab.ok()) << slab.status();
  EXPECT_EQ((*slab)->head().name, "../name");
  std::vector<char> bytes(sizeof "bytes of a state");
  ASSERT_TRUE((*slab)->ReadSection("state", std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_STREQ(bytes.data(), "bytes of a state");
}

}  // namespace
}  // namespace mneme
