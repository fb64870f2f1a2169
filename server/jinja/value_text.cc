// Values as texts: as Python prints them, and as JSON.
#include <cmath>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/jinja/render_budget.h"

namespace mneme::jinja {
namespace {

// The error for a namespace inside of itself.
absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      absl::StrCat("a value is nested deeper than ", Value::kMaxDepth, " levels"));
}

// Python's repr of a float: the shortest digits that give it back, and always a point or exponent.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text;
  for (int digits = 1; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) break;
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

std::string JsonQuoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The text of a value that has neither elements nor quotation marks.
std::string Plain(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_int()) return absl::StrCat(value.integer());
  if (value.is_number()) return FloatText(value.number());
  if (value.is_loop()) {
    return absl::StrCat("<LoopContext ", value.loop().index + 1, "/",
                        value.loop().list.list().size(), ">");
  }
  return absl::StrCat("<function ", value.function().name, ">");
}

absl::Status AppendRepr(const Value& value, int depth, TextBuilder& out);

absl::Status AppendEntries(const Map& map, int depth, TextBuilder& out) {
  MNEME_RETURN_IF_ERROR(out.Append("{"));
  bool first = true;
  for (const auto& [key, element] : map) {
    MNEME_RETURN_IF_ERROR(out.Append(first ? "" : ", "));
    first = false;
    MNEME_RETURN_IF_ERROR(out.Append(Quoted(key)));
    MNEME_RETURN_IF_ERROR(out.Append(": "));
    MNEME_RETURN_IF_ERROR(AppendRepr(element, depth + 1, out));
  }
  return out.Append("}");
}

absl::Status AppendRepr(const Value& value, int depth, TextBuilder& out) {
  if (depth > Value::kMaxDepth) return TooDeep();
  MNEME_RETURN_IF_ERROR(out.budget().Step());
  if (value.is_text()) return out.Append(Quoted(value.text()));
  if (value.is_map()) return AppendEntries(value.map(), depth, out);
  if (value.is_namespace()) {
    MNEME_RETURN_IF_ERROR(out.Append("<Namespace "));
    MNEME_RETURN_IF_ERROR(AppendEntries(value.name_space().attributes, depth, out));
    return out.Append(">");
  }
  if (!value.is_list()) return out.Append(Plain(value));
  MNEME_RETURN_IF_ERROR(out.Append("["));
  bool first = true;
  for (const Value& element : value.list()) {
    MNEME_RETURN_IF_ERROR(out.Append(first ? "" : ", "));
    first = false;
    MNEME_RETURN_IF_ERROR(AppendRepr(element, depth + 1, out));
  }
  return out.Append("]");
}

class JsonWriter {
 public:
  JsonWriter(int indent, TextBuilder& out) : indent_(indent), out_(out) {}

  // Values nest as deep as Value::kMaxDepth allows: a namespace, which may nest deeper, has no
  // JSON.
  absl::Status Write(const Value& value, int depth) {
    MNEME_RETURN_IF_ERROR(out_.budget().Step());
    if (value.is_text()) return out_.Append(JsonQuoted(value.text()));
    if (value.is_none()) return out_.Append("null");
    if (value.is_bool()) return out_.Append(value.boolean() ? "true" : "false");
    if (value.is_number()) return out_.Append(Plain(value));
    const bool is_list = value.is_list();
    if (!is_list && !value.is_map()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: a value of type ", value.TypeName(), " has no JSON"));
    }
    MNEME_RETURN_IF_ERROR(out_.Append(is_list ? "[" : "{"));
    bool first = true;
    const auto next = [&]() -> absl::Status {
      MNEME_RETURN_IF_ERROR(out_.Append(first ? "" : indent_ < 0 ? ", " : ","));
      first = false;
      return BreakLine(depth + 1);
    };
    if (is_list) {
      for (const Value& element : value.list()) {
        MNEME_RETURN_IF_ERROR(next());
        MNEME_RETURN_IF_ERROR(Write(element, depth + 1));
      }
    } else {
      for (const auto& [key, element] : value.map()) {
        MNEME_RETURN_IF_ERROR(next());
        MNEME_RETURN_IF_ERROR(out_.Append(JsonQuoted(key)));
        MNEME_RETURN_IF_ERROR(out_.Append(": "));
        MNEME_RETURN_IF_ERROR(Write(element, depth + 1));
      }
    }
    if (!first) MNEME_RETURN_IF_ERROR(BreakLine(depth));
    return out_.Append(is_list ? "]" : "}");
  }

 private:
  absl::Status BreakLine(int depth) {
    if (indent_ < 0) return absl::OkStatus();
    MNEME_RETURN_IF_ERROR(out_.Append("\n"));
    return out_.Append(std::string(static_cast<size_t>(indent_) * depth, ' '));
  }

  const int indent_;
  TextBuilder& out_;
};

}  // namespace

absl::Status TextBuilder::AppendValue(const Value& value, bool quoted) {
  if (value.is_text() && !quoted) return Append(value.text());
  return AppendRepr(value, 0, *this);
}

absl::Status TextBuilder::AppendJson(const Value& value, int indent) {
  return JsonWriter(indent, *this).Write(value, 0);
}

}  // namespace mneme::jinja
