// Bodies of completions and chats, up to what the engine would be asked. A body is refused with an
// error that is JSON itself, and no message of a chat ever becomes a control token.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "server/http/http_error.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_body.h"
#include "server/openai/openai_request.h"
#include "server/requests/request_conversion.h"
#include "tests/fuzz/request_fuzz.h"

namespace mneme {
namespace {

void CheckError(const absl::Status& status) {
  const int http_status = HttpStatusOf(status);
  Require(http_status >= 400 && http_status < 500, "a body is at fault, not the server");
  const HttpResponse response = ErrorResponse(status);
  const Json body = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  Require(body.is_object() && body["error"]["message"].is_string(), "an error is JSON");
}

void Convert(const OpenAiRequest& request, const v1::GenerateRequest& prompt) {
  v1::GenerateRequest whole = request.generate;
  whole.MergeFrom(prompt);
  WorkMeter meter;
  const absl::StatusOr<Request> converted =
      ToEngineRequest(whole, {.request_id = "id"}, Served().engine, Served().facts, meter);
  converted.ok() ? Judge(*converted) : CheckError(WithBodyField(converted.status(), request.names));
}

int64_t ControlTokens(const std::vector<int32_t>& ids) {
  const Tokenizer& tokenizer = *Served().engine.tokenizer();
  return std::count_if(ids.begin(), ids.end(),
                       [&](int32_t id) { return tokenizer.entry(id).kind == TokenKind::kControl; });
}

void Read(OpenAiKind kind, const Json& body, const HttpRequest& http) {
  const absl::StatusOr<OpenAiRequest> request = ToOpenAiRequest(kind, body, http);
  if (!request.ok()) return CheckError(request.status());
  for (const v1::GenerateRequest& prompt : request->prompts) Convert(*request, prompt);
  if (kind == OpenAiKind::kCompletion) return;
  const absl::StatusOr<Conversation> conversation = ToConversation(*request);
  if (!conversation.ok()) return CheckError(conversation.status());
  WorkMeter meter;
  const absl::StatusOr<ChatPrompt> prompt =
      ToChatPrompt(*conversation, Served().engine, Served().facts, meter);
  if (!prompt.ok()) return CheckError(prompt.status());
  const auto messages = static_cast<int64_t>(request->conversation.messages.size());
  Require(ControlTokens(prompt->at_start) <= 1 + messages, "the template's control tokens alone");
  const bool appends = request->conversation.appends;
  Require(ControlTokens(prompt->continued) <= (appends ? 1 + messages : 0),
          "and so behind an answer");
  // A session may end anywhere inside: the same bytes, cut there.
  const absl::StatusOr<std::vector<int32_t>> cut =
      CutAt(*Served().engine.tokenizer(), prompt->at_start, messages * 7, Served().facts, meter);
  Require(cut.ok() && ControlTokens(*cut) == ControlTokens(prompt->at_start), "a cut adds none");
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mneme;  // NOLINT(google-build-using-namespace)
  const TimeLimit limit(60);
  HttpRequest http;
  http.body = std::string(reinterpret_cast<const char*>(data), size);
  WorkMeter meter;
  const absl::StatusOr<Json> body = ParseJsonBody(http, meter);
  if (!body.ok()) {
    CheckError(body.status());
    return 0;
  }
  for (const OpenAiKind kind : {OpenAiKind::kCompletion, OpenAiKind::kChat}) {
    Read(kind, *body, http);
  }
  http.fields = {{"x-session-id", http.body.substr(0, 20)}, {"idempotency-key", "k"}};
  Read(OpenAiKind::kChat, *body, http);
  return 0;
}
