// Operators of the template language: attributes, elements, comparisons. All that takes time or
// memory comes out of `budget`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jinja/render_budget.h"
#include "server/jinja/value.h"

namespace mneme::jinja {

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
// The number of elements, of characters, of entries; 0 of undefined. `name` asks, in errors.
absl::StatusOr<int64_t> Length(absl::string_view name, const Value& value, RenderBudget& budget);
// Keys ("keys"), values ("values"), or pairs of both ("items") of a mapping.
absl::StatusOr<Value> EntriesOf(const Map& map, absl::string_view what, RenderBudget& budget);
// The entry of `key`, else undefined.
absl::StatusOr<Value> Lookup(const Map& map, absl::string_view key, RenderBudget& budget);

// INVALID_ARGUMENT: `name`, a filter or an operator, does not take `value`.
absl::Status Unfit(absl::string_view name, const Value& value);

}  // namespace mneme::jinja
