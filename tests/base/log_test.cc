#include "base/log.h"

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log_fields.h"
#include "base/log_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/stuck_pipe.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

// Puts the global settings back.
class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    SetMinLogSeverity(LogSeverity::kInfo);
    SetLogFormat(LogFormat::kText);
  }
};

TEST_F(LogTest, AnEventIsOneLineWithTimeSeverityAndPlace) {
  CaptureStderr();
  LOG(WARNING) << "slow step"
               << " rows=" << 7 << " seconds=" << 0.5;
  const std::string line = GetCapturedStderr();
  EXPECT_THAT(line,
              ContainsRegex("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                            "W log_test\\.cc:[0-9]+\\] slow step rows=7 seconds=0\\.5\n$"));
}

TEST_F(LogTest, LineBreaksInAMessageDoNotStartAnotherEvent) {
  CaptureStderr();
  LOG(INFO) << "name=a\n2026-01-01T00:00:00.000Z I forged.cc:1] b\r";
  const std::string line = GetCapturedStderr();
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  EXPECT_THAT(line, HasSubstr("a\\n2026"));
}

TEST_F(LogTest, DroppedEventsDoNotEvaluateTheirArguments) {
  SetMinLogSeverity(LogSeverity::kError);
  int evaluations = 0;
  CaptureStderr();
  LOG(INFO) << ++evaluations;
  LOG(WARNING) << ++evaluations;
  LOG(ERROR) << ++evaluations;
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("] 1\n"));
  EXPECT_EQ(evaluations, 1);
}

TEST_F(LogTest, JsonEscapesWhatItMust) {
  SetLogFormat(LogFormat::kJson);
  CaptureStderr();
  LOG(ERROR) << "path=\"a\\b\"\n\x01";
  EXPECT_THAT(GetCapturedStderr(),
              AllOf(ContainsRegex("^\\{\"time\":\"[^\"]+Z\",\"severity\":\"ERROR\","
                                  "\"file\":\"log_test\\.cc\",\"line\":[0-9]+,\"message\":"),
                    HasSubstr("\"path=\\\"a\\\\b\\\"\\n\\u0001\"}\n")));
}

TEST_F(LogTest, AnEventHasItsMessageInFrontOfItsFields) {
  const LogFields line =
      LogFields("late").Message("step 7\nis \"late\"").Add("step", 7).Add("who", "a b");
  CaptureStderr();
  line.Write(LogSeverity::kWarning);
  EXPECT_THAT(GetCapturedStderr(),
              ContainsRegex("Z W late: step 7\\\\nis \"late\" step=7 who=\"a b\"\n$"));
  SetLogFormat(LogFormat::kJson);
  CaptureStderr();
  line.Write(LogSeverity::kWarning);
  EXPECT_THAT(GetCapturedStderr(),
              HasSubstr("\"severity\":\"WARNING\",\"event\":\"late\",\"message\":"
                        "\"step 7\\nis \\\"late\\\"\",\"step\":7,\"who\":\"a b\"}\n"));
}

TEST_F(LogTest, EventsBelowTheLeastSeverityAreLeftOut) {
  SetMinLogSeverity(LogSeverity::kWarning);
  CaptureStderr();
  LogFields("unimportant").Write(LogSeverity::kInfo);
  LogFields("important").Write(LogSeverity::kWarning);
  LogFields("decided").WriteAlways(LogSeverity::kInfo);
  EXPECT_THAT(GetCapturedStderr(), ContainsRegex("^[^\n]+Z W important\n[^\n]+Z I decided\n$"));
}

TEST_F(LogTest, LinesOfSeveralThreadsDoNotMix) {
  constexpr int kThreads = 8;
  constexpr int kLines = 200;
  CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < kLines; ++i)
          LOG(INFO) << "begin " << std::string(50, 'a' + t) << " end";
      });
    }
  }
  const std::string output = GetCapturedStderr();
  int lines = 0;
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    ++lines;
    const size_t begin = line.find("begin ");
    ASSERT_NE(begin, absl::string_view::npos) << line;
    const char letter = line[begin + 6];
    ASSERT_EQ(line.substr(begin), absl::StrCat("begin ", std::string(50, letter), " end"));
  }
  EXPECT_EQ(lines, kThreads * kLines);
}

TEST_F(LogTest, LogBindsLikeAStatement) {
  CaptureStderr();
  bool reached_else = false;
  if (false)
    LOG(INFO) << "not printed";
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST_F(LogTest, ControlCharactersCannotMoveATerminalsCursor) {
  CaptureStderr();
  LOG(INFO) << "path=\x1b[2J\x07 caf\xc3\xa9";
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("path=\\x1b[2J\\x07 caf\xc3\xa9\n"));
}

TEST_F(LogTest, AReaderThatStopsHoldsNobodyUp) {
  StuckPipe pipe;
  const int64_t dropped = DroppedLogLines();
  {
    const auto writer = LogWriter::Start(pipe.write_end(), {.max_waiting_bytes = 4000});
    ASSERT_TRUE(writer.ok());
    for (int i = 0; i < 100; ++i) LOG(INFO) << "line " << i << std::string(100, '.');
    const LogFields more = LogFields("more").Message(std::string(4000, '.'));
    EXPECT_FALSE(more.WriteAlways(LogSeverity::kInfo)) << "there is no room";
    EXPECT_FALSE(FlushLog(absl::Milliseconds(1)));
    EXPECT_GT(DroppedLogLines(), dropped);
    pipe.ReadFilling();
    ASSERT_TRUE(FlushLog(absl::Minutes(1)));
    const std::string text = pipe.ReadSome();
    EXPECT_THAT(text, HasSubstr("line 0."));
    EXPECT_THAT(text, ContainsRegex(absl::StrCat(
                          " W log_lines_dropped: ", DroppedLogLines() - dropped,
                          " lines were dropped: .* lines=", DroppedLogLines() - dropped, "\n$")));
  }
  CaptureStderr();
  LOG(INFO) << "directly";
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("directly"));
}

TEST_F(LogTest, WhoLogsAfterAReaderWasGivenUpIsNotHeldUpEither) {
  StuckPipe pipe;
  const int64_t dropped = DroppedLogLines();
  {
    const auto writer = LogWriter::Start(pipe.write_end());
    ASSERT_TRUE(writer.ok());
    LOG(INFO) << "nobody reads this";
  }
  CaptureStderr();
  LOG(INFO) << "nor this";
  EXPECT_EQ(GetCapturedStderr(), "");
  EXPECT_EQ(DroppedLogLines(), dropped + 1);
  const auto next = LogWriter::Start();  // for the tests that follow
  ASSERT_TRUE(next.ok());
}

TEST(CheckTest, PassingChecksEvaluateTheirOperandsOnceAndNoMessage) {
  int operands = 0;
  int messages = 0;
  CHECK(++operands > 0) << ++messages;
  CHECK_EQ(++operands, 2) << ++messages;
  CHECK_LT(operands, uint64_t{3}) << ++messages;
  CHECK_OK(absl::OkStatus()) << ++messages;
  EXPECT_EQ(operands, 2);
  EXPECT_EQ(messages, 0);
}

TEST(CheckTest, IntegersOfDifferentSignednessCompareByValue) {
  CHECK_LT(-1, 0u);
  CHECK_NE(-1, ~0u);
  CHECK_GE(std::vector<int>(3).size(), 3);
}

TEST(CheckDeathTest, AFailedCheckPrintsConditionValuesAndMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int slot = 3;
  EXPECT_DEATH(CHECK(slot < 0) << "slot=" << slot,
               "F log_test\\.cc:[0-9]+\\] check failed: slot < 0 slot=3");
  EXPECT_DEATH(CHECK_EQ(slot, 4) << "after fork",
               "check failed: slot == 4 \\(3 vs\\. 4\\) after fork");
  EXPECT_DEATH(CHECK_NE(&slot, nullptr) << "ok"; LOG(FATAL) << "gave up", "\\] gave up");
  EXPECT_DEATH(CHECK_OK(absl::NotFoundError("weights")), "is not ok: NOT_FOUND: weights");
}

TEST(CheckDeathTest, FatalIsPrintedWhateverTheMinimumSeverity) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        SetMinLogSeverity(LogSeverity::kFatal);
        LOG(FATAL) << "last words";
      },
      "last words");
}

// The message would stay in the queue if nobody waited for it.
TEST(CheckDeathTest, FatalIsPrintedBehindWhatWaits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto writer = LogWriter::Start(STDERR_FILENO, {.max_waiting_bytes = 1000});
        for (int i = 0; i < 1000; ++i) LOG(INFO) << "line " << i;
        LOG(FATAL) << "last words";
      },
      "last words");
}

TEST(CheckDeathTest, FatalEndsTheProcessThoughNobodyReads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        StuckPipe pipe;
        const auto writer = LogWriter::Start(pipe.write_end());
        LOG(FATAL) << "nobody reads this";
      },
      "");
  EXPECT_DEATH(
      {
        StuckPipe pipe;
        dup2(pipe.write_end(), STDERR_FILENO);
        LOG(FATAL) << "nor this, without a writer";
      },
      "");
}

TEST(CheckTest, DebugChecksRunInDebugBuildsOnly) {
  int evaluations = 0;
  DCHECK(++evaluations > 0);
  DCHECK_EQ(++evaluations, evaluations);
#ifdef NDEBUG
  EXPECT_EQ(evaluations, 0);
#else
  EXPECT_EQ(evaluations, 2);
#endif
}

}  // namespace
}  // namespace mneme
