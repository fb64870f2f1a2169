// The line for a request, and what it never holds.
#include "server/requests/request_log.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

RequestReport Completed() {
  RequestReport report;
  report.id = "req-1";
  report.origin = {.api = "grpc", .client = "127.0.0.1:1", .trace_id = "ab", .span_id = "cd"};
  report.session = {.owner = "team", .name = "chat"};
  report.admitted = true;
  report.finish = FinishReason::kLength;
  report.usage = {.prompt_tokens = 3, .completion_tokens = 5, .resumed_tokens = 40};
  report.timings = {.queue = absl::Milliseconds(1),
                    .prefill = absl::Milliseconds(20),
                    .decode = absl::Microseconds(30500)};
  report.total = absl::Milliseconds(60);
  return report;
}

class RequestLogTest : public ::testing::Test {
 protected:
  ~RequestLogTest() override {
    SetMinLogSeverity(LogSeverity::kInfo);
    SetLogFormat(LogFormat::kText);
  }
  std::string Log(const RequestReport& report, RequestLog::Which which = RequestLog::Which::kAll) {
    CaptureStderr();
    { RequestLog(which, stats_).Add(report); }  // the destructor waits for the line
    return GetCapturedStderr();
  }

  ServerStats stats_;
};

TEST_F(RequestLogTest, ACompletedRequestIsOneLineOfText) {
  const std::string line = Log(Completed());
  EXPECT_THAT(line, HasSubstr(" I request id=req-1 trace_id=ab span_id=cd api=grpc "
                              "client=127.0.0.1:1 owner=team session=chat outcome=completed "
                              "finish=length prompt_tokens=3 cached_tokens=40 generated_tokens=5 "
                              "queue_ms=1.000 prefill_ms=20.000 decode_ms=30.500 "
                              "total_ms=60.000\n"));
}

TEST_F(RequestLogTest, AFullContextIsToldFromMaxTokens) {
  RequestReport report = Completed();
  report.context_full = true;
  EXPECT_THAT(Log(report), HasSubstr(" finish=length context_full=true prompt_tokens=3 "));
}

TEST_F(RequestLogTest, OrAnObjectOfJson) {
  SetLogFormat(LogFormat::kJson);
  const nlohmann::json line = nlohmann::json::parse(Log(Completed()));
  EXPECT_EQ(line["event"], "request");
  EXPECT_EQ(line["severity"], "INFO");
  EXPECT_EQ(line["id"], "req-1");
  EXPECT_EQ(line["cached_tokens"], 40);
  EXPECT_EQ(line["decode_ms"], 30.5);
}

TEST_F(RequestLogTest, ARefusalSaysItsCodeAndReasonAndNotItsMessage) {
  const std::string line = Log(RefusedReport(
      "req-2", {.api = "http", .client = "c"}, "team",
      WithReason(absl::NotFoundError("\"a secret\""), kReasonNoSession), absl::Milliseconds(2)));
  EXPECT_THAT(line, HasSubstr("owner=team outcome=rejected code=NOT_FOUND reason=NO_SUCH_SESSION"));
  EXPECT_THAT(line, Not(HasSubstr("secret")));
  EXPECT_THAT(line, Not(HasSubstr("prompt_tokens")));
}

TEST_F(RequestLogTest, OutcomesAreThoseOfTheMetrics) {
  RequestReport report = Completed();
  EXPECT_EQ(OutcomeOf(report), "completed");
  report.replayed = true;
  EXPECT_EQ(OutcomeOf(report), "replayed");
  report.replayed = false;
  report.status = absl::CancelledError("");
  EXPECT_EQ(OutcomeOf(report), "cancelled");
  report.status = absl::DeadlineExceededError("");
  EXPECT_EQ(OutcomeOf(report), "deadline");
  report.status = absl::InternalError("");
  EXPECT_EQ(OutcomeOf(report), "error");
  EXPECT_THAT(Log(report), HasSubstr(" W request "));
  report.admitted = false;
  EXPECT_EQ(OutcomeOf(report), "rejected");
}

TEST_F(RequestLogTest, WhichRequestsGetALineIsASetting) {
  RequestReport failed = Completed();
  failed.status = absl::InternalError("");
  EXPECT_EQ(Log(Completed(), RequestLog::Which::kFailed), "");
  EXPECT_NE(Log(failed, RequestLog::Which::kFailed), "");
  EXPECT_EQ(Log(failed, RequestLog::Which::kNone), "");
  SetMinLogSeverity(LogSeverity::kWarning);
  EXPECT_EQ(Log(Completed()), "");
  EXPECT_NE(Log(failed), "");
}

TEST_F(RequestLogTest, TheLevelIsThatOfTheMomentWhenTheRequestEnded) {
  constexpr int kLines = 100;
  CaptureStderr();
  {
    RequestLog log(RequestLog::Which::kAll, stats_);
    for (int i = 0; i < kLines; ++i) log.Add(Completed());
    SetMinLogSeverity(LogSeverity::kWarning);  // the writer has not come to all of them
    for (int i = 0; i < kLines; ++i) log.Add(Completed());
  }
  const std::string lines = GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), kLines);
}

TEST_F(RequestLogTest, ATextThatCouldPassForAnotherFieldIsQuoted) {
  RequestReport report = Completed();
  report.id = "x outcome=completed \"y\"\nz";
  EXPECT_THAT(Log(report), HasSubstr("id=\"x outcome=completed \\\"y\\\"\\nz\" "));
}

}  // namespace
}  // namespace mneme
