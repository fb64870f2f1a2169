#include "base/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() : folder_(absl::StrCat(::testing::TempDir(), "mapped_file_test_", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  // Expects an error of this kind that names the path.
  static void ExpectError(const std::string& path, absl::StatusCode code,
                          const std::string& explanation) {
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    EXPECT_EQ(file.status().code(), code) << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(path));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(explanation));
  }

  const std::string folder_;
};

TEST_F(MappedFileTest, HoldsTheBytesOfTheFile) {
  const std::string content("a\0b\xFF\n", 5);
  const std::string path = Write("small", content);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 5);
  EXPECT_EQ(file->bytes().size(), 5u);
  EXPECT_EQ(std::string(file->text()), content);
  EXPECT_EQ(file->path(), path);
}

TEST_F(MappedFileTest, BytesStayWhereTheyAreWhenTheObjectMoves) {
  absl::StatusOr<MappedFile> opened = MappedFile::Open(Write("a", "first"));
  absl::StatusOr<MappedFile> other = MappedFile::Open(Write("b", "second"));
  ASSERT_TRUE(opened.ok() && other.ok());
  const std::byte* data = opened->bytes().data();
  MappedFile moved = *std::move(opened);
  EXPECT_EQ(moved.bytes().data(), data);
  *other = std::move(moved);
  EXPECT_EQ(other->bytes().data(), data);
  EXPECT_EQ(std::string(other->text()), "first");
}

TEST_F(MappedFileTest, AdviceNeverChangesTheBytes) {
  std::string content(1'000'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31);
  const std::string path = Write("large", content);
  for (const FileAccess access : {FileAccess::kNormal, FileAccess::kWillNeed}) {
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path, access);
    ASSERT_TRUE(file.ok()) << file.status();
    file->Advise(5000, 700'000, access);
    file->Release(-10, 2'000'000);
    file->Release(4097, 4099);
    EXPECT_TRUE(file->text() == content);
  }
}

TEST_F(MappedFileTest, ErrorsNameThePath) {
  ExpectError(absl::StrCat(folder_, "/missing"), absl::StatusCode::kNotFound, "cannot open");
  ExpectError(folder_, absl::StatusCode::kFailedPrecondition, "is a directory");
  ExpectError(Write("empty", ""), absl::StatusCode::kInvalidArgument, "is empty");
  const std::string pipe = absl::StrCat(folder_, "/pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectError(pipe, absl::StatusCode::kFailedPrecondition, "not a regular file");
}

TEST_F(MappedFileTest, UnreadableFilesAreDenied) {
  const std::string path = Write("secret", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  // root may read everything, so it becomes nobody for the moment.
  const uid_t user = geteuid();
  constexpr uid_t kNobody = 65534;
  if (user == 0) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  ExpectError(path, absl::StatusCode::kPermissionDenied, "cannot open");
  ASSERT_EQ(seteuid(user), 0);
}

}  // namespace
}  // namespace mneme
