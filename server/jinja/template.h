// The subset of Jinja that chat templates are written in (docs/http_api.md lists it), rendered as
// Python's jinja2 does with trim_blocks and lstrip_blocks, which is how templates of checkpoints
// are meant. Of a checkpoint's author, not of users; but neither can take a server's time, memory
// or stack with it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/work_meter.h"
#include "server/jinja/ast.h"

namespace mneme::jinja {

// Immutable once parsed: any thread may render.
class Template {
 public:
  // INVALID_ARGUMENT, naming line and construct, for what is not supported, is nested too deeply or
  // longer than a mebibyte.
  static absl::StatusOr<Template> Parse(absl::string_view source);

  // `variables` beside the functions that every template has. INVALID_ARGUMENT for what the
  // template itself refuses (raise_exception) and for operations that do not fit their values;
  // RESOURCE_EXHAUSTED for more steps or memory than a multiple of what the variables have
  // (RenderBudget). An error of `meter`, which counts every operation, ends it.
  // `rounds`, if not null, gets the sizes that the text has behind each round of a loop that is in
  // no other one: where a conversation's messages end.
  absl::StatusOr<std::string> Render(const Map& variables, absl::Time now, WorkMeter& meter,
                                     std::vector<size_t>* rounds = nullptr) const;

 private:
  explicit Template(Body body) : body_(std::move(body)) {}

  Body body_;
};

}  // namespace mneme::jinja
