#include "server/openai/json_body.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

constexpr int kMaxDepth = 64;

// Deepest nesting of the text, strings left out.
int DepthOf(absl::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

absl::Status BodyError(absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(message), "BAD_BODY");
}

bool IsEmpty(const Json& value) {
  return value.is_null() || value == false || (value.is_string() && value.empty()) ||
         (value.is_structured() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

}  // namespace

absl::StatusOr<Json> ParseJsonBody(const HttpRequest& request) {
  absl::string_view type = request.Field("content-type");
  type = type.substr(0, type.find(';'));
  if (!type.empty() && !absl::EqualsIgnoreCase(type, "application/json")) {
    return BodyError(absl::StrCat("Content-Type is ", type, ", expected application/json"));
  }
  if (DepthOf(request.body) > kMaxDepth) {
    return BodyError(absl::StrCat("the body is nested deeper than ", kMaxDepth, " levels"));
  }
  Json json;
  try {
    json = Json::parse(request.body);
  } catch (const Json::exception& error) {
    return BodyError(absl::StrCat("the body is not JSON: ", SanitizeUtf8(error.what())));
  }
  if (!json.is_object()) return BodyError("the body is not a JSON object");
  return json;
}

HttpResponse JsonResponse(const Json& json) {
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

std::string ShownJson(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= 60) return text;
  return absl::StrCat(text.substr(0, CompleteUtf8Prefix(text.substr(0, 60))), "...");
}

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

bool JsonFields::Read(absl::string_view name, double& out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_number()) {
    Fail(name, "a number", *value);
    return false;
  }
  out = value->get<double>();
  return true;
}

bool JsonFields::Read(absl::string_view name, int64_t& out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_number_integer()) {
    Fail(name, "a whole number", *value);
    return false;
  }
  out = value->get<int64_t>();
  return true;
}

bool JsonFields::Read(absl::string_view name, int32_t& out) {
  int64_t wide = 0;
  if (!Read(name, wide)) return false;
  if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max()) {
    Fail(name, "a number of 32 bits", wide);
    return false;
  }
  out = static_cast<int32_t>(wide);
  return true;
}

void JsonFields::Unsupported(absl::string_view name, const Json& neutral) {
  const Json* value = Find(name);
  if (value == nullptr || IsEmpty(*value) || *value == neutral) return;
  const std::string path = Path(name);
  Fail(WithReason(FieldError(path, absl::StrCat(path, " is not supported by this server (it is ",
                                                ShownJson(*value), ")")),
                  "UNSUPPORTED_PARAMETER"));
}

void JsonFields::Fail(absl::string_view name, absl::string_view expected, const Json& value) {
  const std::string path = Path(name);
  Fail(FieldError(path, absl::StrCat(path, " is ", ShownJson(value), ", expected ", expected)));
}

void JsonFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

absl::Status JsonFields::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) > 0) continue;
    const std::string path = Path(SanitizeUtf8(name));
    return WithReason(FieldError(path, absl::StrCat("unrecognized field ", path)),
                      "UNKNOWN_PARAMETER");
  }
  return absl::OkStatus();
}

}  // namespace mneme
