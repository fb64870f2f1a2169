// A gRPC server on a free port of the loopback interface, in front of a FakeEngine.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "clients/cpp/client.h"
#include "server/engine_access.h"
#include "server/grpc/grpc_server.h"
#include "server/security/security.h"
#include "tests/server/fake_engine.h"

namespace mneme {

class ServerTest : public ::testing::Test {
 protected:
  explicit ServerTest(bool publish = true, const v1::SecuritySection& security = {}) {
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

  void Publish() {
    ServingFacts facts;
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
  EngineAccess access_{absl::Now()};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace mneme
