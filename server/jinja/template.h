// The subset of Jinja that chat templates are written in (docs/http_api.md lists it), rendered as
// Python's jinja2 does with trim_blocks and lstrip_blocks, which is how templates of checkpoints
// are meant. Of a checkpoint's author, not of users: templates are bounded, but not fair to each
// other.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jinja/ast.h"

namespace mneme::jinja {

// Immutable once parsed: any thread may render.
class Template {
 public:
  // INVALID_ARGUMENT, naming line and construct, for what is not supported.
  static absl::StatusOr<Template> Parse(absl::string_view source);

  // `variables` beside the functions that every template has. INVALID_ARGUMENT for what the
  // template itself refuses (raise_exception) and for operations that do not fit their values.
  absl::StatusOr<std::string> Render(const Map& variables, absl::Time now) const;

 private:
  explicit Template(Body body) : body_(std::move(body)) {}

  Body body_;
};

}  // namespace mneme::jinja
