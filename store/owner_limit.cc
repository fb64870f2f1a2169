#include "store/owner_limit.h"

#include "absl/strings/cord.h"

namespace mneme {
namespace {

constexpr char kLimitPayload[] = "mneme/owner_limit";
constexpr char kSessions[] = "sessions";
constexpr char kBytes[] = "bytes";

}  // namespace

absl::Status OverLimit(OwnerLimit limit, absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kLimitPayload, absl::Cord(limit == OwnerLimit::kBytes ? kBytes : kSessions));
  return status;
}

std::optional<OwnerLimit> ExceededLimit(const absl::Status& status) {
  const absl::optional<absl::Cord> limit = status.GetPayload(kLimitPayload);
  if (!limit.has_value()) return std::nullopt;
  return *limit == kBytes ? OwnerLimit::kBytes : OwnerLimit::kSessions;
}

}  // namespace mneme
