// Serves /v1/classify and /classify, in the form that vLLM has.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/http_call.h"
#include "server/http/http_server.h"
#include "server/requests/engine_access.h"
#include "server/requests/text_encoder.h"
#include "server/security/security.h"

namespace mneme {

inline constexpr absl::string_view kClassifyPath = "/v1/classify";
inline constexpr absl::string_view kShortClassifyPath = "/classify";

class OpenAiClassify {
 public:
  // All must outlive the HttpServer.
  OpenAiClassify(EngineAccess& access, Security& security, TextExecutors& executors)
      : access_(access), security_(security), executors_(executors) {}

  // Answers the call, now or when the engine has. Takes as long as tokenising does.
  void Begin(const std::shared_ptr<HttpCall>& call) const;
  // Answers with `why`, before Begin.
  void Refuse(const std::shared_ptr<HttpCall>& call, const absl::Status& why) const;
  // For every exchange of the server: counts requests to classify that HTTP itself refused.
  void OnExchange(const HttpExchange& exchange) const;

 private:
  absl::Status Submit(const std::shared_ptr<HttpCall>& call) const;

  EngineAccess& access_;
  Security& security_;
  TextExecutors& executors_;
};

}  // namespace mneme
