// Readers that stop, and what is said of it once they go on.
#include "base/line_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/stuck_pipe.h"

namespace mneme {
namespace {

constexpr absl::Duration kLongEnough = absl::Minutes(1);

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

std::string Gap(int64_t lines) { return absl::StrCat("gap of ", lines, "\n"); }

TEST(LineWriterTest, LinesComeInTheirOrder) {
  StuckPipe pipe;
  pipe.ReadFilling();
  const auto writer = LineWriter::Start(pipe.write_end());
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->Write("one\n"));
  EXPECT_TRUE((*writer)->Write("two\n"));
  EXPECT_TRUE((*writer)->Flush(kLongEnough));
  EXPECT_EQ(pipe.ReadSome(), "one\ntwo\n");
  EXPECT_EQ((*writer)->dropped(), 0);
}

TEST(LineWriterTest, AReaderThatStopsHoldsNobodyUpAndIsToldWhatItMissed) {
  StuckPipe pipe;
  const auto writer =
      LineWriter::Start(pipe.write_end(), {.max_waiting_bytes = 1000, .describe_gap = Gap});
  ASSERT_TRUE(writer.ok());
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += (*writer)->Write(absl::StrCat("line ", i, "\n")) ? 1 : 0;
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 100);
  EXPECT_EQ((*writer)->dropped(), 100 - taken);
  EXPECT_FALSE((*writer)->Flush(absl::Milliseconds(1)));

  pipe.ReadFilling();
  ASSERT_TRUE((*writer)->Flush(kLongEnough));
  const std::string text = pipe.ReadSome();
  const std::vector<std::string> lines = Lines(text);
  ASSERT_EQ(lines.size(), static_cast<size_t>(taken) + 1) << text;
  EXPECT_EQ(lines.back(), absl::StrCat("gap of ", 100 - taken));
  EXPECT_EQ(lines.front(), "line 0");

  EXPECT_TRUE((*writer)->Write("again\n")) << "there is room again";
  ASSERT_TRUE((*writer)->Flush(kLongEnough));
  EXPECT_EQ(pipe.ReadSome(), "again\n") << "a gap is told of once";
}

TEST(LineWriterTest, LastWordsAreNotDropped) {
  StuckPipe pipe;
  const auto writer = LineWriter::Start(pipe.write_end(), {.max_waiting_bytes = 1});
  ASSERT_TRUE(writer.ok());
  EXPECT_FALSE((*writer)->Write("much\n"));
  (*writer)->WriteInAnyCase("last words\n");
  pipe.ReadFilling();
  ASSERT_TRUE((*writer)->Flush(kLongEnough));
  EXPECT_EQ(pipe.ReadSome(), "last words\n");
}

TEST(LineWriterTest, TheEndDoesNotWaitForAReaderThatStopped) {
  StuckPipe pipe;
  auto writer = LineWriter::Start(pipe.write_end());
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->Write("one\n"));
  EXPECT_TRUE((*writer)->Write("two\n"));
  writer->reset();
}

TEST(LineWriterTest, LinesThatCannotBeWrittenCountAsDropped) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  {
    const auto writer = LineWriter::Start(full, {.describe_gap = Gap});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE((*writer)->Write("lost\n"));
    EXPECT_TRUE((*writer)->Flush(kLongEnough));
    EXPECT_EQ((*writer)->dropped(), 1);
  }
  close(full);
}

TEST(LineWriterTest, APipeThatDoesNotBlockLosesNothing) {
  StuckPipe pipe;
  ASSERT_EQ(fcntl(pipe.write_end(), F_SETFL, O_NONBLOCK), 0);
  const auto writer = LineWriter::Start(pipe.write_end());
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->Write("patient\n"));
  pipe.ReadFilling();
  ASSERT_TRUE((*writer)->Flush(kLongEnough));
  EXPECT_EQ(pipe.ReadSome(), "patient\n");
  EXPECT_EQ((*writer)->dropped(), 0);
}

}  // namespace
}  // namespace mneme
