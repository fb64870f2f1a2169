// JSON of strangers: in linear time, within limits, and only for as long as anybody waits for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "server/json.h"

namespace mneme {

// The limits of one text. A value of any kind takes sixteen bytes, a list or an object a hundred
// more.
struct JsonLimits {
  int depth = 64;
  int64_t values = int64_t{4} << 20;
  int64_t lists_and_objects = 262144;
  size_t fields = 1024;  // of one object
};

// INVALID_ARGUMENT with the reason BAD_BODY, for what is about all of a body.
absl::Status BodyError(absl::string_view message);

// INVALID_ARGUMENT as of BodyError, or with the field, for what is not JSON, more than
// `limits` allow, or an object with one field twice. Counts every value and its bytes with `meter`,
// and ends by it.
absl::StatusOr<Json> ParseJson(absl::string_view text, const JsonLimits& limits, WorkMeter& meter);

}  // namespace mneme
