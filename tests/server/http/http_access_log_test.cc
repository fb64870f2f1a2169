// The line for a call over HTTP, which calls have one, and what it never holds.
#include "server/http/http_access_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;
using Which = HttpAccessLog::Which;

HttpRequest LoggedRequest(std::string method, std::string path, std::string route) {
  HttpRequest request;
  request.method = std::move(method);
  request.path = std::move(path);
  request.route = std::move(route);
  request.id = "req-1";
  request.peer = "127.0.0.1:4711";
  return request;
}

class HttpAccessLogTest : public ::testing::Test {
 protected:
  ~HttpAccessLogTest() override {
    SetMinLogSeverity(LogSeverity::kInfo);
    SetLogFormat(LogFormat::kText);
  }

  static std::string Log(const HttpRequest& request, int status, Which which = Which::kNoProbes,
                         bool complete = true) {
    CaptureStderr();
    HttpAccessLog(which).Add("http", {.request = request,
                                      .status = status,
                                      .sent_bytes = 321,
                                      .duration = absl::Microseconds(1250),
                                      .complete = complete});
    return GetCapturedStderr();
  }
};

TEST_F(HttpAccessLogTest, ACallIsOneLine) {
  HttpRequest request = LoggedRequest("GET", "/v1/sessions/anna", "/v1/sessions/{name}");
  request.owner = "team";
  request.trace.trace_id = "ab";
  request.trace.span_id = "cd";
  EXPECT_THAT(Log(request, 200),
              HasSubstr(" I http id=req-1 trace_id=ab span_id=cd api=http client=127.0.0.1:4711 "
                        "owner=team method=GET path=/v1/sessions/anna status=200 bytes=321 "
                        "duration_ms=1.250\n"));
  SetLogFormat(LogFormat::kJson);
  EXPECT_THAT(Log(request, 404), AllOf(HasSubstr("\"severity\":\"INFO\",\"event\":\"http\""),
                                       HasSubstr("\"status\":404,\"bytes\":321")));
}

TEST_F(HttpAccessLogTest, AClientThatLeftIsSaidToHaveLeft) {
  const HttpRequest request = LoggedRequest("POST", "/tokenize", "/tokenize");
  EXPECT_THAT(Log(request, 200, Which::kFailed, /*complete=*/false),
              HasSubstr(" status=200 outcome=client_left bytes="));
  EXPECT_THAT(Log(request, 0, Which::kFailed, /*complete=*/false),
              AllOf(Not(HasSubstr("status")), HasSubstr(" outcome=client_left bytes=")));
}

TEST_F(HttpAccessLogTest, WhichCallsHaveALineIsASetting) {
  struct Case {
    HttpRequest request;
    int status;
    bool all, no_probes, failed;
  };
  const std::vector<Case> cases = {
      {LoggedRequest("GET", "/v1/models", "/v1/models"), 200, true, true, false},
      {LoggedRequest("GET", "/nowhere", ""), 404, true, true, true},
      {LoggedRequest("GET", "/health", "/health"), 200, true, false, false},
      {LoggedRequest("HEAD", "/health", "/health"), 503, true, false, false},
      {LoggedRequest("GET", "/ping", "/ping"), 200, true, false, false},
      {LoggedRequest("GET", "/metrics", "/metrics"), 200, true, false, false},
      {LoggedRequest("GET", "/metrics", "/metrics"), 401, true, true, true},
      {LoggedRequest("GET", "/health", "/health"), 500, true, true, true},
      {LoggedRequest("POST", "/v1/completions", "/v1/completions"), 200, true, true, false},
  };
  for (const Case& c : cases) {
    const std::string what = c.request.path + " " + std::to_string(c.status);
    EXPECT_EQ(!Log(c.request, c.status, Which::kAll).empty(), c.all) << what;
    EXPECT_EQ(!Log(c.request, c.status, Which::kNoProbes).empty(), c.no_probes) << what;
    EXPECT_EQ(!Log(c.request, c.status, Which::kFailed).empty(), c.failed) << what;
    EXPECT_EQ(Log(c.request, c.status, Which::kNone), "") << what;
  }
}

TEST_F(HttpAccessLogTest, OnlyTheServersOwnFaultsAreWarnings) {
  const HttpRequest request = LoggedRequest("GET", "/v1/models", "/v1/models");
  EXPECT_THAT(Log(request, 500), HasSubstr(" W http "));
  EXPECT_THAT(Log(request, 503), HasSubstr(" I http "));
  EXPECT_THAT(Log(request, 401), HasSubstr(" I http "));
  SetMinLogSeverity(LogSeverity::kWarning);
  EXPECT_EQ(Log(request, 401, Which::kAll), "");
  EXPECT_THAT(Log(request, 500), HasSubstr(" W http "));
}

TEST_F(HttpAccessLogTest, WhatClientsSendCannotPassForAnythingElse) {
  // As the server has them: decoded.
  const std::string line = Log(
      LoggedRequest("GET", "/a\n2026 E fatal\tb\"c\\d%e\x1b[31m\xc3\xa4\x7f status=200", ""), 404);
  EXPECT_THAT(line,
              HasSubstr("/a%0A2026%20E%20fatal%09b%22c%5Cd%25e%1B[31m%C3%A4%7F%20status=200"));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  SetLogFormat(LogFormat::kJson);
  const std::string json = Log(LoggedRequest("G\"ET", "/\xff\xfe", ""), 400);
  EXPECT_THAT(json, AllOf(HasSubstr("\"method\":\"G%22ET\""), HasSubstr("\"path\":\"/%FF%FE\"")));
}

TEST_F(HttpAccessLogTest, ALineIsShortWhateverIsAskedFor) {
  HttpRequest request = LoggedRequest(std::string(5000, 'M'), "/" + std::string(15000, '\x01'), "");
  request.query = "key=secret";
  request.body = "secret";
  request.fields.push_back({"authorization", "Bearer secret"});
  const std::string line = Log(request, 400);
  EXPECT_LT(line.size(), 2000u);
  EXPECT_THAT(line, AllOf(HasSubstr("%01... status=400"), Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace mneme
