#include "server/jinja/operators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/text_methods.h"

namespace mneme::jinja {
namespace {

// An attribute of `loop`, as "loop.first".
Value LoopFact(const Loop& loop, absl::string_view name) {
  const List& list = loop.list.list();
  const auto index = static_cast<int64_t>(loop.index);
  const auto size = static_cast<int64_t>(list.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "previtem" && index > 0) return list[index - 1];
  if (name == "nextitem" && index + 1 < size) return list[index + 1];
  return Undefined(std::string(name));
}

}  // namespace

absl::Status Unfit(absl::string_view name, const Value& value) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", value.missing(), " is undefined"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " does not take a value of type ", value.TypeName()));
}

absl::StatusOr<int64_t> Length(absl::string_view name, const Value& value, RenderBudget& budget) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) {
    MNEME_RETURN_IF_ERROR(budget.StepOver(value.text()));
    return CharacterCount(value.text());
  }
  if (value.is_list()) return static_cast<int64_t>(value.list().size());
  if (value.is_map()) return static_cast<int64_t>(value.map().size());
  return Unfit(name, value);
}

absl::StatusOr<Value> EntriesOf(const Map& map, absl::string_view what, RenderBudget& budget) {
  ListBuilder entries(budget);
  for (const auto& [key, value] : map) {
    if (what == "keys") {
      MNEME_RETURN_IF_ERROR(entries.AddText(key));
      continue;
    }
    Value entry = value;
    if (what == "items") {
      MNEME_ASSIGN_OR_RETURN(Value name, budget.Text(key));
      MNEME_ASSIGN_OR_RETURN(entry, budget.NewList({std::move(name), value}));
    }
    MNEME_RETURN_IF_ERROR(entries.Add(std::move(entry)));
  }
  return entries.Finish();
}

absl::StatusOr<Value> Lookup(const Map& map, absl::string_view key, RenderBudget& budget) {
  MNEME_RETURN_IF_ERROR(budget.StepOver(key));
  const Value* const found = map.Find(key);
  return found == nullptr ? Value(Undefined(std::string(key))) : *found;
}

absl::StatusOr<Value> Attribute(const Value& value, const std::string& name, RenderBudget& budget) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(value.missing(), " is undefined, and so has no ", name));
  }
  if (value.is_loop()) return LoopFact(value.loop(), name);
  if (value.is_namespace()) return Lookup(value.name_space().attributes, name, budget);
  if (value.is_map()) {
    MNEME_ASSIGN_OR_RETURN(Value found, Lookup(value.map(), name, budget));
    if (!found.is_undefined()) return found;
    if (name == "get" || name == "items" || name == "keys" || name == "values") {
      return budget.NewMethod(name, value);
    }
    return found;
  }
  if (value.is_text() && IsTextMethod(name)) return budget.NewMethod(name, value);
  return Value(Undefined(name));
}

absl::StatusOr<Value> Item(const Value& value, const Value& index, RenderBudget& budget) {
  if (value.is_undefined() || value.is_namespace() || value.is_loop()) {
    MNEME_ASSIGN_OR_RETURN(const Value name, AsText(index, budget));
    return Attribute(value, name.text(), budget);
  }
  if (value.is_map()) {
    MNEME_ASSIGN_OR_RETURN(const Value key, AsText(index, budget));
    return Lookup(value.map(), key.text(), budget);
  }
  if (!index.is_int()) {
    MNEME_ASSIGN_OR_RETURN(const Value name, AsText(index, budget));
    return Value(Undefined(name.text()));
  }
  if (!value.is_list() && !value.is_text()) return Unfit("[]", value);
  MNEME_ASSIGN_OR_RETURN(const int64_t size, Length("[]", value, budget));
  const int64_t at = index.integer() < 0 ? index.integer() + size : index.integer();
  if (at < 0 || at >= size) {
    return Value(Undefined(absl::StrCat("element ", index.integer())));
  }
  if (value.is_list()) return value.list()[at];
  const absl::string_view text = value.text();
  const size_t begin = CharacterOffset(text, at);
  return budget.Text(std::string(text.substr(begin, CharacterOffset(text.substr(begin), 1))));
}

absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step, RenderBudget& budget) {
  if (!value.is_list() && !value.is_text()) return Unfit("a slice", value);
  MNEME_ASSIGN_OR_RETURN(const int64_t size, Length("a slice", value, budget));
  const int64_t by = step.is_int() ? step.integer() : 1;
  if (by == 0) return absl::InvalidArgumentError("a slice with a step of 0");
  const auto bound = [&](const Value& given, int64_t fallback) {
    if (!given.is_int()) return fallback;
    const int64_t at = given.integer() < 0 ? given.integer() + size : given.integer();
    return by > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t first = bound(begin, by > 0 ? 0 : size - 1);
  const int64_t last = bound(end, by > 0 ? size : -1);
  if (value.is_text() && by == 1) {
    const absl::string_view text = value.text();
    const size_t from = CharacterOffset(text, first);
    const int64_t count = std::max<int64_t>(0, last - first);
    return budget.Text(std::string(text.substr(from, CharacterOffset(text.substr(from), count))));
  }
  MNEME_ASSIGN_OR_RETURN(const Value elements, Elements(value, budget));
  ListBuilder part(budget);
  for (int64_t i = first; by > 0 ? i < last : i > last;) {
    MNEME_RETURN_IF_ERROR(part.Add(elements.list()[i]));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (value.is_list()) return part.Finish();
  std::string text;
  for (const Value& character : part.list()) text += character.text();
  return budget.Text(std::move(text));
}

absl::StatusOr<bool> Contains(const Value& value, const Value& needle, RenderBudget& budget) {
  if (value.is_undefined()) return false;
  if (value.is_text()) {
    if (!needle.is_text()) return Unfit("in", needle);
    MNEME_RETURN_IF_ERROR(budget.StepOver(value.text()));
    return FindText(value.text(), needle.text()) != absl::string_view::npos;
  }
  if (value.is_map()) {
    MNEME_ASSIGN_OR_RETURN(const Value key, AsText(needle, budget));
    return value.map().Find(key.text()) != nullptr;
  }
  if (!value.is_list()) return Unfit("in", value);
  for (const Value& element : value.list()) {
    MNEME_ASSIGN_OR_RETURN(const bool equal, Equal(element, needle, budget));
    if (equal) return true;
  }
  return false;
}

// Values nest as deep as Value::kMaxDepth allows; namespaces are not looked into.
absl::StatusOr<bool> Equal(const Value& a, const Value& b, RenderBudget& budget) {
  MNEME_RETURN_IF_ERROR(budget.Step());
  const auto is_numeric = [](const Value& v) { return v.is_number() || v.is_bool(); };
  const auto number = [](const Value& v) {
    return v.is_bool() ? static_cast<double>(v.boolean()) : v.number();
  };
  if (a.is_int() && b.is_int()) return a.integer() == b.integer();
  if (is_numeric(a) && is_numeric(b)) return number(a) == number(b);
  if (a.is_text() && b.is_text()) {
    if (a.text().size() != b.text().size()) return false;
    MNEME_RETURN_IF_ERROR(budget.StepOver(a.text()));
    return a.text() == b.text();
  }
  if (a.is_list() && b.is_list()) {
    if (a.list().size() != b.list().size()) return false;
    for (size_t i = 0; i < a.list().size(); ++i) {
      MNEME_ASSIGN_OR_RETURN(const bool equal, Equal(a.list()[i], b.list()[i], budget));
      if (!equal) return false;
    }
    return true;
  }
  if (a.is_map() && b.is_map()) {
    if (a.map().size() != b.map().size()) return false;
    for (const auto& [key, value] : a.map()) {
      const Value* const other = b.map().Find(key);
      if (other == nullptr) return false;
      MNEME_ASSIGN_OR_RETURN(const bool equal, Equal(value, *other, budget));
      if (!equal) return false;
    }
    return true;
  }
  if (a.is_namespace() || a.is_loop()) return a.SharesWith(b);
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

absl::StatusOr<int> Compare(const Value& a, const Value& b, RenderBudget& budget) {
  if (a.is_number() && b.is_number()) {
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.is_text() && b.is_text()) {
    MNEME_RETURN_IF_ERROR(budget.StepOver(a.text()));
    const int order = a.text().compare(b.text());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot order ", a.TypeName(), " and ", b.TypeName()));
}

absl::StatusOr<Value> Elements(const Value& value, RenderBudget& budget) {
  if (value.is_list()) return value;
  if (value.is_undefined()) return budget.NewList({});
  if (value.is_map()) return EntriesOf(value.map(), "keys", budget);
  if (value.is_text()) return Characters(value.text(), budget);
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.TypeName(), " has no elements"));
}

}  // namespace mneme::jinja
