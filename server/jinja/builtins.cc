#include "server/jinja/builtins.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/operators.h"
#include "server/jinja/text_methods.h"

namespace mneme::jinja {
namespace {

constexpr absl::string_view kFilters[] = {
    "trim",    "upper",  "lower",   "title",   "capitalize", "length",     "count",      "tojson",
    "default", "d",      "join",    "replace", "first",      "last",       "list",       "string",
    "int",     "float",  "map",     "select",  "reject",     "selectattr", "rejectattr", "items",
    "safe",    "indent", "reverse", "abs",     "unique"};
constexpr absl::string_view kTests[] = {
    "defined", "undefined", "none",  "string",  "number",   "integer",  "float",
    "boolean", "true",      "false", "mapping", "iterable", "sequence", "equalto",
    "eq",      "ne",        "in",    "odd",     "even",     "callable", "divisibleby"};
constexpr absl::string_view kFunctions[] = {"raise_exception", "namespace", "range", "dict",
                                            "strftime_now"};
// The longest range(), as it costs memory.
constexpr int64_t kMaxRange = 100000;
// The longest format of strftime_now(), whose answer is longer still.
constexpr size_t kMaxTimeFormat = 1000;

template <size_t n>
bool IsOneOf(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// "a.b" of a message.
absl::StatusOr<Value> Path(Value value, absl::string_view path, RenderBudget& budget) {
  while (true) {
    const size_t dot = path.find('.');
    MNEME_RETURN_IF_ERROR(budget.Step());
    MNEME_ASSIGN_OR_RETURN(value, Attribute(value, std::string(path.substr(0, dot)), budget));
    if (dot == absl::string_view::npos) return value;
    path = path.substr(dot + 1);
  }
}

// map(attribute=...), map("filter", ...).
absl::StatusOr<Value> MapFilter(const Value& value, const Arguments& arguments,
                                RenderBudget& budget) {
  MNEME_ASSIGN_OR_RETURN(const Value list, Elements(value, budget));
  const Value attribute = arguments.Get(99, "attribute");
  const Value fallback = arguments.Get(99, "default");
  const bool has_filter = !arguments.values.empty() && arguments.values[0].is_text() &&
                          IsFilter(arguments.values[0].text());
  if (!attribute.is_text() && !has_filter && !list.list().empty()) {
    return absl::InvalidArgumentError("map: expected attribute=... or the name of a filter");
  }
  Arguments rest{.values = {}, .named = arguments.named};
  if (has_filter) rest.values.assign(arguments.values.begin() + 1, arguments.values.end());
  ListBuilder mapped(budget);
  for (const Value& element : list.list()) {
    Value result;
    if (attribute.is_text()) {
      MNEME_ASSIGN_OR_RETURN(result, Path(element, attribute.text(), budget));
      if (result.is_undefined() && !fallback.is_undefined()) result = fallback;
    } else {
      MNEME_RETURN_IF_ERROR(budget.Step());
      MNEME_ASSIGN_OR_RETURN(result,
                             ApplyFilter(arguments.values[0].text(), element, rest, budget));
    }
    MNEME_RETURN_IF_ERROR(mapped.Add(std::move(result)));
  }
  return mapped.Finish();
}

// select, reject and the two with attributes: [attribute,] [test, argument...].
absl::StatusOr<Value> SelectFilter(absl::string_view name, const Value& value,
                                   const Arguments& arguments, RenderBudget& budget) {
  MNEME_ASSIGN_OR_RETURN(const Value list, Elements(value, budget));
  const bool by_attribute = absl::EndsWith(name, "attr");
  const bool keeps = absl::StartsWith(name, "select");
  std::vector<Value> rest = arguments.values;
  Value attribute;
  if (by_attribute) {
    if (rest.empty() || !rest[0].is_text()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected the name of an attribute"));
    }
    attribute = rest[0];
    rest.erase(rest.begin());
  }
  std::string test;
  if (!rest.empty()) {
    if (rest[0].is_text()) test = rest[0].text() == "==" ? "eq" : rest[0].text();
    if (!IsTest(test)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the test ", rest[0].is_text() ? rest[0].text() : rest[0].TypeName(),
                       " is not supported"));
    }
    rest.erase(rest.begin());
  }
  const Arguments test_arguments{.values = std::move(rest), .named = {}};
  ListBuilder kept(budget);
  for (const Value& element : list.list()) {
    MNEME_RETURN_IF_ERROR(budget.Step());
    Value judged = element;
    if (by_attribute) {
      MNEME_ASSIGN_OR_RETURN(judged, Path(element, attribute.text(), budget));
    }
    bool passes = judged.Truthy();
    if (!test.empty()) {
      MNEME_ASSIGN_OR_RETURN(passes, ApplyTest(test, judged, test_arguments, budget));
    }
    if (passes == keeps) MNEME_RETURN_IF_ERROR(kept.Add(element));
  }
  return kept.Finish();
}

absl::StatusOr<Value> Join(const Value& value, const Arguments& arguments, RenderBudget& budget) {
  MNEME_ASSIGN_OR_RETURN(const Value list, Elements(value, budget));
  MNEME_ASSIGN_OR_RETURN(const Value separator, AsText(arguments.Get(0, "d"), budget));
  const Value attribute = arguments.Get(1, "attribute");
  TextBuilder out(budget);
  bool first = true;
  for (const Value& each : list.list()) {
    MNEME_RETURN_IF_ERROR(budget.Step());
    Value element = each;
    if (attribute.is_text()) {
      MNEME_ASSIGN_OR_RETURN(element, Path(element, attribute.text(), budget));
    }
    if (!first) MNEME_RETURN_IF_ERROR(out.Append(separator.text()));
    first = false;
    MNEME_RETURN_IF_ERROR(out.AppendValue(element));
  }
  return out.Finish();
}

int64_t ToWhole(double number) {
  // A conversion that does not fit is undefined in C++, and such a number too large for any use.
  if (!(std::abs(number) < 9e18)) return 0;
  return static_cast<int64_t>(number);
}

absl::StatusOr<Value> ToNumber(absl::string_view name, const Value& value) {
  if (name == "float") {
    double number = 0;
    if (value.is_number()) return Value(value.number());
    if (value.is_text()) (void)absl::SimpleAtod(value.text(), &number);
    return Value(number);
  }
  int64_t number = 0;
  if (value.is_int()) return value;
  if (value.is_number()) return Value(ToWhole(value.number()));
  if (value.is_bool()) return Value(int64_t{value.boolean()});
  if (value.is_text()) (void)absl::SimpleAtoi(value.text(), &number);
  return Value(number);
}

// Each value once, the first of equal ones.
absl::StatusOr<Value> Unique(const List& list, RenderBudget& budget) {
  absl::flat_hash_set<absl::string_view> texts;
  List others;
  ListBuilder kept(budget);
  for (const Value& element : list) {
    MNEME_RETURN_IF_ERROR(budget.Step());
    if (element.is_text()) {
      if (texts.insert(element.text()).second) MNEME_RETURN_IF_ERROR(kept.Add(element));
      continue;
    }
    bool is_new = true;
    for (const Value& other : others) {
      MNEME_ASSIGN_OR_RETURN(const bool equal, Equal(element, other, budget));
      is_new = is_new && !equal;
      if (!is_new) break;
    }
    if (!is_new) continue;
    others.push_back(element);
    MNEME_RETURN_IF_ERROR(kept.Add(element));
  }
  return kept.Finish();
}

absl::StatusOr<Value> ListFilter(absl::string_view name, const Value& value, RenderBudget& budget) {
  MNEME_ASSIGN_OR_RETURN(const Value elements, Elements(value, budget));
  const List& list = elements.list();
  if (name == "first") return list.empty() ? Value(Undefined("first")) : list.front();
  if (name == "last") return list.empty() ? Value(Undefined("last")) : list.back();
  if (name == "unique") return Unique(list, budget);
  if (name != "reverse") return elements;
  if (!value.is_text()) return budget.NewList(List(list.rbegin(), list.rend()));
  std::string text;
  for (auto character = list.rbegin(); character != list.rend(); ++character) {
    text += character->text();
  }
  return budget.Text(std::move(text));
}

absl::StatusOr<Value> Range(const Arguments& arguments, RenderBudget& budget) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = arguments.values.size();
  for (size_t i = 0; i < count; ++i) {
    if (count > 3 || !arguments.values[i].is_int()) {
      return absl::InvalidArgumentError("range: expected one to three whole numbers");
    }
    bounds[count == 1 ? 1 : i] = arguments.values[i].integer();
  }
  const auto [begin, end, step] = bounds;
  if (count == 0 || step == 0) return absl::InvalidArgumentError("range: bad arguments");
  ListBuilder list(budget);
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(list.list().size()) >= kMaxRange) {
      return absl::InvalidArgumentError("range: too many numbers");
    }
    MNEME_RETURN_IF_ERROR(list.Add(Value(i)));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list.Finish();
}

}  // namespace

Value Arguments::Get(size_t position, absl::string_view name) const {
  if (position < values.size()) return values[position];
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return Undefined(std::string(name));
}

bool IsFilter(absl::string_view name) { return IsOneOf(kFilters, name); }
bool IsTest(absl::string_view name) { return IsOneOf(kTests, name); }
bool IsFunction(absl::string_view name) { return IsOneOf(kFunctions, name); }
bool TestTakesArgument(absl::string_view name) {
  return name == "equalto" || name == "eq" || name == "ne" || name == "in" || name == "divisibleby";
}

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments, RenderBudget& budget) {
  if (name == "default" || name == "d") {
    const bool falsy_too = arguments.Get(1, "boolean").Truthy();
    if (!value.is_undefined() && !(falsy_too && !value.Truthy())) return value;
    const Value fallback = arguments.Get(0, "default_value");
    return fallback.is_undefined() ? Value("") : fallback;
  }
  if (name == "length" || name == "count") {
    MNEME_ASSIGN_OR_RETURN(const int64_t length, Length(name, value, budget));
    return Value(length);
  }
  if (name == "tojson") {
    const Value indent = arguments.Get(0, "indent");
    TextBuilder json(budget);
    MNEME_RETURN_IF_ERROR(json.AppendJson(
        value,
        indent.is_int() ? static_cast<int>(std::clamp<int64_t>(indent.integer(), 0, 16)) : -1));
    return json.Finish();
  }
  if (name == "string") return AsText(value, budget);
  if (name == "safe") return value;
  if (name == "items") {
    if (value.is_undefined()) return budget.NewList({});
    if (!value.is_map()) return Unfit(name, value);
    return EntriesOf(value.map(), "items", budget);
  }
  if (name == "join") return Join(value, arguments, budget);
  if (name == "map") return MapFilter(value, arguments, budget);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return SelectFilter(name, value, arguments, budget);
  }
  if (name == "int" || name == "float") return ToNumber(name, value);
  if (name == "abs") {
    if (value.is_int()) {
      const auto bits = static_cast<uint64_t>(value.integer());
      return value.integer() < 0 ? Value(static_cast<int64_t>(0 - bits)) : value;
    }
    if (value.is_number()) return Value(std::abs(value.number()));
    return Unfit(name, value);
  }
  if (name == "first" || name == "last" || name == "list" || name == "reverse" ||
      name == "unique") {
    return ListFilter(name, value, budget);
  }
  // The others are of texts, and take everything as text.
  MNEME_ASSIGN_OR_RETURN(const Value text, AsText(value, budget));
  if (name == "trim") return CallTextMethod("strip", text, arguments.values, budget);
  if (name != "indent") return CallTextMethod(name, text, arguments.values, budget);
  const Value width = arguments.Get(0, "width");
  const std::string spaces(
      width.is_int() ? std::clamp<int64_t>(width.integer(), 0, 100) : int64_t{4}, ' ');
  const std::string line = absl::StrCat("\n", spaces);
  MNEME_ASSIGN_OR_RETURN(Value out, ReplaceText(text.text(), "\n", line, -1, budget));
  // Not of empty lines.
  MNEME_ASSIGN_OR_RETURN(out,
                         ReplaceText(out.text(), absl::StrCat(line, "\n"), "\n\n", -1, budget));
  if (!arguments.Get(1, "first").Truthy()) return out;
  return budget.Text(absl::StrCat(spaces, out.text()));
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments, RenderBudget& budget) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_text();
  if (name == "number") return value.is_number() || value.is_bool();
  if (name == "integer") return value.is_int();
  if (name == "float") return value.Is<double>();
  if (name == "boolean") return value.is_bool();
  if (name == "true" || name == "false") {
    return value.is_bool() && value.boolean() == (name == "true");
  }
  if (name == "mapping") return value.is_map();
  if (name == "iterable" || name == "sequence") {
    return value.is_list() || value.is_map() || value.is_text() || value.is_undefined();
  }
  if (name == "callable") return value.is_function();
  const Value argument = arguments.Get(0, "other");
  if (name == "equalto" || name == "eq" || name == "ne") {
    MNEME_ASSIGN_OR_RETURN(const bool equal, Equal(value, argument, budget));
    return equal == (name != "ne");
  }
  if (name == "in") return Contains(argument, value, budget);
  if (!value.is_int()) return Unfit(name, value);
  if (name == "odd") return value.integer() % 2 != 0;
  if (name == "even") return value.integer() % 2 == 0;
  if (!argument.is_int() || argument.integer() == 0) return Unfit(name, argument);
  return argument.integer() == -1 || value.integer() % argument.integer() == 0;
}

absl::StatusOr<Value> Call(const Function& function, const Arguments& arguments, absl::Time now,
                           RenderBudget& budget) {
  const std::string& name = function.name;
  if (function.self != nullptr && function.self->is_text()) {
    return CallTextMethod(name, *function.self, arguments.values, budget);
  }
  if (function.self != nullptr) {
    const Map& map = function.self->map();
    if (name != "get") return EntriesOf(map, name, budget);
    MNEME_ASSIGN_OR_RETURN(const Value key, AsText(arguments.Get(0, "key"), budget));
    MNEME_ASSIGN_OR_RETURN(const Value found, Lookup(map, key.text(), budget));
    if (!found.is_undefined()) return found;
    const Value fallback = arguments.Get(1, "default");
    return fallback.is_undefined() ? Value(None{}) : fallback;
  }
  if (name == "range") return Range(arguments, budget);
  if (name == "raise_exception") {
    MNEME_ASSIGN_OR_RETURN(const Value message, AsText(arguments.Get(0, "message"), budget));
    return absl::InvalidArgumentError(message.text());
  }
  if (name == "strftime_now") {
    MNEME_ASSIGN_OR_RETURN(const Value format, AsText(arguments.Get(0, "format"), budget));
    if (format.text().size() > kMaxTimeFormat) {
      return absl::InvalidArgumentError("strftime_now: the format is too long");
    }
    return budget.Text(absl::FormatTime(format.text(), now, absl::UTCTimeZone()));
  }
  Map map;
  for (const auto& [key, value] : arguments.named) map.Set(key, value);
  return name == "namespace" ? budget.NewNamespace(std::move(map)) : budget.NewMap(std::move(map));
}

}  // namespace mneme::jinja
