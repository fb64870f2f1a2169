// Why bytes are no message of a type.
#pragma once

#include <google/protobuf/descriptor.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace mneme {

// For bytes that did not parse as a `type`. INVALID_ARGUMENT, reason MALFORMED_REQUEST: names the
// first text that is not UTF-8, as a field of the request, or says that the bytes are no protobuf
// message. Takes about as long as parsing does.
absl::Status ParseError(absl::string_view bytes, const google::protobuf::Descriptor& type);

}  // namespace mneme
