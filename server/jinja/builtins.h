// The filters, tests, functions and methods that templates may call by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jinja/render_budget.h"
#include "server/jinja/value.h"

namespace mneme::jinja {

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position or of a name, else undefined.
  Value Get(size_t position, absl::string_view name) const;
};

bool IsFilter(absl::string_view name);
bool IsTest(absl::string_view name);
// Whether `x is NAME y` takes y without parentheses.
bool TestTakesArgument(absl::string_view name);
bool IsFunction(absl::string_view name);

// INVALID_ARGUMENT with the filter's name where value or arguments do not fit. All that takes time
// or memory comes out of `budget`.
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments, RenderBudget& budget);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments, RenderBudget& budget);
// A function or, where `function.self` is set, a method. `now` is what strftime_now tells.
absl::StatusOr<Value> Call(const Function& function, const Arguments& arguments, absl::Time now,
                           RenderBudget& budget);

}  // namespace mneme::jinja
