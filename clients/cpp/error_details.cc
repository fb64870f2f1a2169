#include "clients/cpp/error_details.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace mneme {
namespace {

constexpr char kDetailsUrl[] = "type.googleapis.com/google.rpc.Status";

}  // namespace

absl::Status MakeStatus(int code, absl::string_view message, const std::string& details) {
  absl::Status status(static_cast<absl::StatusCode>(code), message);
  if (!status.ok() && !details.empty()) status.SetPayload(kDetailsUrl, absl::Cord(details));
  return status;
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailsUrl);
  google::rpc::Status rich;
  if (!payload.has_value() || !rich.ParseFromString(std::string(*payload))) return details;
  for (const google::protobuf::Any& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      details.reason = info.reason();
      details.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (any.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) {
        details.fields.push_back({violation.field(), violation.description()});
      }
    } else if (any.UnpackTo(&retry)) {
      details.retry_after = absl::Seconds(retry.retry_delay().seconds()) +
                            absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return details;
}

std::string ReadableError(const absl::Status& status) {
  const ErrorDetails details = DetailsOf(status);
  const std::string code = absl::StatusCodeToString(status.code());
  std::vector<std::string> facts;
  if (!details.reason.empty() && details.reason != code) {
    facts.push_back(absl::StrCat("reason ", details.reason));
  }
  for (const auto& [key, value] : details.metadata) facts.push_back(absl::StrCat(key, " ", value));
  if (details.retry_after.has_value()) {
    facts.push_back(absl::StrCat("try again in ", absl::FormatDuration(*details.retry_after)));
  }
  return absl::StrCat(code, ": ", status.message(), facts.empty() ? "" : " (",
                      absl::StrJoin(facts, ", "), facts.empty() ? "" : ")");
}

}  // namespace mneme
