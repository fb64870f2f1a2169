#include "server/jinja/builtins.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
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
// Of range(), which costs memory.
constexpr int64_t kMaxRange = 100000;

template <size_t n>
bool IsOneOf(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::Status Unfit(absl::string_view name, const Value& value) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", value.Get<Undefined>().name, " is undefined"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " does not take a value of type ", value.TypeName()));
}

absl::StatusOr<int64_t> Length(absl::string_view name, const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return static_cast<int64_t>(Characters(value.text()).size());
  if (value.is_list()) return static_cast<int64_t>(value.list().size());
  if (value.is_map()) return static_cast<int64_t>(value.map().size());
  return Unfit(name, value);
}

List Items(const Map& map) {
  List items;
  for (const auto& [key, value] : map) items.emplace_back(List{key, value});
  return items;
}

// "a.b" of a message.
absl::StatusOr<Value> Path(Value value, absl::string_view path) {
  while (true) {
    const size_t dot = path.find('.');
    MNEME_ASSIGN_OR_RETURN(value, Attribute(value, std::string(path.substr(0, dot))));
    if (dot == absl::string_view::npos) return value;
    path = path.substr(dot + 1);
  }
}

// map(attribute=...), map("filter", ...).
absl::StatusOr<Value> MapFilter(const Value& value, const Arguments& arguments) {
  MNEME_ASSIGN_OR_RETURN(List list, Elements(value));
  const Value attribute = arguments.Get(99, "attribute");
  for (Value& element : list) {
    if (attribute.is_text()) {
      MNEME_ASSIGN_OR_RETURN(element, Path(element, attribute.text()));
      const Value fallback = arguments.Get(99, "default");
      if (element.is_undefined() && !fallback.is_undefined()) element = fallback;
      continue;
    }
    if (arguments.values.empty() || !arguments.values[0].is_text() ||
        !IsFilter(arguments.values[0].text())) {
      return absl::InvalidArgumentError("map: expected attribute=... or the name of a filter");
    }
    const Arguments rest{.values = {arguments.values.begin() + 1, arguments.values.end()},
                         .named = arguments.named};
    MNEME_ASSIGN_OR_RETURN(element, ApplyFilter(arguments.values[0].text(), element, rest));
  }
  return Value(std::move(list));
}

// select, reject and the two with attributes: [attribute,] [test, argument...].
absl::StatusOr<Value> SelectFilter(absl::string_view name, const Value& value,
                                   const Arguments& arguments) {
  MNEME_ASSIGN_OR_RETURN(const List list, Elements(value));
  const bool by_attribute = absl::EndsWith(name, "attr");
  const bool keeps = absl::StartsWith(name, "select");
  std::vector<Value> rest = arguments.values;
  std::string attribute;
  if (by_attribute) {
    if (rest.empty() || !rest[0].is_text()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected the name of an attribute"));
    }
    attribute = rest[0].text();
    rest.erase(rest.begin());
  }
  std::string test;
  if (!rest.empty()) {
    if (rest[0].is_text()) test = rest[0].text() == "==" ? "eq" : rest[0].text();
    if (!IsTest(test)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the test ", rest[0].ToText(), " is not supported"));
    }
    rest.erase(rest.begin());
  }
  List kept;
  for (const Value& element : list) {
    Value judged = element;
    if (by_attribute) {
      MNEME_ASSIGN_OR_RETURN(judged, Path(element, attribute));
    }
    bool passes = judged.Truthy();
    if (!test.empty()) {
      MNEME_ASSIGN_OR_RETURN(passes, ApplyTest(test, judged, {.values = rest}));
    }
    if (passes == keeps) kept.push_back(element);
  }
  return Value(std::move(kept));
}

absl::StatusOr<Value> Join(const Value& value, const Arguments& arguments) {
  MNEME_ASSIGN_OR_RETURN(const List list, Elements(value));
  const std::string separator = arguments.Get(0, "d").ToText();
  const Value attribute = arguments.Get(1, "attribute");
  std::string out;
  for (size_t i = 0; i < list.size(); ++i) {
    Value element = list[i];
    if (attribute.is_text()) {
      MNEME_ASSIGN_OR_RETURN(element, Path(element, attribute.text()));
    }
    absl::StrAppend(&out, i > 0 ? separator : "", element.ToText());
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> ToNumber(absl::string_view name, const Value& value) {
  if (name == "float") {
    double number = 0;
    if (value.is_number()) return Value(value.number());
    if (value.is_text()) (void)absl::SimpleAtod(value.text(), &number);
    return Value(number);
  }
  int64_t number = 0;
  if (value.is_number()) return Value(static_cast<int64_t>(value.number()));
  if (value.Is<bool>()) return Value(int64_t{value.Get<bool>()});
  if (value.is_text()) (void)absl::SimpleAtoi(value.text(), &number);
  return Value(number);
}

absl::StatusOr<Value> ListFilter(absl::string_view name, const Value& value) {
  MNEME_ASSIGN_OR_RETURN(List list, Elements(value));
  if (name == "first") return list.empty() ? Value(Undefined{"first"}) : list.front();
  if (name == "last") return list.empty() ? Value(Undefined{"last"}) : list.back();
  if (name == "reverse") {
    std::reverse(list.begin(), list.end());
    if (!value.is_text()) return Value(std::move(list));
    std::string text;
    for (const Value& character : list) text += character.text();
    return Value(std::move(text));
  }
  if (name == "unique") {
    List kept;
    for (const Value& element : list) {
      if (std::find(kept.begin(), kept.end(), element) == kept.end()) kept.push_back(element);
    }
    return Value(std::move(kept));
  }
  return Value(std::move(list));
}

absl::StatusOr<Value> Range(const Arguments& arguments) {
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
  List list;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    if (static_cast<int64_t>(list.size()) >= kMaxRange) {
      return absl::InvalidArgumentError("range: too many numbers");
    }
    list.emplace_back(i);
  }
  return Value(std::move(list));
}

}  // namespace

Value Arguments::Get(size_t position, absl::string_view name) const {
  if (position < values.size()) return values[position];
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return Undefined{std::string(name)};
}

bool IsFilter(absl::string_view name) { return IsOneOf(kFilters, name); }
bool IsTest(absl::string_view name) { return IsOneOf(kTests, name); }
bool IsFunction(absl::string_view name) { return IsOneOf(kFunctions, name); }
bool TestTakesArgument(absl::string_view name) {
  return name == "equalto" || name == "eq" || name == "ne" || name == "in" || name == "divisibleby";
}

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments) {
  if (name == "default" || name == "d") {
    const bool falsy_too = arguments.Get(1, "boolean").Truthy();
    if (!value.is_undefined() && !(falsy_too && !value.Truthy())) return value;
    const Value fallback = arguments.Get(0, "default_value");
    return fallback.is_undefined() ? Value("") : fallback;
  }
  if (name == "length" || name == "count") {
    MNEME_ASSIGN_OR_RETURN(const int64_t length, Length(name, value));
    return Value(length);
  }
  if (name == "tojson") {
    const Value indent = arguments.Get(0, "indent");
    MNEME_ASSIGN_OR_RETURN(std::string json,
                           ToJson(value, indent.is_int() ? static_cast<int>(std::clamp<int64_t>(
                                                               indent.integer(), 0, 16))
                                                         : -1));
    return Value(std::move(json));
  }
  if (name == "string") return Value(value.ToText());
  if (name == "safe") return value;
  if (name == "items") {
    if (value.is_undefined()) return Value(List());
    if (!value.is_map()) return Unfit(name, value);
    return Value(Items(value.map()));
  }
  if (name == "join") return Join(value, arguments);
  if (name == "map") return MapFilter(value, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return SelectFilter(name, value, arguments);
  }
  if (name == "int" || name == "float") return ToNumber(name, value);
  if (name == "abs") {
    if (value.is_int()) return Value(std::abs(value.integer()));
    if (value.is_number()) return Value(std::abs(value.number()));
    return Unfit(name, value);
  }
  if (name == "first" || name == "last" || name == "list" || name == "reverse" ||
      name == "unique") {
    return ListFilter(name, value);
  }
  // The others are of texts, and take everything as text.
  const std::string text = value.ToText();
  if (name == "trim") return CallTextMethod("strip", text, arguments.values);
  if (name == "indent") {
    const Value width = arguments.Get(0, "width");
    const int64_t spaces = width.is_int() ? std::clamp<int64_t>(width.integer(), 0, 100) : 4;
    const std::string line = absl::StrCat("\n", std::string(spaces, ' '));
    std::string out = absl::StrReplaceAll(text, {{"\n", line}});
    out = absl::StrReplaceAll(out, {{absl::StrCat(line, "\n"), "\n\n"}});  // not of empty lines
    if (arguments.Get(1, "first").Truthy()) out.insert(0, spaces, ' ');
    return Value(std::move(out));
  }
  return CallTextMethod(name, text, arguments.values);
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_text();
  if (name == "number") return value.is_number() || value.Is<bool>();
  if (name == "integer") return value.is_int();
  if (name == "float") return value.Is<double>();
  if (name == "boolean") return value.Is<bool>();
  if (name == "true" || name == "false") {
    return value.Is<bool>() && value.Get<bool>() == (name == "true");
  }
  if (name == "mapping") return value.is_map();
  if (name == "iterable" || name == "sequence") {
    return value.is_list() || value.is_map() || value.is_text() || value.is_undefined();
  }
  if (name == "callable") return value.Is<Builtin>();
  const Value argument = arguments.Get(0, "other");
  if (name == "equalto" || name == "eq") return value == argument;
  if (name == "ne") return !(value == argument);
  if (name == "in") return Contains(argument, value);
  if (!value.is_int()) return Unfit(name, value);
  if (name == "odd") return value.integer() % 2 != 0;
  if (name == "even") return value.integer() % 2 == 0;
  if (!argument.is_int() || argument.integer() == 0) return Unfit(name, argument);
  return value.integer() % argument.integer() == 0;
}

absl::StatusOr<Value> Call(const Builtin& function, const Arguments& arguments, absl::Time now) {
  const std::string& name = function.name;
  if (function.self != nullptr && function.self->is_text()) {
    return CallTextMethod(name, function.self->text(), arguments.values);
  }
  if (function.self != nullptr) {
    const Map& map = function.self->map();
    if (name == "items") return Value(Items(map));
    if (name == "get") {
      const Value key = arguments.Get(0, "key");
      const Value found = function.self->Lookup(key.ToText());
      if (!found.is_undefined()) return found;
      const Value fallback = arguments.Get(1, "default");
      return fallback.is_undefined() ? Value(None{}) : fallback;
    }
    List list;
    for (const auto& [key, value] : map) list.push_back(name == "keys" ? Value(key) : value);
    return Value(std::move(list));
  }
  if (name == "raise_exception") {
    return absl::InvalidArgumentError(arguments.Get(0, "message").ToText());
  }
  if (name == "range") return Range(arguments);
  if (name == "strftime_now") {
    return Value(absl::FormatTime(arguments.Get(0, "format").ToText(), now, absl::UTCTimeZone()));
  }
  Map map;
  for (const auto& [key, value] : arguments.named) Assign(map, key, value);
  return name == "namespace" ? Value::Namespace(std::move(map)) : Value(std::move(map));
}

absl::StatusOr<Value> Attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(value.Get<Undefined>().name, " is undefined, and so has no ", name));
  }
  if (value.is_map()) {
    Value found = value.Lookup(name);
    if (!found.is_undefined()) return found;
    if (name == "get" || name == "items" || name == "keys" || name == "values") {
      return Value(Builtin{name, std::make_shared<Value>(value)});
    }
    return found;
  }
  if (value.is_text() && IsTextMethod(name)) {
    return Value(Builtin{name, std::make_shared<Value>(value)});
  }
  return Value(Undefined{name});
}

absl::StatusOr<Value> Item(const Value& value, const Value& index) {
  if (value.is_undefined()) return Attribute(value, index.ToText());
  if (value.is_map()) return value.Lookup(index.ToText());
  if (!index.is_int()) return Value(Undefined{index.ToText()});
  MNEME_ASSIGN_OR_RETURN(const List list, Elements(value));
  int64_t at = index.integer();
  const auto size = static_cast<int64_t>(list.size());
  if (at < 0) at += size;
  if (at < 0 || at >= size) return Value(Undefined{absl::StrCat("element ", index.integer())});
  return list[at];
}

absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step) {
  if (!value.is_list() && !value.is_text()) return Unfit("a slice", value);
  MNEME_ASSIGN_OR_RETURN(const List list, Elements(value));
  const auto size = static_cast<int64_t>(list.size());
  const int64_t by = step.is_int() ? step.integer() : 1;
  if (by == 0) return absl::InvalidArgumentError("a slice with a step of 0");
  const auto bound = [&](const Value& given, int64_t fallback) {
    if (!given.is_int()) return fallback;
    const int64_t at = given.integer() < 0 ? given.integer() + size : given.integer();
    return by > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t first = bound(begin, by > 0 ? 0 : size - 1);
  const int64_t last = bound(end, by > 0 ? size : -1);
  List part;
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) part.push_back(list[i]);
  if (value.is_list()) return Value(std::move(part));
  std::string text;
  for (const Value& character : part) text += character.text();
  return Value(std::move(text));
}

absl::StatusOr<bool> Contains(const Value& value, const Value& needle) {
  if (value.is_undefined()) return false;
  if (value.is_text()) {
    if (!needle.is_text()) return Unfit("in", needle);
    return absl::StrContains(value.text(), needle.text());
  }
  if (value.is_map()) return !value.Lookup(needle.ToText()).is_undefined();
  if (!value.is_list()) return Unfit("in", value);
  return std::find(value.list().begin(), value.list().end(), needle) != value.list().end();
}

}  // namespace mneme::jinja
