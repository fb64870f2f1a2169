// The filters, tests, functions and methods that templates may use.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
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

// INVALID_ARGUMENT with the filter's name where value or arguments do not fit.
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments);
// A function or, where `function.self` is set, a method. `now` is what strftime_now tells.
absl::StatusOr<Value> Call(const Builtin& function, const Arguments& arguments, absl::Time now);
// `value.name`: an entry of a mapping, else a method, else undefined.
absl::StatusOr<Value> Attribute(const Value& value, const std::string& name);
// `value[index]`.
absl::StatusOr<Value> Item(const Value& value, const Value& index);
// `value[begin:end:step]`; undefined or none: left out.
absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step);
// `needle in value`.
absl::StatusOr<bool> Contains(const Value& value, const Value& needle);

}  // namespace mneme::jinja
