// The JSON body of an HTTP request: one object, read field by field. What is not asked for is
// refused by name.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "server/http/http_message.h"
#include "server/json.h"
#include "server/openai/json_parser.h"

namespace mneme {

// INVALID_ARGUMENT for a body that is not JSON, not an object, or beyond JsonLimits; and for a
// Content-Type or Content-Encoding that says something else. Counts and ends by `meter`.
absl::StatusOr<Json> ParseJsonBody(const HttpRequest& request, WorkMeter& meter);

// On one line. Bytes that are not UTF-8 are replaced.
std::string JsonText(const Json& json);

HttpResponse JsonResponse(const Json& json);
HttpResponse JsonOrErrorResponse(const absl::StatusOr<Json>& json);

// The value as it is shown in messages: short, and without line breaks.
std::string ShownJson(const Json& value);

// Reads fields of one object; null is the same as absent. The first error stays, and Finish() tells
// it. Errors carry the field (status_payload.h).
class JsonFields {
 public:
  explicit JsonFields(const Json& object, absl::string_view prefix = "")
      : object_(object), prefix_(prefix) {}

  // Null where the field is absent.
  const Json* Find(absl::string_view name);

  bool Has(absl::string_view name) { return Find(name) != nullptr; }

  // True if the field is there and fits; else `out` stays as it is.
  bool Read(absl::string_view name, bool& out);
  bool Read(absl::string_view name, std::string& out);
  bool Read(absl::string_view name, float& out);
  bool Read(absl::string_view name, int64_t& out);
  bool Read(absl::string_view name, int32_t& out);

  // A field that is known, and has no effect here whatever it holds.
  void Ignore(absl::string_view name) { known_.insert(std::string(name)); }
  // A feature that is not there: only values that mean "without it" are taken: null, false, empty
  // ones, and `neutral`, in either spelling.
  void Unsupported(absl::string_view name, const Json& neutral = nullptr,
                   const Json& neutral_too = nullptr);

  void Fail(absl::string_view name, absl::string_view expected, const Json& value);
  void Fail(absl::string_view name, absl::string_view fault);
  void Fail(absl::Status status);
  bool ok() const { return status_.ok(); }
  // The first error; without one, whether there are fields that nobody asked for.
  absl::Status Finish() const;

 private:
  std::string Path(absl::string_view name) const;

  const Json& object_;
  const std::string prefix_;
  std::set<std::string> known_;
  absl::Status status_;
};

}  // namespace mneme
