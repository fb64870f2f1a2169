// Ids of requests, under which logs and answers speak of them: the client's own or random ones.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

inline constexpr size_t kMaxRequestIdBytes = 128;

// Whether `id` can be one: not empty, not too long, printable ASCII.
bool IsRequestId(absl::string_view id);

// `given`, if it is one, else a random one.
std::string RequestIdOr(absl::string_view given);

}  // namespace mneme
