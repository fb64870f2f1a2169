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
#include "server/requests/text_encoder.h"

namespace mneme {
namespace {

// Marks inside of rendered texts are noncharacters of Unicode, which no text should contain.
constexpr absl::string_view kBreak = AddedTokens::kBreak;
constexpr absl::string_view kContent = "\xEF\xB7\x91";  // U+FDD1: stands for an answer
// The most bytes shown of what a template says, as it may quote a message.
constexpr size_t kMaxShownFault = 1000;

absl::StatusOr<std::string> ProtectedText(const Tokenizer& tokenizer, absl::string_view field,
                                          absl::string_view text, WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.AddBytes(text.size()));
  if (absl::StrContains(text, kBreak) || absl::StrContains(text, kContent)) {
    return FieldError(field, "has a noncharacter, U+FDD0 or U+FDD1");
  }
  return tokenizer.Broken(text);
}

// All texts below `json`, names of fields too, so that nobody who writes messages can write control
// tokens.
absl::Status Protect(const Tokenizer& tokenizer, absl::string_view field, Json& json,
                     WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.Add(1));
  if (json.is_string()) {
    MNEME_ASSIGN_OR_RETURN(
        json, ProtectedText(tokenizer, field, json.get_ref<const std::string&>(), meter));
    return absl::OkStatus();
  }
  if (json.is_array()) {
    for (Json& element : json) MNEME_RETURN_IF_ERROR(Protect(tokenizer, field, element, meter));
  }
  if (!json.is_object()) return absl::OkStatus();
  Json with_safe_names = Json::object();
  for (auto& [name, value] : json.items()) {
    MNEME_ASSIGN_OR_RETURN(const std::string safe, ProtectedText(tokenizer, field, name, meter));
    MNEME_RETURN_IF_ERROR(Protect(tokenizer, field, value, meter));
    with_safe_names[safe] = std::move(value);
  }
  json = std::move(with_safe_names);
  return absl::OkStatus();
}

// A rendered text as tokens. `continued`: it stands behind an answer.
absl::StatusOr<std::vector<int32_t>> EncodeRendered(const Tokenizer& tokenizer,
                                                    absl::string_view text, bool continued,
                                                    const ServingFacts& facts, WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.AddBytes(text.size()));
  return EncodeText(tokenizer, text,
                    {.continuation = continued, .parse_special = true, .has_breaks = true}, facts,
                    meter);
}

// A refusal of the template is the fault of the messages. `place` says where they stand.
absl::StatusOr<std::string> Render(const Conversation& conversation, absl::string_view place,
                                   const ChatTemplate& chat_template, WorkMeter& meter,
                                   std::vector<size_t>* message_ends = nullptr) {
  absl::StatusOr<std::string> text =
      chat_template.Render(conversation.messages, conversation.add_generation_prompt,
                           conversation.template_arguments, absl::Now(), meter, message_ends);
  if (text.ok()) return text;
  return FieldError("messages",
                    absl::StrCat("are not what the model's chat template takes", place, ": ",
                                 Shortened(text.status().message(), kMaxShownFault)));
}

// How many of the tokens of a rendered text lie in front of each of `ends`, which are bytes of it
// in order. A normaliser may have changed how many bytes there are; then that is a guess, as good
// as another one where prompts that begin alike have it at the same place.
std::vector<int64_t> TokensInFront(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                   absl::string_view text, const std::vector<size_t>& ends) {
  std::vector<int64_t> positions;
  size_t token = 0, token_bytes = 0, text_bytes = 0, at = 0;
  for (const size_t end : ends) {
    while (at < end) {  // breaks are no part of what is encoded
      const size_t found = std::min(text.substr(0, end).find(kBreak, at), end);
      text_bytes += found - at;
      at = found < end ? found + kBreak.size() : end;
    }
    while (token < ids.size()) {
      const size_t bytes = tokenizer.entry(ids[token]).text.size();
      if (token_bytes + bytes > text_bytes) break;
      token_bytes += bytes;
      ++token;
    }
    if (token > 0) positions.push_back(static_cast<int64_t>(token));
  }
  return positions;
}

// Prompt::opening_end, where each message has its end.
int64_t OpeningEnd(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   absl::string_view text, const Json& messages, const std::vector<size_t>& ends) {
  if (ends.size() != messages.size()) return 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (messages[i]["role"] != "user") continue;
    const std::vector<int64_t> end = TokensInFront(tokenizer, ids, text, {ends[i]});
    return end.empty() ? 0 : end[0];
  }
  return 0;
}

// The messages behind an answer, of which nothing is kept: in a conversation of a user alone, or,
// as some templates demand the system's message, of the system and a user.
absl::StatusOr<std::string> RenderBehindAnswer(const Conversation& conversation,
                                               const ChatTemplate& chat_template,
                                               WorkMeter& meter) {
  const auto render = [&](Json all) {
    Conversation whole;
    whole.messages = std::move(all);
    for (const Json& message : conversation.messages) whole.messages.push_back(message);
    whole.template_arguments = conversation.template_arguments;
    whole.add_generation_prompt = conversation.add_generation_prompt;
    return Render(whole, " behind an answer", chat_template, meter);
  };
  const auto message = [](const char* role, absl::string_view content) {
    return Json{{"role", role}, {"content", std::string(content)}};
  };
  const Json user = message("user", "-"), answer = message("assistant", kContent);
  absl::StatusOr<std::string> text = render(Json::array({user, answer}));
  if (text.ok()) return text;
  absl::StatusOr<std::string> with_system =
      render(Json::array({message("system", "-"), user, answer}));
  return with_system.ok() ? with_system : text;
}

// The part behind the answer of a text that RenderBehindAnswer made.
absl::StatusOr<std::string> AfterAnswer(const std::string& text) {
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
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            facts.chat_template_error, "; send a prompt instead (Generate, /v1/completions)")),
        "NO_CHAT_TEMPLATE");
  }
  const ChatTemplate& chat_template = *facts.chat_template;
  Conversation checked = conversation;
  for (size_t i = 0; i < checked.messages.size(); ++i) {
    Json& message = checked.messages[i];
    // OpenAI's newer word for "system", which most templates do not know.
    if (message["role"] == "developer" && !chat_template.Mentions("developer")) {
      message["role"] = "system";
    }
    MNEME_RETURN_IF_ERROR(Protect(*tokenizer, absl::StrCat("messages[", i, "]"), message, meter));
  }
  MNEME_RETURN_IF_ERROR(
      Protect(*tokenizer, "template_arguments", checked.template_arguments, meter));

  ChatPrompt prompt;
  std::vector<size_t> ends;
  const absl::StatusOr<std::string> text = Render(checked, "", chat_template, meter, &ends);
  MNEME_RETURN_IF_ERROR(meter.Look());  // work that was given up is no refusal
  prompt.at_start_status = text.status();
  if (text.ok()) {
    MNEME_RETURN_IF_ERROR(CheckTextSize(*text, "messages", facts));
    MNEME_ASSIGN_OR_RETURN(prompt.at_start, EncodeRendered(*tokenizer, *text, false, facts, meter));
    prompt.message_ends = TokensInFront(*tokenizer, prompt.at_start, *text, ends);
    prompt.opening_end = OpeningEnd(*tokenizer, prompt.at_start, *text, checked.messages, ends);
  }
  if (!conversation.appends) {
    if (!text.ok()) return text.status();
    return prompt;
  }
  const absl::StatusOr<std::string> behind = RenderBehindAnswer(checked, chat_template, meter);
  MNEME_RETURN_IF_ERROR(meter.Look());
  prompt.continued_status = behind.status();
  if (behind.ok()) {
    MNEME_ASSIGN_OR_RETURN(const std::string rest, AfterAnswer(*behind));
    MNEME_ASSIGN_OR_RETURN(prompt.continued, EncodeRendered(*tokenizer, rest, true, facts, meter));
  }
  if (!text.ok() && !behind.ok()) return text.status();
  return prompt;
}

absl::StatusOr<Request> ToChatEngineRequest(const v1::GenerateRequest& generate,
                                            const Conversation& conversation, const CallFacts& call,
                                            const Engine& engine, const ServingFacts& facts,
                                            WorkMeter& meter) {
  if (conversation.appends || generate.session().name().empty()) {
    MNEME_RETURN_IF_ERROR(CheckNoMismatch(generate));
  }
  const auto make_prompt = [&]() -> absl::StatusOr<Prompt> {
    MNEME_ASSIGN_OR_RETURN(ChatPrompt rendered, ToChatPrompt(conversation, engine, facts, meter));
    return Prompt{.at_start = std::move(rendered.at_start),
                  .continued = std::move(rendered.continued),
                  .at_start_status = std::move(rendered.at_start_status),
                  .continued_status = std::move(rendered.continued_status),
                  .same_everywhere = !conversation.appends,
                  .source = PromptSource::kMessages,
                  .message_ends = std::move(rendered.message_ends),
                  .opening_end = rendered.opening_end};
  };
  MNEME_ASSIGN_OR_RETURN(Request request,
                         ToEngineRequest(generate, make_prompt, call, engine, facts));
  request.whole_history = !conversation.appends;
  request.repeats_end = conversation.appends;
  return request;
}

absl::StatusOr<std::vector<int32_t>> CutAt(const Tokenizer& tokenizer,
                                           const std::vector<int32_t>& ids, int64_t bytes,
                                           const ServingFacts& facts, WorkMeter& meter) {
  std::vector<int32_t> out;
  size_t i = 0;
  const auto is_text = [&](int32_t id) {
    const TokenKind kind = tokenizer.entry(id).kind;
    return kind == TokenKind::kText || kind == TokenKind::kBytes;
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
