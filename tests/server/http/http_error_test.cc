#include "server/http/http_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/status_payload.h"
#include "server/http/http_response_head.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Field(const HttpResponse& response, absl::string_view name) {
  for (const HttpField& field : response.fields) {
    if (field.name == name) return field.value;
  }
  return "";
}

TEST(HttpErrorTest, ErrorsOfAPositionHaveItAsANumber) {
  const HttpResponse lost = ErrorResponse(
      WithPosition(WithReason(absl::DataLossError("it was lost"), kReasonSessionLost), 9));
  EXPECT_EQ(lost.status, 410);
  EXPECT_EQ(lost.body,
            R"({"error":{"message":"it was lost","type":"invalid_request_error","param":null,)"
            R"("code":"session_lost","position":9}})");
  EXPECT_EQ(ResponseHead(lost, {}).substr(0, 17), "HTTP/1.1 410 Gone");
  EXPECT_THAT(ErrorResponse(absl::NotFoundError("x")).body, Not(HasSubstr("position")));
}

// Each status that an error of a request can have.
TEST(HttpErrorTest, EveryStatusHasItsNameInTheStatusLine) {
  for (const int status :
       {400, 401, 403, 404, 408, 409, 410, 412, 413, 422, 429, 499, 500, 501, 503}) {
    EXPECT_NE(HttpReason(status), "Status") << status;
  }
}

TEST(HttpErrorTest, OnlyWhereWaitingHelpsClientsAreToldToRetry) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  const HttpResponse queue = ErrorResponse(full);
  EXPECT_EQ(Field(queue, "x-should-retry"), "true");
  EXPECT_EQ(Field(queue, "Retry-After"), "1");
  for (const char* reason : {kReasonCheckpointLimit, kReasonSessionLimit, kReasonStorageLimit}) {
    const HttpResponse limit = ErrorResponse(WithReason(full, reason));
    EXPECT_EQ(limit.status, 429) << reason;
    EXPECT_EQ(Field(limit, "x-should-retry"), "false") << reason;
    EXPECT_EQ(Field(limit, "Retry-After"), "") << reason;
  }
  const HttpResponse expires =
      ErrorResponse(WithRetryAfter(WithReason(full, kReasonSessionLimit), absl::Seconds(20)));
  EXPECT_EQ(Field(expires, "x-should-retry"), "true");
  EXPECT_EQ(Field(expires, "Retry-After"), "20");
}

}  // namespace
}  // namespace mneme
