#include "server/chat/chat_prompt.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/chat/chat_template.h"
#include "server/text_encoder.h"

namespace mneme {
namespace {

// Marks inside of rendered texts are noncharacters of Unicode, which no text should contain.
constexpr absl::string_view kBreak = SpecialTokens::kBreak;
constexpr absl::string_view kContent = "\xEF\xB7\x91";  // U+FDD1: stands for an answer
// Of what a template says, in which a message may be.
constexpr size_t kMaxShownFault = 1000;

// All texts below `json`, so that nobody who writes messages can write control tokens.
absl::Status Protect(const SpecialTokens& special, absl::string_view field, Json& json,
                     WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.Add(1));
  if (json.is_string()) {
    const std::string& text = json.get_ref<const std::string&>();
    MNEME_RETURN_IF_ERROR(meter.AddBytes(text.size()));
    if (absl::StrContains(text, kBreak) || absl::StrContains(text, kContent)) {
      return FieldError(field, "has a noncharacter, U+FDD0 or U+FDD1");
    }
    json = special.Broken(text);
    return absl::OkStatus();
  }
  if (!json.is_structured()) return absl::OkStatus();
  for (Json& element : json) MNEME_RETURN_IF_ERROR(Protect(special, field, element, meter));
  return absl::OkStatus();
}

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

absl::StatusOr<Json> CheckedMessages(const ChatTemplate& chat_template, const Json& messages,
                                     WorkMeter& meter) {
  const SpecialTokens& special = chat_template.special_tokens();
  Json checked = messages;
  for (size_t i = 0; i < checked.size(); ++i) {
    const std::string field = absl::StrCat("messages[", i, "]");
    Json& message = checked[i];
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
    // OpenAI's newer word for "system", which most templates do not know.
    if (role == "developer" && !chat_template.Mentions(role)) message["role"] = "system";
    MNEME_RETURN_IF_ERROR(FlattenContent(field, role, message));
    MNEME_RETURN_IF_ERROR(Protect(special, field, message, meter));
  }
  return checked;
}

// A rendered text as tokens. `continued`: other tokens, which were text, come before it.
absl::StatusOr<std::vector<int32_t>> EncodeRendered(const Tokenizer& tokenizer,
                                                    const SpecialTokens& special,
                                                    absl::string_view text, bool continued,
                                                    const ServingFacts& facts, WorkMeter& meter) {
  std::vector<int32_t> ids;
  const auto encode = [&](absl::string_view part) -> absl::Status {
    if (part.empty()) return absl::OkStatus();
    MNEME_ASSIGN_OR_RETURN(const std::vector<int32_t> part_ids,
                           EncodeText(tokenizer, part, {.continuation = continued}, facts, meter));
    ids.insert(ids.end(), part_ids.begin(), part_ids.end());
    continued = true;
    return absl::OkStatus();
  };
  MNEME_RETURN_IF_ERROR(meter.AddBytes(text.size()));
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const bool is_break = absl::StartsWith(text.substr(i), kBreak);
    const SpecialTokens::Found found =
        is_break ? SpecialTokens::Found{} : special.At(text.substr(i));
    if (!is_break && found.bytes == 0) {
      ++i;
      continue;
    }
    MNEME_RETURN_IF_ERROR(encode(text.substr(begin, i - begin)));
    i += is_break ? kBreak.size() : found.bytes;
    begin = i;
    if (is_break) continue;
    ids.push_back(found.id);
    // As in Tokenizer: what follows BOS still begins the text.
    if (found.id != tokenizer.bos_id()) continued = true;
  }
  MNEME_RETURN_IF_ERROR(encode(text.substr(begin)));
  return ids;
}

// What the template refuses is the messages' fault.
absl::StatusOr<std::string> Render(const Conversation& conversation,
                                   const ChatTemplate& chat_template, WorkMeter& meter) {
  absl::StatusOr<std::string> text =
      chat_template.Render(conversation.messages, conversation.add_generation_prompt,
                           conversation.template_arguments, absl::Now(), meter);
  if (text.ok()) return text;
  MNEME_RETURN_IF_ERROR(meter.Look());  // it was given up rather than refused
  return FieldError("messages", absl::StrCat("are not what the model's chat template takes: ",
                                             Shortened(text.status().message(), kMaxShownFault)));
}

// The messages as they follow an answer: rendered behind one, of which nothing is kept.
absl::StatusOr<std::string> RenderContinued(Conversation conversation,
                                            const ChatTemplate& chat_template, WorkMeter& meter) {
  Json all = Json::array({{{"role", "user"}, {"content", "-"}},
                          {{"role", "assistant"}, {"content", std::string(kContent)}}});
  for (Json& message : conversation.messages) all.push_back(std::move(message));
  conversation.messages = std::move(all);
  MNEME_ASSIGN_OR_RETURN(const std::string text, Render(conversation, chat_template, meter));
  const size_t at = text.find(std::string(kContent));
  if (at == std::string::npos || text.find(std::string(kContent), at + 1) != std::string::npos) {
    return WithReason(absl::FailedPreconditionError(
                          "the model's chat template does not show answers as they are, so that "
                          "messages cannot be appended to one; send the whole conversation"),
                      "TEMPLATE_HIDES_ANSWERS");
  }
  return text.substr(at + kContent.size());
}

}  // namespace

absl::StatusOr<ChatPrompt> ToChatPrompt(const Conversation& conversation, const Engine& engine,
                                        const ServingFacts& facts, WorkMeter& meter) {
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(engine, "messages"));
  if (facts.chat_template == nullptr) {
    return WithReason(absl::FailedPreconditionError(facts.chat_template_error), "NO_CHAT_TEMPLATE");
  }
  const ChatTemplate& chat_template = *facts.chat_template;
  const SpecialTokens& special = chat_template.special_tokens();
  Conversation checked = conversation;
  MNEME_ASSIGN_OR_RETURN(checked.messages,
                         CheckedMessages(chat_template, conversation.messages, meter));
  MNEME_RETURN_IF_ERROR(
      Protect(special, "chat_template_kwargs", checked.template_arguments, meter));

  ChatPrompt prompt;
  MNEME_ASSIGN_OR_RETURN(const std::string text, Render(checked, chat_template, meter));
  MNEME_RETURN_IF_ERROR(CheckTextSize(text, "messages", facts));
  MNEME_ASSIGN_OR_RETURN(prompt.at_start,
                         EncodeRendered(*tokenizer, special, text, false, facts, meter));
  if (conversation.appends) {
    MNEME_ASSIGN_OR_RETURN(const std::string rest,
                           RenderContinued(std::move(checked), chat_template, meter));
    MNEME_ASSIGN_OR_RETURN(prompt.continued,
                           EncodeRendered(*tokenizer, special, rest, true, facts, meter));
  }
  return prompt;
}

absl::StatusOr<std::vector<int32_t>> CutAt(const Tokenizer& tokenizer,
                                           const std::vector<int32_t>& ids, int64_t bytes,
                                           const ServingFacts& facts, WorkMeter& meter) {
  std::vector<int32_t> out;
  size_t i = 0;
  const auto is_text = [&](int32_t id) {
    const TokenKind kind = tokenizer.entry(id).kind;
    return kind == TokenKind::kText || kind == TokenKind::kByte;
  };
  for (; i < ids.size(); ++i) {
    const auto size = is_text(ids[i]) ? static_cast<int64_t>(tokenizer.entry(ids[i]).text.size())
                                      : int64_t{5};  // ConversationDigest
    if (size > bytes) break;
    bytes -= size;
    out.push_back(ids[i]);
  }
  if (i == ids.size()) return out;
  if (!is_text(ids[i])) {  // a boundary already
    out.insert(out.end(), ids.begin() + static_cast<int64_t>(i), ids.end());
    return out;
  }
  const auto append = [&](absl::string_view text) -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    MNEME_ASSIGN_OR_RETURN(const std::vector<int32_t> part,
                           EncodeText(tokenizer, text, {.continuation = true}, facts, meter));
    out.insert(out.end(), part.begin(), part.end());
    return absl::OkStatus();
  };
  const std::string& cut = tokenizer.entry(ids[i]).text;
  MNEME_RETURN_IF_ERROR(append(absl::string_view(cut).substr(0, bytes)));
  std::string rest = cut.substr(bytes);
  for (++i; i < ids.size() && is_text(ids[i]); ++i) rest += tokenizer.entry(ids[i]).text;
  MNEME_RETURN_IF_ERROR(append(rest));
  out.insert(out.end(), ids.begin() + static_cast<int64_t>(i), ids.end());
  return out;
}

}  // namespace mneme
