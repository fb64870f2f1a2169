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

// A rendered text as tokens. `continued`: it stands behind an answer.
absl::StatusOr<std::vector<int32_t>> EncodeRendered(const Tokenizer& tokenizer,
                                                    absl::string_view text, bool continued,
                                                    const ServingFacts& facts, WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.AddBytes(text.size()));
  return EncodeText(tokenizer, text,
                    {.continuation = continued, .parse_special = true, .has_breaks = true}, facts,
                    meter);
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
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            facts.chat_template_error, "; send a prompt instead (Generate, /v1/completions)")),
        "NO_CHAT_TEMPLATE");
  }
  const ChatTemplate& chat_template = *facts.chat_template;
  const SpecialTokens& special = tokenizer->special_tokens();
  Conversation checked = conversation;
  for (size_t i = 0; i < checked.messages.size(); ++i) {
    Json& message = checked.messages[i];
    // OpenAI's newer word for "system", which most templates do not know.
    if (message["role"] == "developer" && !chat_template.Mentions("developer")) {
      message["role"] = "system";
    }
    MNEME_RETURN_IF_ERROR(Protect(special, absl::StrCat("messages[", i, "]"), message, meter));
  }
  MNEME_RETURN_IF_ERROR(Protect(special, "template_arguments", checked.template_arguments, meter));

  ChatPrompt prompt;
  MNEME_ASSIGN_OR_RETURN(const std::string text, Render(checked, chat_template, meter));
  MNEME_RETURN_IF_ERROR(CheckTextSize(text, "messages", facts));
  MNEME_ASSIGN_OR_RETURN(prompt.at_start, EncodeRendered(*tokenizer, text, false, facts, meter));
  if (conversation.appends) {
    MNEME_ASSIGN_OR_RETURN(const std::string rest,
                           RenderContinued(std::move(checked), chat_template, meter));
    MNEME_ASSIGN_OR_RETURN(prompt.continued, EncodeRendered(*tokenizer, rest, true, facts, meter));
  }
  return prompt;
}

absl::StatusOr<Request> ToChatEngineRequest(const v1::GenerateRequest& generate,
                                            const Conversation& conversation, const CallFacts& call,
                                            const Engine& engine, const ServingFacts& facts,
                                            WorkMeter& meter) {
  const auto make_prompt = [&]() -> absl::StatusOr<Prompt> {
    MNEME_ASSIGN_OR_RETURN(ChatPrompt rendered, ToChatPrompt(conversation, engine, facts, meter));
    return Prompt{.at_start = std::move(rendered.at_start),
                  .continued = std::move(rendered.continued),
                  .same_everywhere = !conversation.appends,
                  .source = PromptSource::kMessages};
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
