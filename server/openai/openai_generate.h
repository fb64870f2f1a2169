// Serves /v1/completions and /v1/chat/completions: from a body to the engine's requests, and on to
// their answer. Each request to generate gets a line in the request log, whoever ended it.
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/http/http_call.h"
#include "server/http/http_server.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"
#include "server/requests/engine_access.h"
#include "server/requests/text_encoder.h"
#include "server/security/security.h"

namespace mneme {

inline constexpr absl::string_view kCompletionsPath = "/v1/completions";
inline constexpr absl::string_view kChatPath = "/v1/chat/completions";

class OpenAiGenerate {
 public:
  // All must outlive the HttpServer.
  OpenAiGenerate(EngineAccess& access, Security& security, TextExecutors& executors)
      : access_(access), security_(security), executors_(executors) {}

  // Answers the call, now or when the engine has. Takes as long as tokenising does.
  //
  // Each prompt of a body with several is one request of the engine's: for the call "x" they are
  // "x-0", "x-1" and so on, all in the call's trace and span. All of them are checked, and have
  // their share of what the caller may use, before the first is submitted; a call that is refused
  // before that is one refused request, "x". If the engine refuses one after all, those before it
  // are cancelled, and those behind it never were.
  void Begin(const std::shared_ptr<HttpCall>& call, OpenAiKind kind) const;

  // Answers with `why`, before Begin.
  void Refuse(const std::shared_ptr<HttpCall>& call, const absl::Status& why) const;

  // For every exchange of the server: counts requests to generate that HTTP itself refused.
  void OnExchange(const HttpExchange& exchange) const;

 private:
  struct Prepared;

  absl::StatusOr<Prepared> Prepare(const std::shared_ptr<HttpCall>& call, OpenAiKind kind) const;
  absl::Status TakeShares(std::span<Request> requests, const BodyFields& names) const;
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request, const HttpRequest& http,
                                                      Engine& engine) const;
  OpenAiAnswer::Recut MakeRecut(const std::shared_ptr<HttpCall>& call,
                                const Prepared& prepared) const;

  EngineAccess& access_;
  Security& security_;
  TextExecutors& executors_;
};

}  // namespace mneme
