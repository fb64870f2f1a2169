// A real server in this process: a tiny model of tests/golden, or that of a folder, the real
// engine, a real port.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/log.h"
#include "clients/cpp/client.h"
#include "server/config/config.h"
#include "server/grpc/grpc_server.h"
#include "server/load_model.h"
#include "server/requests/engine_access.h"
#include "server/security/security.h"

namespace mneme {

// Everything that one Generate call said.
struct Reply {
  absl::Status status;
  std::string text;  // of choice 0, without an echoed prompt
  std::vector<int32_t> tokens;
  v1::Started started;
  v1::Finished finished;
  std::vector<v1::Output> outputs;
};

class RunningServer {
 public:
  // `flags` as on the command line, besides those for model and port.
  explicit RunningServer(std::vector<const char*> flags = {}, const char* model = "mom") {
    const std::string folder = *model == '/' ? model : absl::StrCat("tests/golden/", model);
    flags.insert(flags.begin(), {"--model", folder.c_str(), "--grpc-port=0", "--threads=2",
                                 "--state-memory=16MiB"});
    const auto line = ParseCommandLine(flags, [](const char*) { return nullptr; });
    CHECK(line.ok()) << line.status();
    SetMinLogSeverity(LogSeverity::kError);
    LoadError error;
    SecurityFailure failure;
    auto security = Security::Create(line->config.security(), clock_, failure);
    CHECK(security.ok()) << security.status();
    security_ = *std::move(security);
    const auto limit = [this](const std::string& owner) {
      return security_->authenticator().SessionLimitOf(owner);
    };
    loaded_ = LoadEngine(line->config, clock_, nullptr, {.owner_session_limit = limit}, error);
    CHECK(loaded_ != nullptr) << error.status;
    auto server = GrpcServer::Start(line->config.server(), access_, *security_);
    CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
    access_.Publish(engine(), loaded_->facts);
    server_->SetServing(true);
    client_ = std::make_unique<Client>(ClientOptions{.target = target()});
  }
  ~RunningServer() {
    client_ = nullptr;
    engine().Drain(absl::ZeroDuration());
    server_ = nullptr;
  }

  Engine& engine() { return *loaded_->engine; }
  EngineAccess& access() { return access_; }
  GrpcServer& grpc() { return *server_; }
  Client& client() { return *client_; }
  std::string target() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  // Blocks until the stream has ended.
  Reply Generate(const v1::GenerateRequest& request) { return Generate(*client_, request); }
  static Reply Generate(Client& client, const v1::GenerateRequest& request,
                        absl::Notification* first_message = nullptr,
                        CancelToken* cancel = nullptr) {
    Reply answer;
    answer.status = client.Generate(
        request,
        [&](const v1::GenerateResponse& response) {
          if (response.has_started()) answer.started = response.started();
          if (response.has_finished()) answer.finished = response.finished();
          for (const v1::Output& output : response.outputs()) {
            answer.outputs.push_back(output);
            if (output.choice() != 0 || output.is_prompt()) continue;
            answer.text += output.text();
            answer.tokens.insert(answer.tokens.end(), output.token_ids().begin(),
                                 output.token_ids().end());
          }
          if (first_message != nullptr && !first_message->HasBeenNotified() &&
              response.outputs_size() > 0) {
            first_message->Notify();
          }
        },
        cancel);
    return answer;
  }

 private:
  RealClock clock_;
  EngineAccess access_{clock_};
  std::unique_ptr<Security> security_;
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Client> client_;
};

// Greedy, never ending before `max_tokens`.
inline v1::GenerateRequest Greedy(const std::string& text, int max_tokens,
                                  const std::string& session = "") {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_session()->set_name(session);
  return request;
}

// A request that would run for hours.
inline v1::GenerateRequest Endless(const std::string& session = "") {
  return Greedy("on and on", 1000000000, session);
}

}  // namespace mneme
