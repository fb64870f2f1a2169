// Methods of Python's str, which filters of the same names share.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jinja/value.h"

namespace mneme::jinja {

bool IsTextMethod(absl::string_view name);

// Letters other than ASCII's are left alone by upper, lower, title and capitalize.
absl::StatusOr<Value> CallTextMethod(absl::string_view name, const std::string& text,
                                     const std::vector<Value>& arguments);

}  // namespace mneme::jinja
