// The endpoints that are served over HTTP: OpenAI's, and those that operators and other servers'
// users expect beside them. The same engine, sessions and limits as over gRPC.
#pragma once

#include <functional>
#include <memory>

#include "server/http/http_routes.h"
#include "server/http/http_server.h"
#include "server/openai/openai_classify.h"
#include "server/openai/openai_generate.h"
#include "server/requests/engine_access.h"
#include "server/requests/text_encoder.h"
#include "server/security/security.h"

namespace mneme {

// Outlives the HttpServer that has its routes. Handlers return at once: long texts are parsed and
// tokenised on threads of their own.
class OpenAiService {
 public:
  OpenAiService(EngineAccess& engine, Security& security)
      : engine_(engine),
        generate_(engine, security, executors_),
        classify_(engine, security, executors_) {}

  //   GET  /health /ping /version           for everybody
  //   GET  /v1/models /v1/models/{model}
  //   GET  /tokenizer_info
  //   POST /v1/completions /v1/chat/completions /v1/classify /classify /tokenize /detokenize
  void AddRoutes(HttpRoutes& routes);
  // To be called for each exchange of that server.
  void OnExchange(const HttpExchange& exchange) const {
    generate_.OnExchange(exchange);
    classify_.OnExchange(exchange);
  }
  // For good: texts that wait or are worked on are given up, with UNAVAILABLE.
  void AbandonTexts() { executors_.Abandon(); }

 private:
  using Handler = void (OpenAiService::*)(const std::shared_ptr<HttpCall>&);
  using Refusal = void (OpenAiService::*)(const std::shared_ptr<HttpCall>&, const absl::Status&);
  // `handler` now, or on a thread that may take long; `refuse` if too much waits for that, or if
  // there is not enough memory.
  HttpHandler WithTexts(Handler handler, Refusal refuse);

  void Health(const std::shared_ptr<HttpCall>& call);
  void Models(const std::shared_ptr<HttpCall>& call);
  void Model(const std::shared_ptr<HttpCall>& call);
  void TokenizerInfo(const std::shared_ptr<HttpCall>& call);
  void Complete(const std::shared_ptr<HttpCall>& call);
  void Chat(const std::shared_ptr<HttpCall>& call);
  void Classify(const std::shared_ptr<HttpCall>& call);
  void RefuseToClassify(const std::shared_ptr<HttpCall>& call, const absl::Status& why);
  void RefuseToGenerate(const std::shared_ptr<HttpCall>& call, const absl::Status& why);
  void Tokenize(const std::shared_ptr<HttpCall>& call);
  void Detokenize(const std::shared_ptr<HttpCall>& call);
  void Refuse(const std::shared_ptr<HttpCall>& call, const absl::Status& why);

  EngineAccess& engine_;
  OpenAiGenerate generate_;
  OpenAiClassify classify_;
  TextExecutors executors_;
};

}  // namespace mneme
