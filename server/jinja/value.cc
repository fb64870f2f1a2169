#include "server/jinja/value.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace mneme::jinja {
namespace {

// Python's repr of a float: the shortest digits that give it back, and always a point or exponent.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text;
  for (int digits = 1; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::stod(text) == value) break;
  }
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string Quoted(absl::string_view text) {
  const char quote = absl::StrContains(text, '\'') && !absl::StrContains(text, '"') ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      out.push_back(c);
    }
  }
  return out + quote;
}

std::string JsonQuoted(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status AppendJson(const Value& value, int indent, int depth, std::string& out) {
  const std::string line =
      indent < 0 ? "" : absl::StrCat("\n", std::string(indent * (depth + 1), ' '));
  const std::string last_line =
      indent < 0 ? "" : absl::StrCat("\n", std::string(indent * depth, ' '));
  const char* const comma = indent < 0 ? ", " : ",";
  if (value.is_text()) {
    out += JsonQuoted(value.text());
  } else if (value.is_none()) {
    out += "null";
  } else if (value.Is<bool>()) {
    out += value.Get<bool>() ? "true" : "false";
  } else if (value.is_number()) {
    out += value.ToText();
  } else if (value.is_list()) {
    out += "[";
    bool first = true;
    for (const Value& element : value.list()) {
      absl::StrAppend(&out, first ? "" : comma, line);
      first = false;
      if (auto status = AppendJson(element, indent, depth + 1, out); !status.ok()) return status;
    }
    absl::StrAppend(&out, first ? "" : last_line, "]");
  } else if (value.is_map()) {
    out += "{";
    bool first = true;
    for (const auto& [key, element] : value.map()) {
      absl::StrAppend(&out, first ? "" : comma, line, JsonQuoted(key), ": ");
      first = false;
      if (auto status = AppendJson(element, indent, depth + 1, out); !status.ok()) return status;
    }
    absl::StrAppend(&out, first ? "" : last_line, "}");
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("tojson: a value of type ", value.TypeName(), " has no JSON"));
  }
  return absl::OkStatus();
}

}  // namespace

Value Value::FromJson(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_float:
      return json.get<double>();
    case nlohmann::json::value_t::string:
      return json.get<std::string>();
    case nlohmann::json::value_t::array: {
      List list;
      for (const auto& element : json) list.push_back(FromJson(element));
      return list;
    }
    case nlohmann::json::value_t::object: {
      Map map;
      for (const auto& [key, element] : json.items()) map.emplace_back(key, FromJson(element));
      return map;
    }
    default:
      return None{};
  }
}

Value Value::Namespace(Map map) {
  Value value(std::move(map));
  value.is_namespace_ = true;
  return value;
}

bool Value::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (Is<bool>()) return Get<bool>();
  if (is_number()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().empty();
  if (is_map()) return is_namespace_ || !map().empty();
  return true;
}

std::string Value::ToText(bool quoted) const {
  if (is_undefined()) return "";
  if (is_none()) return "None";
  if (Is<bool>()) return Get<bool>() ? "True" : "False";
  if (is_int()) return absl::StrCat(integer());
  if (Is<double>()) return FloatText(Get<double>());
  if (is_text()) return quoted ? Quoted(text()) : text();
  std::string out;
  if (is_list()) {
    for (const Value& element : list()) {
      absl::StrAppend(&out, out.empty() ? "" : ", ", element.ToText(true));
    }
    return absl::StrCat("[", out, "]");
  }
  if (is_map()) {
    for (const auto& [key, element] : map()) {
      absl::StrAppend(&out, out.empty() ? "" : ", ", Quoted(key), ": ", element.ToText(true));
    }
    return absl::StrCat("{", out, "}");
  }
  return absl::StrCat("<function ", Get<Builtin>().name, ">");
}

std::string Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (Is<bool>()) return "boolean";
  if (is_number()) return "number";
  if (is_text()) return "text";
  if (is_list()) return "list";
  if (is_map()) return "mapping";
  return "function";
}

Value Value::Lookup(absl::string_view key) const {
  if (is_map()) {
    for (const auto& [name, value] : map()) {
      if (name == key) return value;
    }
  }
  return Undefined{std::string(key)};
}

bool operator==(const Value& a, const Value& b) {
  const auto is_numeric = [](const Value& v) { return v.is_number() || v.Is<bool>(); };
  const auto number = [](const Value& v) {
    return v.Is<bool>() ? static_cast<double>(v.Get<bool>()) : v.number();
  };
  if (a.is_int() && b.is_int()) return a.integer() == b.integer();
  if (is_numeric(a) && is_numeric(b)) return number(a) == number(b);
  if (a.data_.index() != b.data_.index()) return false;
  if (a.is_text()) return a.text() == b.text();
  if (a.is_list()) return a.list() == b.list();
  if (a.is_map()) {
    if (a.map().size() != b.map().size()) return false;
    for (const auto& [key, value] : a.map()) {
      if (!(b.Lookup(key) == value)) return false;
    }
    return true;
  }
  return a.is_none() || a.is_undefined();
}

void Assign(Map& map, absl::string_view key, Value value) {
  for (auto& [name, old] : map) {
    if (name != key) continue;
    old = std::move(value);
    return;
  }
  map.emplace_back(std::string(key), std::move(value));
}

absl::StatusOr<List> Elements(const Value& value) {
  if (value.is_undefined()) return List();
  if (value.is_list()) return value.list();
  List list;
  if (value.is_map()) {
    for (const auto& [key, element] : value.map()) list.emplace_back(key);
    return list;
  }
  if (value.is_text()) {
    for (std::string& character : Characters(value.text())) list.emplace_back(std::move(character));
    return list;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.TypeName(), " has no elements"));
}

absl::StatusOr<std::string> ToJson(const Value& value, int indent) {
  std::string out;
  if (auto status = AppendJson(value, indent, 0, out); !status.ok()) return status;
  return out;
}

std::vector<std::string> Characters(absl::string_view text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((c & 0xc0) == 0x80 && !characters.empty()) {
      characters.back().push_back(c);
    } else {
      characters.emplace_back(1, c);
    }
  }
  return characters;
}

absl::StatusOr<int> Compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.is_text() && b.is_text()) {
    const int order = a.text().compare(b.text());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot order ", a.TypeName(), " and ", b.TypeName()));
}

}  // namespace mneme::jinja
