#include "server/openai/json_body.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"

namespace mneme {
namespace {

constexpr size_t kMaxShownBytes = 60;

// As much of the value's text as is shown, and a little more.
class ShownText {
 public:
  std::string Of(const Json& value) && {
    Add(value);
    return Shortened(text_, kMaxShownBytes);
  }

 private:
  bool is_full() const { return text_.size() > kMaxShownBytes; }

  void Add(const Json& value) {
    if (is_full()) return;
    if (value.is_string()) return AddString(value.get_ref<const std::string&>());
    if (!value.is_structured()) return absl::StrAppend(&text_, JsonText(value));
    text_ += value.is_object() ? "{" : "[";
    bool first = true;
    for (const auto& item : value.items()) {
      if (is_full()) return;
      if (!first) text_ += ",";
      first = false;
      if (value.is_object()) {
        AddString(item.key());
        text_ += ":";
      }
      Add(item.value());
    }
    text_ += value.is_object() ? "}" : "]";
  }
  void AddString(const std::string& text) {
    absl::StrAppend(&text_, JsonText(text.substr(0, kMaxShownBytes)));
  }

  std::string text_;
};

bool IsEmpty(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         (value.is_structured() && value.empty());
}

}  // namespace

absl::StatusOr<Json> ParseJsonBody(const HttpRequest& request, WorkMeter& meter) {
  absl::string_view type = request.Field("content-type");
  type = type.substr(0, type.find(';'));
  if (!type.empty() && !absl::EqualsIgnoreCase(type, "application/json")) {
    return BodyError(absl::StrCat("Content-Type is ", Shortened(type, kMaxShownBytes),
                                  ", expected application/json"));
  }
  // Browsers send a body without a type to any server, and do not ask first whether a page may.
  if (type.empty() && !request.Field("origin").empty()) {
    return BodyError("Content-Type is missing, expected application/json");
  }
  const absl::string_view encoding = request.Field("content-encoding");
  if (!encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) {
    return BodyError(absl::StrCat("Content-Encoding is ", Shortened(encoding, kMaxShownBytes),
                                  ", expected none"));
  }
  MNEME_ASSIGN_OR_RETURN(Json json, ParseJson(request.body, JsonLimits(), meter));
  if (!json.is_object()) return BodyError("the body is not a JSON object");
  return json;
}

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse JsonResponse(const Json& json) { return {.body = JsonText(json)}; }

HttpResponse JsonOrErrorResponse(const absl::StatusOr<Json>& json) {
  return json.ok() ? JsonResponse(*json) : ErrorResponse(json.status());
}

std::string ShownJson(const Json& value) { return ShownText().Of(value); }

std::string JsonFields::Path(absl::string_view name) const {
  return prefix_.empty() ? std::string(name) : absl::StrCat(prefix_, ".", name);
}

const Json* JsonFields::Find(absl::string_view name) {
  known_.insert(std::string(name));
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::Read(absl::string_view name, bool& out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    Fail(name, "true or false", *value);
    return false;
  }
  out = value->get<bool>();
  return true;
}

bool JsonFields::Read(absl::string_view name, std::string& out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_string()) {
    Fail(name, "a text", *value);
    return false;
  }
  out = value->get<std::string>();
  return true;
}

bool JsonFields::Read(absl::string_view name, float& out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_number()) {
    Fail(name, "a number", *value);
    return false;
  }
  out = value->get<float>();
  return true;
}

bool JsonFields::Read(absl::string_view name, int64_t& out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_number_integer()) {
    Fail(name, "a whole number", *value);
    return false;
  }
  if (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) {
    Fail(name, "a whole number below 2^63", *value);
    return false;
  }
  out = value->get<int64_t>();
  return true;
}

bool JsonFields::Read(absl::string_view name, int32_t& out) {
  int64_t wide = 0;
  if (!Read(name, wide)) return false;
  if (wide < INT32_MIN || wide > INT32_MAX) {
    Fail(name, "a whole number between -2^31 and 2^31", wide);
    return false;
  }
  out = static_cast<int32_t>(wide);
  return true;
}

void JsonFields::Unsupported(absl::string_view name, const Json& neutral, const Json& neutral_too) {
  const Json* value = Find(name);
  if (value == nullptr || IsEmpty(*value) || *value == neutral || *value == neutral_too) return;
  Fail(WithReason(FieldError(Path(name), absl::StrCat("is not supported by this server (it is ",
                                                      ShownJson(*value), ")")),
                  "UNSUPPORTED_PARAMETER"));
}

void JsonFields::Fail(absl::string_view name, absl::string_view expected, const Json& value) {
  Fail(name, absl::StrCat("is ", ShownJson(value), ", expected ", expected));
}

void JsonFields::Fail(absl::string_view name, absl::string_view fault) {
  Fail(FieldError(Path(name), fault));
}

void JsonFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

absl::Status JsonFields::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) > 0) continue;
    return WithReason(FieldError(Path(name.empty() ? "\"\"" : Shortened(name, kMaxShownBytes)),
                                 "is no field that is known here"),
                      "UNKNOWN_PARAMETER");
  }
  return absl::OkStatus();
}

}  // namespace mneme
