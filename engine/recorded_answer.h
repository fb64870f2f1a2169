// The events of an answer as bytes, for a record of an idempotency key that outlives the process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"

namespace mneme {

// Begins with a version; readers refuse those above their own.
std::string EncodeAnswer(const std::vector<TokenEvent>& events);
// FAILED_PRECONDITION: of a newer version. DATA_LOSS. No events of no bytes.
absl::StatusOr<std::vector<TokenEvent>> DecodeAnswer(absl::string_view answer);

}  // namespace mneme
