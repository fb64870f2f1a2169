#include "server/grpc/status_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "clients/cpp/error_details.h"
#include "engine/status_payload.h"
#include "google/rpc/status.pb.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// To the wire and back, as a client sees it.
absl::Status RoundTrip(const absl::Status& status) {
  const grpc::Status wire = ToGrpcStatus(status);
  return MakeStatus(wire.error_code(), wire.error_message(), wire.error_details());
}

TEST(StatusConversionTest, CodesAndMessagesSurvive) {
  for (int code = 1; code <= 16; ++code) {
    if (code == static_cast<int>(absl::StatusCode::kOutOfRange)) continue;
    const absl::Status status(static_cast<absl::StatusCode>(code), "what happened");
    const absl::Status got = RoundTrip(status);
    EXPECT_EQ(got.code(), status.code());
    EXPECT_EQ(got.message(), "what happened");
    EXPECT_EQ(DetailsOf(got).reason, absl::StatusCodeToString(status.code()));
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(StatusConversionTest, AnIdOutOfRangeIsAnInvalidArgument) {
  EXPECT_EQ(RoundTrip(absl::OutOfRangeError("id 9")).code(), absl::StatusCode::kInvalidArgument);
}

TEST(StatusConversionTest, PayloadsBecomeDetails) {
  absl::Status status = absl::AbortedError("session is at 12, expected 3");
  status = WithPosition(WithReason(status, kReasonPosition), 12);
  const ErrorDetails details = DetailsOf(RoundTrip(status));
  EXPECT_EQ(details.reason, "POSITION_MISMATCH");
  EXPECT_THAT(details.metadata, UnorderedElementsAre(Pair("position", "12")));
  EXPECT_FALSE(details.retry_after.has_value());
}

TEST(StatusConversionTest, FieldErrorsNameTheField) {
  const ErrorDetails details =
      DetailsOf(RoundTrip(FieldError("sampling.top_p", "is 7, expected at most 1")));
  ASSERT_THAT(details.fields, SizeIs(1));
  EXPECT_EQ(details.fields[0].field, "sampling.top_p");
  EXPECT_THAT(details.fields[0].description, HasSubstr("sampling.top_p is 7"));
}

TEST(StatusConversionTest, OverloadSaysWhenToComeBack) {
  const absl::Status full =
      WithRetryAfter(absl::ResourceExhaustedError("queue full"), absl::Milliseconds(2500));
  EXPECT_EQ(DetailsOf(RoundTrip(full)).retry_after, absl::Milliseconds(2500));
  EXPECT_EQ(DetailsOf(RoundTrip(absl::UnavailableError("loading"))).retry_after, absl::Seconds(1));
  EXPECT_EQ(DetailsOf(RoundTrip(absl::NotFoundError("x"))).retry_after, std::nullopt);
}

TEST(StatusConversionTest, WhereOnlyADeletionHelpsNothingSaysToComeBack) {
  for (const char* reason :
       {kReasonCheckpointLimit, kReasonSessionLimit, kReasonStorageLimit, kReasonFileTooLarge}) {
    const absl::Status full = WithReason(absl::ResourceExhaustedError("full"), reason);
    EXPECT_EQ(DetailsOf(RoundTrip(full)).retry_after, std::nullopt) << reason;
    EXPECT_EQ(DetailsOf(RoundTrip(WithRetryAfter(full, absl::Seconds(7)))).retry_after,
              absl::Seconds(7))
        << reason;
  }
}

TEST(StatusConversionTest, LongOrBrokenMessagesFitIntoTrailers) {
  const grpc::Status wire = ToGrpcStatus(absl::InternalError(std::string(100000, 'x') + "\xff"));
  EXPECT_LT(wire.error_message().size() + wire.error_details().size(), 7000);
  const grpc::Status broken = ToGrpcStatus(absl::InternalError("a\xff b"));
  EXPECT_EQ(broken.error_message(), "a\xEF\xBF\xBD b");
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(broken.error_details()));
}

TEST(StatusConversionTest, ReadableErrorsSayItAll) {
  absl::Status status = WithReason(absl::ResourceExhaustedError("queue full"), "QUEUE_FULL");
  EXPECT_THAT(ReadableError(RoundTrip(status)), AllOf(HasSubstr("RESOURCE_EXHAUSTED: queue full"),
                                                      HasSubstr("QUEUE_FULL"), HasSubstr("1s")));
  EXPECT_EQ(ReadableError(absl::NotFoundError("x")), "NOT_FOUND: x");
}

}  // namespace
}  // namespace mneme
