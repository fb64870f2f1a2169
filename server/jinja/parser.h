// Tokens to a template. What is not supported is refused here, by name and line.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jinja/ast.h"

namespace mneme::jinja {

// INVALID_ARGUMENT for what is not a template of the supported subset (docs/http_api.md).
absl::StatusOr<Body> Parse(absl::string_view source);

}  // namespace mneme::jinja
