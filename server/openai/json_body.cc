#include "server/openai/json_body.h"

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"

namespace mneme {
namespace {

constexpr int kMaxDepth = 64;
// Of an object. Json finds each of them by looking at all before it.
constexpr size_t kMaxKeys = 1024;
constexpr size_t kMaxShownBytes = 60;

std::string Shortened(absl::string_view text) {
  if (text.size() <= kMaxShownBytes) return std::string(text);
  return absl::StrCat(text.substr(0, CompleteUtf8Prefix(text.substr(0, kMaxShownBytes))), "...");
}

absl::Status BodyError(absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(message), "BAD_BODY");
}

// Looks at a body while it is parsed, for what cannot be seen in the result, or makes it expensive.
class BodyCheck {
 public:
  // For Json::parse: false leaves the value out.
  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    if (!status_.ok()) return false;
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      objects_.resize(depth);
      objects_.emplace_back();
      if (depth >= kMaxDepth) {
        status_ = BodyError(absl::StrCat("the body is nested deeper than ", kMaxDepth, " levels"));
      }
    } else if (event == Json::parse_event_t::key) {
      CheckKey(depth - 1, value.get_ref<const std::string&>());
    }
    return status_.ok();
  }
  const absl::Status& status() const { return status_; }

 private:
  // Of an object, or of an array, which has none.
  struct Keys {
    absl::flat_hash_set<std::string> seen;
    std::string last;
  };

  void CheckKey(size_t depth, const std::string& key) {
    Keys& keys = objects_[depth];
    if (keys.seen.size() == kMaxKeys) {
      status_ = depth == 0 ? BodyError(absl::StrCat("the body has more than ", kMaxKeys, " fields"))
                           : FieldError(PathTo(depth - 1),
                                        absl::StrCat("has more than ", kMaxKeys, " fields"));
      return;
    }
    keys.last = key;
    if (keys.seen.insert(key).second) return;
    status_ = FieldError(PathTo(depth), "is there twice");
  }
  // Without the places in lists.
  std::string PathTo(size_t depth) const {
    std::string path;
    for (size_t i = 0; i <= depth; ++i) {
      if (objects_[i].seen.empty()) continue;
      absl::StrAppend(&path, path.empty() ? "" : ".", Shortened(objects_[i].last));
    }
    return path;
  }

  std::vector<Keys> objects_;  // around what is parsed, from the outermost
  absl::Status status_;
};

bool IsEmpty(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         (value.is_structured() && value.empty());
}

}  // namespace

absl::StatusOr<Json> ParseJsonBody(const HttpRequest& request) {
  absl::string_view type = request.Field("content-type");
  type = type.substr(0, type.find(';'));
  if (!type.empty() && !absl::EqualsIgnoreCase(type, "application/json")) {
    return BodyError(absl::StrCat("Content-Type is ", type, ", expected application/json"));
  }
  // What a page sends without a type reaches any server, without a question whether it may.
  if (type.empty() && !request.Field("origin").empty()) {
    return BodyError("Content-Type is missing, expected application/json");
  }
  const absl::string_view encoding = request.Field("content-encoding");
  if (!encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) {
    return BodyError(absl::StrCat("Content-Encoding is ", encoding, ", expected none"));
  }
  BodyCheck check;
  Json json;
  try {
    json = Json::parse(request.body, std::ref(check));
  } catch (const Json::exception& error) {
    absl::string_view what = error.what();
    what = what.substr(what.find("] ") + 2);  // "[json.exception.parse_error.101] "
    return BodyError(absl::StrCat("the body is not JSON: ", SanitizeUtf8(what)));
  }
  MNEME_RETURN_IF_ERROR(check.status());
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

std::string ShownJson(const Json& value) { return Shortened(JsonText(value)); }

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
    return WithReason(
        FieldError(Path(name.empty() ? "\"\"" : Shortened(name)), "is no field that is known here"),
        "UNKNOWN_PARAMETER");
  }
  return absl::OkStatus();
}

}  // namespace mneme
