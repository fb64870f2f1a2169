// The details of a server's error beyond its code and message (google.rpc.Status), carried inside
// an absl::Status.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace mneme {

struct ErrorDetails {
  struct FieldViolation {
    std::string field;  // "sampling.temperature"
    std::string description;
  };

  std::string reason;                           // "SESSION_BUSY"; docs/operations.md has a list
  std::map<std::string, std::string> metadata;  // "position" -> "1234"
  std::vector<FieldViolation> fields;
  std::optional<absl::Duration> retry_after;
};

// Empty for a status that brought none.
ErrorDetails DetailsOf(const absl::Status& status);

// "NOT_FOUND: no session \"x\" (reason NO_SUCH_SESSION)", with position and time to wait where the
// server gave them.
std::string ReadableError(const absl::Status& status);

// `details` is a serialized google.rpc.Status, or empty.
absl::Status MakeStatus(int code, absl::string_view message, const std::string& details);

}  // namespace mneme
