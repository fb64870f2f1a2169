// The fixture of tests of the OpenAI-compatible API: a server over HTTP in front of a fake engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "server/http/http_guard.h"
#include "server/openai/openai_service.h"
#include "server/openai/session_routes.h"
#include "tests/server/fake_engine.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {

class OpenAiServiceTest : public testing::Test {
 protected:
  explicit OpenAiServiceTest(const v1::SecuritySection& config = {}) {
    testing::internal::CaptureStderr();
    access_.set_request_log(log_.get());
    SecurityFailure failure;
    security_ = *Security::Create(config, clock_, failure);
    service_ = std::make_unique<OpenAiService>(access_, *security_);
    Start(absl::Milliseconds(200));
  }
  void Start(absl::Duration body_timeout) {
    server_.reset();
    HttpRoutes routes;
    service_->AddRoutes(routes);
    sessions_.AddRoutes(routes);
    HttpServerOptions options;
    options.port = 0;
    options.limits.max_body_bytes = 1000;
    options.body_timeout = body_timeout;
    options.on_exchange = [this](const HttpExchange& e) { service_->OnExchange(e); };
    GuardHttp(*security_, options);
    server_ = *HttpServer::Start(options, std::move(routes));
  }
  ~OpenAiServiceTest() override {
    if (log_ != nullptr) Log();
  }

  void Publish() {
    ServingFacts facts;
    facts.model_name = "served";
    access_.Publish(engine_, facts);
  }
  RawResponse Ask(absl::string_view id, absl::string_view body, absl::string_view fields = "") {
    RawHttpClient client(server_->port());
    client.SendRequest("POST", "/v1/completions", body,
                       absl::StrCat("x-request-id: ", id, "\r\n", fields));
    return client.Read();
  }
  int64_t Refused(absl::StatusCode code) {
    return access_.stats().refused[static_cast<size_t>(code)].value();
  }
  // Everything that was logged, once the server has ended and counted all that it answered.
  std::string Log() {
    server_ = nullptr;
    service_ = nullptr;
    access_.set_request_log(nullptr);
    log_ = nullptr;
    return testing::internal::GetCapturedStderr();
  }

  RealClock clock_;
  EngineAccess access_{clock_};
  SessionRoutes sessions_{access_};
  std::unique_ptr<RequestLog> log_ =
      std::make_unique<RequestLog>(RequestLog::Which::kAll, access_.stats());
  std::unique_ptr<Security> security_;
  FakeEngine engine_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace mneme
