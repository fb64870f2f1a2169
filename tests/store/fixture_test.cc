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

constexpr int kNewest = 5;

constexpr uint64_t kSeed = 4;

// By the version of its records. That of version 5 has one of version 4, too: a session without a
// seed of its own that is in doubt.
std::string Fixture(int version) {
  return "tests/store/fixtures/version_" + std::to_string(version);
}

CheckpointRecord Checkpoint(int version) {
  CheckpointRecord checkpoint = {"start", 5, absl::UnixEpoch()};
  if (version >= 2) {
    checkpoint.turns = 1;
    checkpoint.has_pending_token = true;
  }
  return checkpoint;
}

std::vector<Turn> Turns() {
  Turn first = {.begin = 0, .pending_token = 5, .state_digest = 77, .facts = "facts"};
  first.events = {AdapterChosen{.adapter = 3}, MemorySeeded{.seed = kSeed},
                  TokensFed{{0, 127, 128, 300'000, 2'000'000'000}}};
  Turn second = {.begin = 5};
  second.events = {RangeForgotten{1, 3}, StateImported{.snapshot = 9, .fed_tokens = 60}};
  return {first, second};
}

RequestRecord Request() {
  return {
      .owner = "owner", .key = "key", .digest = 8, .outcome = 1, .position = 6, .reply = "text"};
}

// Writes the fixture of the newest version, with MNEME_WRITE_STORE_FIXTURE=1.
void Write(const std::string& folder) {
  PosixFileSystem files;
  StoreReport report;
  std::filesystem::create_directories(folder);
  const auto store = SessionStore::Open(files, folder, {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  SessionRecord session = NamedSession(**store, "../name");
  session.memory_seed = kSeed;
  session.ttl = absl::Hours(5);
  session.created = absl::FromUnixSeconds(1'700'000'000);
  AddTurn turn = TurnOf(session.id, Turns()[0]);
  turn.request = Request();
  ASSERT_TRUE((*store)
                  ->Apply({CreateSession{session}, turn, NameModel{session.model, "model"},
                           TakeOverModel{6, session.model}})
                  .ok());
  const SnapshotRecord snapshot = {(*store)->NewId(), 5, 1, 400};
  ASSERT_TRUE(WriteSlab(files, **store, session, snapshot).ok());
  ASSERT_TRUE(
      (*store)
          ->Apply({AddSnapshot{session.id, snapshot},
                   AddCheckpoint{session.id, Checkpoint(kNewest)}, TurnOf(session.id, Turns()[1])})
          .ok());
  SnapshotRecord second = {(*store)->NewId(), 60, 2, 300};
  second.base = snapshot.id;
  ASSERT_TRUE(WriteSlab(files, **store, session, second).ok());
  ASSERT_TRUE((*store)->Apply({AddSnapshot{session.id, second}}).ok());
  SessionRecord doubted = NamedSession(**store, "doubted");
  doubted.doubted_at = 9;
  ASSERT_TRUE((*store)
                  ->Apply({CreateSession{NamedSession(**store, "gone", Durability::kNone)},
                           CreateSession{doubted}})
                  .ok());
}

class StoreFixtureTest : public testing::TestWithParam<int> {};

TEST_P(StoreFixtureTest, IsRead) {
  const int version = GetParam();
  if (version == kNewest && std::getenv("MNEME_WRITE_STORE_FIXTURE") != nullptr) {
    Write(Fixture(version));
  }
  const StoreFolder folder;
  std::filesystem::copy(Fixture(version), folder.path(), std::filesystem::copy_options::recursive);
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
  EXPECT_EQ(session->memory_seed, version >= 5 ? std::optional<uint64_t>(kSeed) : std::nullopt);
  const std::optional<SessionRecord> doubted = (*store)->Find("owner", "doubted");
  ASSERT_EQ(doubted.has_value(), version >= 5);
  if (doubted.has_value()) {
    EXPECT_EQ(doubted->doubted_at, 9);
  }
  EXPECT_EQ((*store)->NameOfModel(7), version >= 5 ? "model" : "");
  EXPECT_EQ((*store)->SuccessorOf(6), version >= 5 ? 7u : 6u);
  EXPECT_EQ(*(*store)->ReadTurns(session->id, 0, 10), Turns());
  const auto checkpoints = (*store)->ReadCheckpoints(session->id);
  ASSERT_EQ(checkpoints->size(), 1u);
  EXPECT_EQ((*checkpoints)[0], Checkpoint(version));
  EXPECT_EQ(session->checkpoints, 1);
  const auto request = (*store)->FindRequest("owner", "key");
  ASSERT_TRUE(request.ok() && request->has_value());
  RequestRecord expected = Request();
  expected.session = session->id;
  EXPECT_EQ(**request, expected);
  const auto snapshots = (*store)->ReadSnapshots(session->id);
  ASSERT_EQ(snapshots->size(), version >= 3 ? 2u : 1u);
  EXPECT_EQ(snapshots->back().base, version >= 3 ? snapshots->front().id : 0);
  EXPECT_EQ((*snapshots)[0].has_facts, version >= 2);
  EXPECT_EQ((*snapshots)[0].facts, version >= 2 ? "facts" : "");
  const auto slab = SlabReader::Open(files, (*store)->SnapshotPath((*snapshots)[0].id));
  ASSERT_TRUE(slab.ok()) << slab.status();
  EXPECT_EQ((*slab)->head().name, "../name");
  std::vector<char> bytes(sizeof "bytes of a state");
  ASSERT_TRUE((*slab)->ReadSection("state", std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_STREQ(bytes.data(), "bytes of a state");
  // What it says is enough to go back by.
  EXPECT_EQ((*store)->Apply({RewindSession{session->id, {.checkpoint = "start"}}}),
            absl::OkStatus());
  EXPECT_EQ((*store)->Find(session->id)->fed_tokens, 5);
  EXPECT_EQ((*store)->Find(session->id)->pending_token,
            version >= 2 ? std::optional<int32_t>(5) : std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Versions, StoreFixtureTest, testing::Values(1, 2, 3, kNewest));

}  // namespace
}  // namespace mneme
