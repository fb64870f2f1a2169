// A store whose folder others touch while it is open takes nothing more, or keeps them out.
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/session_store.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

TEST(StoreFolderTest, AFolderThatIsGoneTakesNothing) {
  StoreFolder folder;
  const std::string path = folder.path() + "/store", elsewhere = folder.path() + "/elsewhere";
  PosixFileSystem files;
  StoreReport report;
  const auto store = SessionStore::Open(files, path, {.reserved_bytes = 0}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  const SessionRecord a = NamedSession(**store, "a");
  ASSERT_EQ((*store)->Apply({CreateSession{a}}), absl::OkStatus());
  std::filesystem::rename(path, elsewhere);
  const std::vector<std::vector<Change>> batches = {
      {TurnOf(a.id, TokenTurn(0, {1}))},
      {RewindSession{a.id, {.position = 0}}},
      {AddCheckpoint{a.id, {"here", 0, absl::UnixEpoch()}}},
      {DeleteSession{a.id}},
  };
  for (const auto& batch : batches) {
    EXPECT_TRUE(absl::IsUnavailable((*store)->Apply(batch)));
    EXPECT_TRUE(absl::IsUnavailable((*store)->stats().last_error));
  }
  std::filesystem::create_directory(path);  // another one in its place
  EXPECT_TRUE(absl::IsUnavailable((*store)->Apply(batches[0])));
  std::filesystem::remove(path);
  std::filesystem::rename(elsewhere, path);
  EXPECT_EQ((*store)->Apply(batches[0]), absl::OkStatus());
  EXPECT_EQ((*store)->stats().written_anew, 0);
  std::filesystem::remove(path + "/catalogue.1.db-wal");
  EXPECT_THAT((*store)->Apply({DeleteSession{a.id}}),
              Fails(absl::StatusCode::kUnavailable, "catalogue.1.db-wal"));
}

TEST(StoreFolderTest, RemovingTheLockLetsNobodyIn) {
  StoreFolder folder;
  PosixFileSystem files;
  StoreReport report;
  auto first = SessionStore::Open(files, folder.path(), {}, report);
  ASSERT_TRUE(first.ok()) << first.status();
  std::filesystem::remove(folder.path() + "/lock");
  EXPECT_THAT(SessionStore::Open(files, folder.path(), {}, report).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "held by process"));
  first->reset();
  EXPECT_TRUE(SessionStore::Open(files, folder.path(), {}, report).ok());
}

}  // namespace
}  // namespace mneme
