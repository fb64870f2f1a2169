#include "store/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(PosixFileSystemTest, FilesAreForTheirOwnerAlone) {
  StoreFolder folder;
  PosixFileSystem posix;
  FileSystem& files = posix;
  const std::string inner = folder.path() + "/inner";
  ASSERT_TRUE(files.CreateDirectory(inner).ok());
  ASSERT_TRUE(files.CreateDirectory(inner).ok());
  ASSERT_TRUE(files.Open(inner + "/a", OpenMode::kCreate).ok());
  struct stat facts;
  ASSERT_EQ(stat(inner.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  ASSERT_EQ(stat((inner + "/a").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
}

TEST(PosixFileSystemTest, ReadsWhatWasWritten) {
  StoreFolder folder;
  PosixFileSystem posix;
  FileSystem& files = posix;
  const std::string path = folder.path() + "/a";
  const auto file = files.Open(path, OpenMode::kCreate);
  ASSERT_TRUE((*file)->Write(3, Bytes("text")).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(*(*file)->Size(), 7);
  std::vector<std::byte> bytes(10);
  EXPECT_EQ(*(*file)->Read(4, bytes), 3u);
  EXPECT_EQ(bytes[0], std::byte{'e'});
  ASSERT_TRUE((*file)->Truncate(4).ok());
  ASSERT_TRUE(files.Rename(path, folder.path() + "/b").ok());
  ASSERT_TRUE(files.SyncDirectory(folder.path()).ok());
  EXPECT_EQ(*files.List(folder.path()), std::vector<std::string>{"b"});
  EXPECT_FALSE(*files.Exists(path));
  ASSERT_TRUE(files.Remove(folder.path() + "/b").ok());
  EXPECT_GT(*files.FreeBytes(folder.path()), 0);
}

TEST(PosixFileSystemTest, ErrorsNameOperationAndPath) {
  StoreFolder folder;
  PosixFileSystem posix;
  FileSystem& files = posix;
  const std::string path = folder.path() + "/a";
  EXPECT_THAT(files.Open(path, OpenMode::kRead).status(),
              Fails(absl::StatusCode::kNotFound, "open " + path));
  ASSERT_TRUE(files.Open(path, OpenMode::kCreate).ok());
  EXPECT_THAT(files.Open(path, OpenMode::kCreate).status(),
              Fails(absl::StatusCode::kAlreadyExists, "create " + path));
  EXPECT_FALSE(files.CreateDirectory(path).ok());
  ASSERT_EQ(symlink("/etc/hostname", (folder.path() + "/link").c_str()), 0);
  EXPECT_FALSE(files.Open(folder.path() + "/link", OpenMode::kReadWrite).ok());
}

TEST(PosixFileSystemTest, TheSecondIsToldWhoHasTheLock) {
  StoreFolder folder;
  PosixFileSystem posix;
  FileSystem& files = posix;
  const std::string path = folder.path() + "/lock";
  auto lock = files.Lock(path);
  ASSERT_TRUE(lock.ok());
  EXPECT_THAT(files.Lock(path).status(), Fails(absl::StatusCode::kFailedPrecondition,
                                               absl::StrCat("held by process ", getpid())));
  lock->reset();
  EXPECT_TRUE(files.Lock(path).ok());
}

}  // namespace
}  // namespace mneme
