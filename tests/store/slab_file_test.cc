#include "store/slab_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "store/crc32c.h"
#include "tests/store/failing_fs.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

constexpr char kPath[] = "/slabs/1.slab";
const SlabHead kHead = {.identity = {.model = 1, .state_format = 2, .adapter = 3},
                        .owner = "owner",
                        .name = "../../etc/passwd",
                        .session = 9,
                        .position = 1000,
                        .turn = 4,
                        .created = 1'700'000'000};

std::vector<std::byte> Noise(size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

absl::Status WriteTo(FileSystem& files) {
  absl::StatusOr<std::unique_ptr<SlabWriter>> writer = SlabWriter::Create(files, kPath, kHead);
  if (!writer.ok()) return writer.status();
  absl::Status status = (*writer)->AddSection("noise", Noise((size_t{1} << 20) + 77), true);
  const std::vector<std::byte> zeros(3'000'000);
  status.Update((*writer)->AddSection("zeros", zeros, true));
  status.Update((*writer)->AddSection("plain", zeros, false));
  status.Update((*writer)->AddSection("empty", {}, true));
  return status.ok() ? (*writer)->Finish().status() : status;
}

std::string ReadFile(FileSystem& files, const std::string& path) {
  const auto file = files.Open(path, OpenMode::kRead);
  std::string bytes(static_cast<size_t>(*(*file)->Size()), '\0');
  EXPECT_TRUE((*file)->Read(0, std::as_writable_bytes(std::span(bytes))).ok());
  return bytes;
}

void WriteFile(FileSystem& files, const std::string& path, const std::string& bytes) {
  const auto file = files.Open(path, OpenMode::kOpenOrCreate);
  ASSERT_TRUE((*file)->Truncate(0).ok());
  ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span(bytes))).ok());
}

TEST(Crc32cTest, SumsOfRfc3720) {
  EXPECT_EQ(Crc32c(0, std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(0, std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(0, "123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(Crc32c(0, "1234"), "56789"), 0xE3069283u);
}

TEST(Crc32cTest, LongOnesAreThoseOfTheirParts) {
  const std::vector<std::byte> bytes = Noise(200'001);
  const std::span<const std::byte> all = bytes;
  for (const size_t size : {0, 8, 49'151, 49'152, 49'160, 98'304, 200'001}) {
    uint32_t by_pieces = 0;
    for (size_t at = 0; at < size; at += 1000) {
      by_pieces = Crc32c(by_pieces, all.subspan(at, std::min<size_t>(1000, size - at)));
    }
    EXPECT_EQ(Crc32c(0, all.first(size)), by_pieces) << size;
    for (const size_t first : {size_t{0}, size / 3, size}) {
      const uint32_t second = Crc32c(0, all.subspan(first, size - first));
      EXPECT_EQ(ConcatCrc32c(Crc32c(0, all.first(first)), second, size - first), by_pieces);
    }
  }
}

TEST(SlabFileTest, ABlockIsCheckedWhenItIsRead) {
  PowerLossFileSystem files;
  ASSERT_TRUE(WriteTo(files).ok());
  std::string bytes = ReadFile(files, kPath);
  bytes[5000] = static_cast<char>(bytes[5000] ^ 1);  // in the first section
  WriteFile(files, kPath, bytes);
  EXPECT_THAT(SlabReader::Open(files, kPath).status(), Fails(absl::StatusCode::kDataLoss, kPath));
  const auto reader = SlabReader::Open(files, kPath, SlabCheck::kIndex);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::byte> noise((size_t{1} << 20) + 77), zeros(3'000'000);
  EXPECT_THAT((*reader)->ReadSection("noise", noise),
              Fails(absl::StatusCode::kDataLoss, "has another checksum"));
  EXPECT_EQ((*reader)->ReadSection("zeros", zeros), absl::OkStatus());
}

TEST(SlabFileTest, ReturnsWhatWasWritten) {
  PowerLossFileSystem files;
  ASSERT_TRUE(WriteTo(files).ok());
  const auto reader = SlabReader::Open(files, kPath);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->head().name, kHead.name);
  EXPECT_EQ((*reader)->head().position, 1000);
  EXPECT_EQ((*reader)->head().turn, 4);
  EXPECT_TRUE((*reader)->CheckIdentity(kHead.identity).ok());
  ASSERT_EQ((*reader)->sections().size(), 4u);
  EXPECT_LT((*reader)->sections()[1].stored_bytes, 1000u);
  EXPECT_EQ((*reader)->sections()[2].stored_bytes, 3'000'000u);
  std::vector<std::byte> noise((size_t{1} << 20) + 77);
  ASSERT_TRUE((*reader)->ReadSection("noise", noise).ok());
  EXPECT_EQ(noise, Noise(noise.size()));
  std::vector<std::byte> zeros(3'000'000, std::byte{1});
  ASSERT_TRUE((*reader)->ReadSection("zeros", zeros).ok());
  EXPECT_EQ(zeros, std::vector<std::byte>(3'000'000));
  EXPECT_THAT((*reader)->ReadSection("plain", noise),
              Fails(absl::StatusCode::kInvalidArgument, "has 3000000 bytes, expected 1048653"));
  EXPECT_THAT((*reader)->ReadSection("other", noise),
              Fails(absl::StatusCode::kNotFound, "no section other"));
}

TEST(SlabFileTest, RefusesTheSnapshotsOfOthers) {
  PowerLossFileSystem files;
  ASSERT_TRUE(WriteTo(files).ok());
  const auto reader = SlabReader::Open(files, kPath);
  SlabIdentity other = kHead.identity;
  other.state_format = 17;
  EXPECT_THAT((*reader)->CheckIdentity(other),
              Fails(absl::StatusCode::kFailedPrecondition,
                    "is of state format 0000000000000002, this server's is 0000000000000011"));
}

TEST(SlabFileTest, FindsEveryTornEndAndAnyAlteredByte) {
  PowerLossFileSystem files;
  const SlabHead head = {.owner = "o", .name = "n"};
  const auto writer = SlabWriter::Create(files, kPath, head);
  ASSERT_TRUE((*writer)->AddSection("a", Noise(300), true).ok());
  ASSERT_TRUE((*writer)->AddSection("b", std::vector<std::byte>(5000), true).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const std::string whole = ReadFile(files, kPath);
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteFile(files, kPath, whole.substr(0, size));
    ASSERT_EQ(SlabReader::Open(files, kPath).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char flip : {'\x01', '\x80', '\xFF'}) {
      std::string altered = whole;
      altered[at] = static_cast<char>(altered[at] ^ flip);
      WriteFile(files, kPath, altered);
      const absl::Status status = SlabReader::Open(files, kPath).status();
      ASSERT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) << at << status;
    }
  }
  WriteFile(files, kPath, whole + "x");
  EXPECT_TRUE(absl::IsDataLoss(SlabReader::Open(files, kPath).status()));
}

TEST(SlabFileTest, RefusesANewerVersionByNumber) {
  PowerLossFileSystem files;
  ASSERT_TRUE(WriteTo(files).ok());
  std::string bytes = ReadFile(files, kPath);
  bytes[8] = 3;
  WriteFile(files, kPath, bytes);
  EXPECT_THAT(
      SlabReader::Open(files, kPath).status(),
      Fails(absl::StatusCode::kFailedPrecondition, "is of version 3, this program reads up to 2"));
}

TEST(SlabFileTest, LeavesNothingBehindWhateverFails) {
  using Kind = FailingFileSystem::Kind;
  for (const Kind kind : {Kind::kOpen, Kind::kWrite, Kind::kSync, Kind::kRename}) {
    for (int64_t number = 0;; ++number) {
      PowerLossFileSystem disk;
      FailingFileSystem files(disk);
      files.Fail(kind, number, absl::ResourceExhaustedError("no space"));
      const absl::Status status = WriteTo(files);
      if (status.ok()) {
        ASSERT_GT(number, 0);
        break;
      }
      EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "no space"));
      EXPECT_TRUE(disk.AllFiles().empty());
    }
  }
}

}  // namespace
}  // namespace mneme
