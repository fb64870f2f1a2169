// Methods of Python's str, which filters of the same names share, and what texts are made of.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jinja/render_budget.h"
#include "server/jinja/value.h"

namespace mneme::jinja {

bool IsTextMethod(absl::string_view name);

// `text` is one. Letters other than ASCII's are left alone by upper, lower, title and capitalize.
absl::StatusOr<Value> CallTextMethod(absl::string_view name, const Value& text,
                                     const std::vector<Value>& arguments, RenderBudget& budget);

// `text` with all, or the first `times`, of `from` as `to`; all below 0.
absl::StatusOr<Value> ReplaceText(absl::string_view text, absl::string_view from,
                                  absl::string_view to, int64_t times, RenderBudget& budget);

// Where `needle` begins in `text`, at or behind `from`; npos if nowhere. In linear time.
size_t FindText(absl::string_view text, absl::string_view needle, size_t from = 0);

// Characters of UTF-8: how many, where the one numbered `index` begins (the text's size behind the
// last), and each as a text.
int64_t CharacterCount(absl::string_view text);
size_t CharacterOffset(absl::string_view text, int64_t index);
absl::StatusOr<Value> Characters(absl::string_view text, RenderBudget& budget);

}  // namespace mneme::jinja
