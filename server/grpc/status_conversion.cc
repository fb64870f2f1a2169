#include "server/grpc/status_conversion.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace mneme {
namespace {

constexpr absl::Duration kDefaultRetryDelay = absl::Seconds(1);
// Message and details travel in HTTP/2 trailers, of which clients accept 8 KiB.
constexpr size_t kMaxMessageBytes = 1500;

std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return SanitizeUtf8(message);
  const size_t kept = CompleteUtf8Prefix(message.substr(0, kMaxMessageBytes));
  return absl::StrCat(SanitizeUtf8(message.substr(0, kept)), "...");
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::StatusCode code = status.code();
  if (code == absl::StatusCode::kOutOfRange) code = absl::StatusCode::kInvalidArgument;

  google::rpc::Status details;
  details.set_code(static_cast<int>(code));
  details.set_message(Shortened(status.message()));

  google::rpc::ErrorInfo info;
  info.set_domain("mneme");
  info.set_reason(SanitizeUtf8(ReasonOf(status).value_or(absl::StatusCodeToString(code))));
  if (const std::optional<int64_t> position = PositionOf(status); position.has_value()) {
    (*info.mutable_metadata())["position"] = absl::StrCat(*position);
  }
  details.add_details()->PackFrom(info);

  if (const std::optional<std::string> field = FieldOf(status); field.has_value()) {
    google::rpc::BadRequest bad_request;
    google::rpc::BadRequest::FieldViolation* violation = bad_request.add_field_violations();
    violation->set_field(SanitizeUtf8(*field));
    violation->set_description(details.message());
    details.add_details()->PackFrom(bad_request);
  }

  std::optional<absl::Duration> retry_after = RetryAfterOf(status);
  if (!retry_after.has_value() && WaitingHelps(status)) retry_after = kDefaultRetryDelay;
  if (retry_after.has_value()) {
    google::rpc::RetryInfo retry;
    absl::Duration rest;
    retry.mutable_retry_delay()->set_seconds(
        absl::IDivDuration(*retry_after, absl::Seconds(1), &rest));
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(code), details.message(),
                      details.SerializeAsString());
}

}  // namespace mneme
