// HTTP itself: requests that arrive in pieces, too late, too large or not at all, and who may
// connect.
#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/time/clock.h"
#include "tests/server/accepted_sockets.h"
#include "tests/server/http/http_server_fixture.h"
#include "tests/server/http/one_key.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  Start();
  RawHttpClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.SendRequest("GET", "/hello", "", "x-request-id: mine\r\n");
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "hello");
    EXPECT_EQ(response.Field("x-request-id"), "mine");
    EXPECT_EQ(response.Field("connection"), "keep-alive");
    EXPECT_THAT(response.Field("date"), HasSubstr(" GMT"));
  }
  client.SendRequest("GET", "/hello", "", "Connection: close\r\n");
  EXPECT_EQ(client.Read().Field("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpServerTest, ReadsARequestThatArrivesByteByByte) {
  Start();
  RawHttpClient client(port());
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nabcde\r\n2;x=y\r\nfg\r\n0\r\nTrailer: ignored\r\n\r\n";
  for (const char c : request) ASSERT_TRUE(client.Send(std::string(1, c)));
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "abcdefg");
}

TEST_F(HttpServerTest, ReadsAnEmptyBodyOfChunksByteByByte) {
  Start();
  RawHttpClient client(port());
  for (const char byte : std::string(
           "POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")) {
    EXPECT_TRUE(client.Send(std::string(1, byte)));
    absl::SleepFor(absl::Milliseconds(1));  // so that it is read by itself
  }
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawHttpClient client(port());
  std::string requests;
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&requests, "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n",
                    1000 + i);
  }
  ASSERT_TRUE(client.Send(requests));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(client.Read().body, absl::StrCat(1000 + i));
}

TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  Start();
  RawHttpClient client(port());
  client.SendRequest("HEAD", "/hello");
  const RawResponse head = client.Read(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Field("content-length"), "5");
  client.SendRequest("GET", "/hello");
  EXPECT_EQ(client.Read().body, "hello") << "the body must not follow the answer to HEAD";
}

TEST_F(HttpServerTest, TellsAClientThatWaitsToContinue) {
  Start();
  RawHttpClient client(port());
  ASSERT_TRUE(
      client.Send("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  ASSERT_TRUE(client.Send("abc"));
  EXPECT_EQ(client.Read().body, "abc");
}

TEST_F(HttpServerTest, RefusesBeforeTheBodyIsSent) {
  Start();
  RawHttpClient client(port());
  ASSERT_TRUE(
      client.Send("POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpServerTest, MatchesPathsAndSaysWhatElseThereIs) {
  Start();
  EXPECT_EQ(Get("/things/a%20b/c?x=1&y").body, "a b/c?x=1&y");
  EXPECT_EQ(Get("http://test/hello").body, "hello");
  EXPECT_EQ(Get("/things/").status, 404);
  const RawResponse missing = Get("/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_THAT(missing.body, HasSubstr(R"("type":"not_found_error")"));
  RawHttpClient client(port());
  client.SendRequest("POST", "/hello", "x");
  const RawResponse wrong = client.Read();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.Field("allow"), "GET, HEAD");
}

TEST_F(HttpServerTest, RefusesWhatIsNoRequest) {
  Start();
  const std::vector<std::pair<std::string, int>> cases = {
      {"hello\r\n\r\n", 400},
      {"GET /hello HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"GET /hello HTTP/1.1\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: a\r\nbad field\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\n\r\n", 411},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx", 400},
      {"GET /hello HTTP/1.1\r\nHost: a\r\nx-session-id: b\r\n c\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: a\r\nx-session-id: b\r\n\tContent-Length: 5\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n", 413},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: "
       "chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n", 417},
      {absl::StrCat("GET /", std::string(9000, 'a'), " HTTP/1.1\r\nHost: a\r\n\r\n"), 414},
      {absl::StrCat("GET /", std::string(70000, 'a')), 414},
      {absl::StrCat("GET /hello HTTP/1.1\r\nHost: a\r\nx: ", std::string(40000, 'a'), "\r\n\r\n"),
       431},
      {absl::StrCat("GET /hello HTTP/1.1\r\nHost: a\r\nx: ", std::string(70000, 'a')), 431},
  };
  for (const auto& [bytes, status] : cases) {
    RawHttpClient client(port());
    client.Send(bytes);
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, status) << bytes.substr(0, 120) << "\n" << response.body;
    EXPECT_THAT(response.body, StartsWith(R"({"error":{"message":)"));
    EXPECT_THAT(response.body, Not(HasSubstr(R"("code":null)")));
    EXPECT_EQ(response.Field("x-should-retry"), "false");
    EXPECT_FALSE(response.Field("x-request-id").empty());
    EXPECT_EQ(response.Field("connection"), "close");
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST_F(HttpServerTest, RefusesChunkExtensionsAndTrailersThatAreTooLong) {
  Start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string much(40000, 'a');
  for (const std::string& bytes :
       {absl::StrCat(head, "1;x=", much), absl::StrCat(head, "1;x=", much, "\r\na\r\n0\r\n\r\n"),
        absl::StrCat(head, "1\r\na\r\n0\r\nx: ", much, "\r\n\r\n")}) {
    RawHttpClient client(port());
    client.Send(bytes);
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, 431) << response.body;
    EXPECT_THAT(response.body, HasSubstr("--max-header-size"));
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST_F(HttpServerTest, RefusesABodyOfChunksThatGrowsTooLarge) {
  Start();
  RawHttpClient client(port());
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = absl::StrCat("2710\r\n", std::string(10000, 'a'), "\r\n");
  for (int i = 0; i < 11; ++i) client.Send(chunk);
  EXPECT_EQ(client.Read().status, 413);
}

TEST_F(HttpServerTest, CutsOffAHeaderOrBodyThatTakesTooLong) {
  options_.header_timeout = absl::Milliseconds(50);
  options_.body_timeout = absl::Milliseconds(50);
  Start();
  RawHttpClient slow_header(port());
  ASSERT_TRUE(slow_header.Send("GET /hello HTTP/1.1\r\nHo"));
  EXPECT_EQ(slow_header.Read().status, 408);
  EXPECT_TRUE(slow_header.AtEnd());
  RawHttpClient slow_body(port());
  ASSERT_TRUE(slow_body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nx"));
  EXPECT_EQ(slow_body.Read().status, 408);
}

TEST_F(HttpServerTest, ClosesAConnectionWithoutARequest) {
  options_.idle_timeout = absl::Milliseconds(50);
  Start();
  RawHttpClient silent(port());
  EXPECT_TRUE(silent.AtEnd());
}

TEST_F(HttpServerTest, RefusesAConnectionTooMany) {
  options_.max_connections = 1;
  Start();
  RawHttpClient first(port());
  first.SendRequest("GET", "/later");
  streaming_.WaitForNotification();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    RawHttpClient another(port());
    const RawResponse response = another.Read();
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.Field("retry-after"), "1");
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("W too_many_connections: another one was refused "
                             "(--http-max-connections) api=http open=1\n"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << "one line a minute: " << log;
  EXPECT_EQ(connections_.limit.value(), 1);
  EXPECT_EQ(connections_.open.value(), 1);
  EXPECT_EQ(connections_.refused.value(), 3);
  EXPECT_EQ(connections_.evicted.value(), 0);
}

// Closes the longest idle one, and lets the newcomer in.
TEST_F(HttpServerTest, AnIdleConnectionMakesRoomForAnother) {
  options_.max_connections = 2;
  Start();
  RawHttpClient busy(port());
  busy.SendRequest("GET", "/later");
  streaming_.WaitForNotification();
  RawHttpClient idle(port());
  idle.SendRequest("GET", "/hello");
  EXPECT_EQ(idle.Read().status, 200);
  // The client may have its answer before the server has taken note of its end.
  int status = 503;
  while (status == 503) {
    RawHttpClient newcomer(port());
    newcomer.SendRequest("GET", "/hello");
    status = newcomer.Read().status;
  }
  EXPECT_EQ(status, 200);
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_EQ(connections_.evicted.value(), 1);
  call_->Send({.body = "still here"});
  EXPECT_EQ(busy.Read().body, "still here");
}

TEST_F(HttpServerTest, StrangersMakeRoomBeforeKnownClients) {
  options_.max_connections = 3;
  options_.authenticator = std::make_shared<OneKey>();
  Start();
  RawHttpClient known(port());
  ASSERT_TRUE(known.Send("GET /hello HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\n\r\n"));
  EXPECT_EQ(known.Read().status, 200);
  RawHttpClient silent(port());
  RawHttpClient half_a_header(port());
  ASSERT_TRUE(half_a_header.Send("GET /hello HTTP/1.1\r\nHos"));
  // The older one of two strangers goes, whatever it is about to say.
  RawHttpClient third(port());
  third.SendRequest("GET", "/open");
  EXPECT_EQ(third.Read().status, 200);
  EXPECT_TRUE(silent.AtEnd());
  RawHttpClient fourth(port());
  fourth.SendRequest("GET", "/open");
  EXPECT_EQ(fourth.Read().status, 200);
  EXPECT_TRUE(half_a_header.AtEnd());
  ASSERT_TRUE(known.Send("GET /hello HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\n\r\n"));
  EXPECT_EQ(known.Read().status, 200);
}

TEST_F(HttpServerTest, AsksTheAuthenticatorBeforeItSaysAnything) {
  options_.authenticator = std::make_shared<OneKey>();
  Start();
  const RawResponse refused = Get("/hello");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.Field("www-authenticate"), "Bearer");
  EXPECT_EQ(Get("/nothing").status, 401);
  EXPECT_EQ(Get("/open").status, 200);
  EXPECT_EQ(Get("/nothing", "Authorization: Bearer good\r\n").status, 404);
  RawHttpClient client(port());
  client.SendRequest("POST", "/echo", "x", "Authorization: Bearer good\r\n");
  EXPECT_EQ(client.Read().Field("x-owner"), "alice");
}

TEST_F(HttpServerTest, HasTheSystemNoticeClientsThatVanished) {
  options_.write_timeout = absl::Seconds(7);
  Start();
  RawHttpClient client(port());
  client.SendRequest("GET", "/hello");
  EXPECT_EQ(client.Read().status, 200);
  const std::vector<int> sockets = AcceptedSockets(port());
  ASSERT_EQ(sockets.size(), 1u);
  EXPECT_EQ(TcpOption(sockets[0], TCP_USER_TIMEOUT), 7000);
  EXPECT_EQ(TcpOption(sockets[0], TCP_KEEPIDLE), 60);
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  Start();
  HttpServerOptions again = options_;
  again.port = port();
  const auto second = HttpServer::Start(again, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--http-port"));
  again.host = std::string(64, 'x');  // no label of a name is that long: no server is asked
  EXPECT_EQ(HttpServer::Start(again, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HttpServerTest, EveryAddressOfANameIsServed) {
  options_.host = "localhost";
  Start();
  ASSERT_FALSE(server_->sockets().addresses().empty());
  for (const SocketAddress& address : server_->sockets().addresses()) {
    RawHttpClient client(address);
    client.SendRequest("GET", "/hello");
    EXPECT_EQ(client.Read().body, "hello") << address.Text();
  }
}

}  // namespace
}  // namespace mneme
