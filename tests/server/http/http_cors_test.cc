// Answers to browsers about pages of other origins.
#include "server/http/http_cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/http/http_server.h"
#include "tests/server/http/one_key.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::string_view kAsk = "Access-Control-Request-Method: POST\r\n";
constexpr absl::string_view kFriend = "Origin: https://a.example\r\n";
constexpr absl::string_view kStranger = "Origin: https://b.example\r\n";
constexpr absl::string_view kKey = "Authorization: Bearer good\r\n";

class ShortBody final : public HttpBody {
 public:
  State Read(std::string& out) override {
    out += "streamed";
    return State::kEnd;
  }
};

class HttpCorsTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> origins) {
    HttpRoutes routes;
    const auto hello = [](std::shared_ptr<HttpCall> call) { call->Send({.body = "hello"}); };
    routes.Add({"GET", "/things", hello});
    routes.Add({"POST", "/things", hello});
    routes.Add({"DELETE", "/things/{thing}", hello});
    routes.Add({"GET", "/stream", [](std::shared_ptr<HttpCall> call) {
                  call->Stream({.content_type = "text/event-stream"},
                               std::make_shared<ShortBody>());
                }});
    HttpServerOptions options;
    options.port = 0;
    options.authenticator = std::make_shared<OneKey>();
    options.allowed_origins = std::move(origins);
    auto server = HttpServer::Start(options, std::move(routes));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  RawResponse Ask(absl::string_view method, absl::string_view target, absl::string_view fields) {
    RawHttpClient client(server_->port());
    client.SendRequest(method, target, "", fields);
    return client.Read();
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpCorsTest, APreflightNeedsNoKeyAndLeavesTheConnectionOpen) {
  Start({"https://a.example"});
  RawHttpClient client(server_->port());
  client.SendRequest("OPTIONS", "/things", "", absl::StrCat(kFriend, kAsk));
  const RawResponse answer = client.Read();
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.Field("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(answer.Field("access-control-allow-methods"), "GET, HEAD, POST");
  EXPECT_THAT(answer.Field("access-control-allow-headers"),
              AllOf(HasSubstr("authorization"), HasSubstr("content-type"),
                    HasSubstr("x-session-id"), HasSubstr("*")));
  EXPECT_EQ(answer.Field("access-control-max-age"), "3600");
  EXPECT_EQ(answer.Field("vary"), "Origin");
  EXPECT_THAT(answer.head, AllOf(Not(HasSubstr("Content-Length")), Not(HasSubstr("Content-Type")),
                                 Not(HasSubstr("Credentials"))));
  client.SendRequest("POST", "/things", "", absl::StrCat(kFriend, kKey));
  EXPECT_EQ(client.Read().body, "hello");
  EXPECT_EQ(Ask("OPTIONS", "/things/1", absl::StrCat(kFriend, kAsk))
                .Field("access-control-allow-methods"),
            "DELETE");
}

TEST_F(HttpCorsTest, WhateverAnAllowedPageGetsItMayRead) {
  Start({"https://c.example", "https://a.example"});
  const std::string with_key = absl::StrCat(kFriend, kKey);
  const std::vector<std::pair<RawResponse, int>> answers = {
      {Ask("GET", "/things", with_key), 200},  {Ask("GET", "/stream", with_key), 200},
      {Ask("GET", "/things", kFriend), 401},   {Ask("GET", "/nothing", with_key), 404},
      {Ask("POST", "/stream", with_key), 405}, {Ask("OPTIONS", "/things", with_key), 405},
  };
  for (const auto& [answer, status] : answers) {
    EXPECT_EQ(answer.status, status) << answer.head;
    EXPECT_EQ(answer.Field("access-control-allow-origin"), "https://a.example");
    EXPECT_EQ(answer.Field("vary"), "Origin");
    EXPECT_THAT(answer.Field("access-control-expose-headers"),
                AllOf(HasSubstr("x-request-id"), HasSubstr("retry-after")));
  }
}

TEST_F(HttpCorsTest, OthersAreToldNothing) {
  Start({"https://a.example"});
  const RawResponse refused = Ask("OPTIONS", "/things", absl::StrCat(kStranger, kAsk));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.Field("vary"), "Origin");
  EXPECT_EQ(Ask("OPTIONS", "/things", kAsk).status, 401) << "no browser asks so";
  EXPECT_EQ(Ask("OPTIONS", "/nothing", absl::StrCat(kFriend, kAsk)).status, 401);
  for (const absl::string_view origin :
       {kStranger, absl::string_view("Origin: null\r\n"),
        absl::string_view("Origin: https://a.example:8443\r\n"), absl::string_view()}) {
    for (const absl::string_view method : {"GET", "OPTIONS"}) {
      const RawResponse answer = Ask(method, "/things", absl::StrCat(origin, kKey, kAsk));
      EXPECT_EQ(answer.status, method == "GET" ? 200 : 405);
      EXPECT_THAT(answer.head, Not(HasSubstr("Access-Control")));
      EXPECT_EQ(answer.Field("vary"), "Origin") << "a cache may not give it to a friend";
    }
  }
}

TEST_F(HttpCorsTest, AllOriginsOrNone) {
  Start({"*"});
  EXPECT_EQ(
      Ask("GET", "/things", absl::StrCat(kStranger, kKey)).Field("access-control-allow-origin"),
      "*");
  EXPECT_EQ(Ask("OPTIONS", "/things", absl::StrCat("Origin: null\r\n", kAsk)).status, 204);
  EXPECT_THAT(Ask("GET", "/things", kKey).head, Not(HasSubstr("Access-Control")));
  Start({});
  EXPECT_THAT(Ask("GET", "/things", absl::StrCat(kFriend, kKey)).head,
              AllOf(Not(HasSubstr("Access-Control")), Not(HasSubstr("Vary"))));
  EXPECT_EQ(Ask("OPTIONS", "/things", absl::StrCat(kFriend, kAsk)).status, 401);
}

}  // namespace
}  // namespace mneme
