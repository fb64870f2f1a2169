// The filters, tests, functions and methods that templates may use.
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

  // By position or name, else undefined.
  Value Get(size_t position, absl::string_view name) const;
};

bool IsFilter(absl::string_view name);
bool IsTest(absl::string_view name);
// Whether `x is NAME y` takes y without parentheses.
bool TestTakesArgument(absl::string_view name);
bool IsFunction(absl::string_view name);

// INVALID_ARGUMENT with the filter's name where value or arguments do not fit. Here and below: all
// that takes time or memory comes out of `budget`.
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments, RenderBudget& budget);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments, RenderBudget& budget);
// A function or, where `function.self` is set, a method. `now` is what strftime_now tells.
absl::StatusOr<Value> Call(const Builtin& function, const Arguments& arguments, absl::Time now,
                           RenderBudget& budget);
// `value.name`: an entry of a mapping, else a method, else undefined.
absl::StatusOr<Value> Attribute(const Value& value, const std::string& name, RenderBudget& budget);
// `value[index]`.
absl::StatusOr<Value> Item(const Value& value, const Value& index, RenderBudget& budget);
// `value[begin:end:step]`; undefined or none: left out.
absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step, RenderBudget& budget);
// `needle in value`.
absl::StatusOr<bool> Contains(const Value& value, const Value& needle, RenderBudget& budget);
// `a == b`.
absl::StatusOr<bool> Equal(const Value& a, const Value& b, RenderBudget& budget);
// -1, 0, 1; an error for values that have no order.
absl::StatusOr<int> Compare(const Value& a, const Value& b, RenderBudget& budget);
// The elements of a list, which is then `value` itself, keys of a mapping, characters of a text;
// nothing of undefined. Always a list.
absl::StatusOr<Value> Elements(const Value& value, RenderBudget& budget);

}  // namespace mneme::jinja
