// A gRPC server on a free port of the loopback interface, in front of a FakeEngine.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "clients/cpp/client.h"
#include "server/grpc/grpc_server.h"
#include "server/requests/engine_access.h"
#include "server/security/security.h"
#include "tests/server/fake_engine.h"

namespace mneme {

// Calls any unary method with bytes that no generated client would send, and returns how that
// ended.
inline grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::string& bytes,
                            const std::vector<std::pair<std::string, std::string>>& headers = {}) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  for (const auto& [name, value] : headers) context.AddMetadata(name, value);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

class ServerTest : public ::testing::Test {
 protected:
  explicit ServerTest(bool publish = true, const v1::SecuritySection& security = {},
                      const v1::NetworkSection& network = {})
      : config_(network) {
    config_.set_grpc_port(0);
    SecurityFailure failure;
    auto guard = Security::Create(security, clock_, failure);
    EXPECT_TRUE(guard.ok()) << guard.status();
    security_ = *std::move(guard);
    auto server = GrpcServer::Start(config_, access_, *security_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    if (publish) Publish();
    client_ = std::make_unique<Client>(ClientOptions{.target = target()});
  }
  ~ServerTest() override {
    client_ = nullptr;
    server_ = nullptr;
  }

  void Publish(std::shared_ptr<const ChatTemplate> chat_template = nullptr) {
    ServingFacts facts;
    facts.chat_template = std::move(chat_template);
    facts.model_name = "served";
    facts.default_max_tokens = 99;
    facts.sampling_defaults.set_top_k(5);
    facts.sampling_defaults.set_temperature(0.5f);
    access_.Publish(engine_, facts);
    server_->SetServing(true);
  }
  std::string target() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  v1::NetworkSection config_;
  RealClock clock_;
  std::unique_ptr<Security> security_;  // outlives the requests, which hold permits of it
  FakeEngine engine_;
  EngineAccess access_{clock_};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace mneme
