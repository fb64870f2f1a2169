// A server of a few routes, and a body that tests feed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/http/http_server.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {

// A body that a test feeds.
class FedBody final : public HttpBody {
 public:
  State Read(std::string& out) override {
    absl::MutexLock lock(&mu_);
    ++reads_;
    if (endless_) {
      out.append(65536, 'x');
      produced_ += 65536;
      return State::kMore;
    }
    if (pieces_.empty()) return ended_ ? State::kEnd : State::kLater;
    out += pieces_.front();
    pieces_.pop_front();
    return State::kMore;
  }
  std::string KeepAlive() override { return ": still here\n\n"; }

  void Add(std::string piece) {
    absl::MutexLock lock(&mu_);
    pieces_.push_back(std::move(piece));
  }
  void End() {
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }
  void MakeEndless() {
    absl::MutexLock lock(&mu_);
    endless_ = true;
  }
  int64_t produced() {
    absl::MutexLock lock(&mu_);
    return produced_;
  }

 private:
  absl::Mutex mu_;
  std::deque<std::string> pieces_;
  bool ended_ = false;
  bool endless_ = false;
  int64_t produced_ = 0;
  int reads_ = 0;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.port = 0;
    options_.limits.max_body_bytes = 100000;
  }
  void Start() {
    HttpRoutes routes;
    routes.Add({"GET", "/hello", [](std::shared_ptr<HttpCall> call) {
                  call->Send({.content_type = "text/plain", .body = "hello"});
                }});
    routes.Add({.method = "GET",
                .pattern = "/open",
                .handler = [](std::shared_ptr<HttpCall> call) { call->Send({.body = "{}"}); },
                .is_open = true});
    routes.Add({"POST", "/echo", [](std::shared_ptr<HttpCall> call) {
                  call->Send({.content_type = "text/plain",
                              .fields = {{"x-owner", call->request().owner}},
                              .body = call->request().body});
                }});
    routes.Add({"GET", "/things/{thing}", [](std::shared_ptr<HttpCall> call) {
                  call->Send({.body = absl::StrCat(call->request().route_argument, "?",
                                                   call->request().query)});
                }});
    routes.Add({"GET", "/stream", [this](std::shared_ptr<HttpCall> call) {
                  body_ = std::make_shared<FedBody>();
                  call->OnClientLeft([this] { left_.Notify(); });
                  call->Stream({.content_type = "text/event-stream"}, body_);
                  call_ = call;
                  streaming_.Notify();
                }});
    routes.Add({"GET", "/later", [this](std::shared_ptr<HttpCall> call) {
                  call->OnClientLeft([this] { left_.Notify(); });
                  call_ = call;
                  streaming_.Notify();
                }});
    routes.Add({"GET", "/drop", [](std::shared_ptr<HttpCall>) {}});
    options_.stats = &connections_;
    // The server keeps what it needs of its options.
    const auto options = std::make_unique<HttpServerOptions>(options_);
    auto server = HttpServer::Start(*options, std::move(routes));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override { server_ = nullptr; }
  int port() const { return server_->port(); }
  // "200", or why the connection says otherwise.
  RawResponse Get(absl::string_view target, absl::string_view fields = "") {
    RawHttpClient client(port());
    client.SendRequest("GET", target, "", fields);
    return client.Read();
  }

  HttpServerOptions options_;
  ConnectionStats connections_;
  std::shared_ptr<FedBody> body_;
  std::shared_ptr<HttpCall> call_;
  absl::Notification streaming_;
  absl::Notification left_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace mneme
