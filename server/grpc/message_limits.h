// How much one message may consist of, counted before any of it is made: a few bytes on the wire
// become a hundred in memory.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace mneme {

// As JsonLimits are for bodies of HTTP. A message inside of another is what a list or an object is
// there: one of a chat, an entry of a map, a Value of template_arguments.
struct MessageLimits {
  int64_t messages = 262144;
  int64_t values = int64_t{4} << 20;  // of any kind, those of packed lists and messages included
};

// Whether so many bytes cannot hold more than `limits` allow: a value takes at least one.
constexpr bool IsWithinBySize(size_t bytes, const MessageLimits& limits) {
  return static_cast<int64_t>(bytes) <= limits.messages &&
         static_cast<int64_t>(bytes) <= limits.values;
}

// INVALID_ARGUMENT with the reason TOO_MANY_VALUES and the field of `type` in which a limit was
// reached. Takes time in proportion to the bytes, and no memory. What is no message at all is for
// whoever parses it.
absl::Status CheckMessageLimits(google::protobuf::io::ZeroCopyInputStream& bytes,
                                const google::protobuf::Descriptor& type,
                                const MessageLimits& limits);

}  // namespace mneme
