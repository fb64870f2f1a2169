// The names that the body of an HTTP request has for the fields of inference.proto. Errors of the
// engine, and of the conversion to its requests, name the latter.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace mneme {

// Where that depends on the body.
struct BodyFields {
  absl::string_view prompt = "prompt";
  bool many_prompts = false;  // `prompt` is a list of several
  absl::string_view max_tokens = "max_tokens";
  absl::string_view logprobs = "logprobs";  // what says how many there are to be
};

// An error about a field of inference.proto, "stopping.stop_strings", as one about the body's
// field, "stop". `prompt`: the place in the list of the one that it is about. Others stay as they
// are.
absl::Status WithBodyField(const absl::Status& status, const BodyFields& fields, size_t prompt = 0);

}  // namespace mneme
