#pragma once

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace mneme {

// INVALID_ARGUMENT with path and byte offset for the first string field, of any depth, that is not
// UTF-8. Protobuf would print an error of its own and send the bytes all the same.
absl::Status CheckUtf8(const google::protobuf::Message& message);

}  // namespace mneme
