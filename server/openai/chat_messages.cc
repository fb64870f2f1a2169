#include "server/openai/chat_messages.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// "content" as a text: parts that are texts are joined by line breaks. Only an answer may have
// none, or null, as answers with nothing but tool calls have: that is an empty text, since
// templates would write "None".
absl::Status FlattenContent(absl::string_view field, absl::string_view role, Json& message) {
  const std::string name = absl::StrCat(field, ".content");
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (role != "assistant") {
      return FieldError(name, "is missing, expected a text or a list of parts");
    }
    message["content"] = "";
    return absl::OkStatus();
  }
  if (content->is_string()) return absl::OkStatus();
  if (!content->is_array()) {
    return FieldError(
        name, absl::StrCat("is ", ShownJson(*content), ", expected a text or a list of parts"));
  }
  std::string text;
  for (const Json& part : *content) {
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : "";
    if (type != "text" || !part.contains("text") || !part["text"].is_string()) {
      return WithReason(
          FieldError(name, absl::StrCat("has ", ShownJson(part),
                                        ", and only parts of type text are supported")),
          "UNSUPPORTED_PARAMETER");
    }
    absl::StrAppend(&text, &part == &content->front() ? "" : "\n", part["text"].get<std::string>());
  }
  *content = text;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Conversation> ToConversation(const OpenAiRequest& request) {
  Conversation conversation = request.conversation;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const std::string field = absl::StrCat("messages[", i, "]");
    Json& message = conversation.messages[i];
    if (!message.is_object()) {
      return FieldError(field, absl::StrCat("is ", ShownJson(message),
                                            ", expected an object with role and content"));
    }
    JsonFields fields(message, field);
    std::string role;
    if (!fields.Read("role", role)) fields.Fail("role", "is missing, expected a text");
    for (const char* known : {"content", "name", "reasoning_content"}) fields.Ignore(known);
    for (const char* unsupported : {"tool_calls", "tool_call_id", "function_call", "audio",
                                    "refusal", "annotations", "reasoning"}) {
      fields.Unsupported(unsupported);
    }
    MNEME_RETURN_IF_ERROR(fields.Finish());
    MNEME_RETURN_IF_ERROR(FlattenContent(field, role, message));
  }
  return conversation;
}

}  // namespace mneme
