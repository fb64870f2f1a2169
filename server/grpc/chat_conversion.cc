#include "server/grpc/chat_conversion.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// The most fields of one object, as in bodies of HTTP: the interpreter looks names up one by one.
constexpr int kMaxFields = 1024;
// Up to here every whole number is a double of its own.
constexpr double kMaxWhole = 9007199254740992.0;  // 2^53

Json NumberJson(double number) {
  const bool is_whole = std::abs(number) <= kMaxWhole && number == std::trunc(number);
  return is_whole ? Json(static_cast<int64_t>(number)) : Json(number);
}

absl::StatusOr<Json> StructJson(const google::protobuf::Struct& object, WorkMeter& meter);

// As deep as messages of the protocol are, which is bounded where they are parsed.
absl::StatusOr<Json> ValueJson(const google::protobuf::Value& value, WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.Add(1));
  using Value = google::protobuf::Value;
  switch (value.kind_case()) {
    case Value::kNumberValue:
      return NumberJson(value.number_value());
    case Value::kStringValue:
      return Json(value.string_value());
    case Value::kBoolValue:
      return Json(value.bool_value());
    case Value::kStructValue:
      return StructJson(value.struct_value(), meter);
    case Value::kListValue: {
      Json list = Json::array();
      for (const Value& element : value.list_value().values()) {
        MNEME_ASSIGN_OR_RETURN(Json json, ValueJson(element, meter));
        list.push_back(std::move(json));
      }
      return list;
    }
    case Value::kNullValue:
    case Value::KIND_NOT_SET:
      break;
  }
  return Json();
}

// In the order of names: a map of protobuf's has none, and a repeated request has to look the same.
absl::StatusOr<Json> StructJson(const google::protobuf::Struct& object, WorkMeter& meter) {
  if (object.fields_size() > kMaxFields) {
    return FieldError("template_arguments", absl::StrCat("has an object of ", object.fields_size(),
                                                         " fields, expected at most ", kMaxFields));
  }
  std::map<std::string, Json> sorted;
  for (const auto& [name, value] : object.fields()) {
    MNEME_ASSIGN_OR_RETURN(sorted[name], ValueJson(value, meter));
  }
  Json json = Json::object();
  for (auto& [name, value] : sorted) json[name] = std::move(value);
  return json;
}

}  // namespace

v1::GenerateRequest ToGenerateRequest(const v1::ChatRequest& request) {
  v1::GenerateRequest generate;
  generate.set_request_id(request.request_id());
  generate.set_model(request.model());
  if (request.has_session()) *generate.mutable_session() = request.session();
  if (request.has_sampling()) *generate.mutable_sampling() = request.sampling();
  if (request.has_stopping()) *generate.mutable_stopping() = request.stopping();
  if (request.has_response()) *generate.mutable_response() = request.response();
  if (request.has_prefix_cache()) *generate.mutable_prefix_cache() = request.prefix_cache();
  if (request.has_expected_position()) {
    generate.set_expected_position(request.expected_position());
  }
  generate.set_idempotency_key(request.idempotency_key());
  generate.set_priority(request.priority());
  generate.set_detached(request.detached());
  return generate;
}

absl::StatusOr<Conversation> ToConversation(const v1::ChatRequest& request, WorkMeter& meter) {
  if (request.messages().empty()) {
    return FieldError("messages", "is empty, expected at least one message");
  }
  Conversation conversation;
  for (int i = 0; i < request.messages_size(); ++i) {
    MNEME_RETURN_IF_ERROR(meter.Add(1));
    const v1::ChatMessage& message = request.messages(i);
    if (message.role().empty()) {
      return FieldError(absl::StrCat("messages[", i, "].role"),
                        "is empty, expected one that the model's chat template knows, such as "
                        "\"user\"");
    }
    Json json = {{"role", message.role()}, {"content", message.content()}};
    if (message.has_name()) json["name"] = message.name();
    if (message.has_reasoning_content()) json["reasoning_content"] = message.reasoning_content();
    conversation.messages.push_back(std::move(json));
  }
  MNEME_ASSIGN_OR_RETURN(conversation.template_arguments,
                         StructJson(request.template_arguments(), meter));
  conversation.add_generation_prompt =
      !request.has_add_generation_prompt() || request.add_generation_prompt();
  conversation.appends = !request.session().name().empty() && !request.whole_conversation();
  return conversation;
}

}  // namespace mneme
