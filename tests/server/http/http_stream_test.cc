// Answers that take their time: streams, clients that leave meanwhile, and servers that shut down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/server/http/http_server_fixture.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

using HttpStreamTest = HttpServerTest;

TEST_F(HttpStreamTest, StreamsABodyAsItComes) {
  Start();
  RawHttpClient client(port());
  client.SendRequest("GET", "/stream");
  streaming_.WaitForNotification();
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked"));
  body_->Add("one");
  call_->Wake();
  EXPECT_EQ(client.ReadUntil("one\r\n"), "3\r\none\r\n");
  body_->Add("two");
  body_->Add("three");
  body_->End();
  call_->Wake();
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "8\r\ntwothree\r\n0\r\n\r\n");
  client.SendRequest("GET", "/hello");
  EXPECT_EQ(client.Read().body, "hello") << "the connection goes on after a stream";
}

TEST_F(HttpStreamTest, StreamsToHttp10UntilTheConnectionEnds) {
  Start();
  RawHttpClient client(port());
  ASSERT_TRUE(client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  streaming_.WaitForNotification();
  body_->Add("all");
  body_->End();
  call_->Wake();
  const RawResponse response = client.Read();
  EXPECT_EQ(response.Field("connection"), "close");
  EXPECT_EQ(response.body, "all");
}

TEST_F(HttpStreamTest, SendsSignsOfLifeWhileABodyPauses) {
  options_.stream_keep_alive = absl::Milliseconds(10);
  Start();
  RawHttpClient client(port());
  client.SendRequest("GET", "/stream");
  EXPECT_THAT(client.ReadUntil(": still here\n\n"), HasSubstr(": still here"));
}

TEST_F(HttpStreamTest, DoesNotProduceWhatNobodyReads) {
  Start();
  RawHttpClient client(port());
  client.SendRequest("GET", "/stream");
  streaming_.WaitForNotification();
  body_->MakeEndless();
  call_->Wake();
  int64_t before = -1;
  for (int64_t now = body_->produced(); now != before; now = body_->produced()) {
    ASSERT_LT(now, int64_t{1} << 30) << "the buffers of sockets hold some megabytes";
    before = now;
    absl::SleepFor(absl::Milliseconds(50));
  }
  client.Close();
  left_.WaitForNotification();
}

TEST_F(HttpStreamTest, NoticesThatAStreamsClientLeft) {
  Start();
  RawHttpClient client(port());
  client.SendRequest("GET", "/stream");
  streaming_.WaitForNotification();
  client.Close();
  left_.WaitForNotification();
  EXPECT_TRUE(call_->client_left());
  EXPECT_EQ(body_.use_count(), 1) << "the connection lets go of the body";
}

TEST_F(HttpStreamTest, NoticesThatAWaitingClientLeft) {
  Start();
  RawHttpClient client(port());
  client.SendRequest("GET", "/later");
  streaming_.WaitForNotification();
  client.Close();
  left_.WaitForNotification();
  call_->Send({.body = "too late"});
}

TEST_F(HttpStreamTest, AnswersACallThatItsHandlerDropped) {
  Start();
  EXPECT_EQ(Get("/drop").status, 500);
}

TEST_F(HttpStreamTest, LetsResponsesEndWhenItShutsDown) {
  Start();
  RawHttpClient idle(port());
  idle.SendRequest("GET", "/hello");
  EXPECT_EQ(idle.Read().status, 200);
  RawHttpClient busy(port());
  busy.SendRequest("GET", "/later");
  streaming_.WaitForNotification();
  std::thread shutdown([this] { server_->Shutdown(absl::Seconds(30)); });
  EXPECT_TRUE(idle.AtEnd());
  call_->Send({.body = "done"});
  const RawResponse response = busy.Read();
  EXPECT_EQ(response.body, "done");
  EXPECT_EQ(response.Field("connection"), "close");
  busy.Close();
  shutdown.join();
  EXPECT_EQ(server_->open_connections(), 0);
}

TEST_F(HttpStreamTest, CutsOffWhatDoesNotEnd) {
  Start();
  RawHttpClient busy(port());
  busy.SendRequest("GET", "/later");
  streaming_.WaitForNotification();
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_TRUE(busy.AtEnd());
  EXPECT_TRUE(left_.HasBeenNotified());
}

TEST_F(HttpStreamTest, ReportsEachExchange) {
  absl::Mutex mu;
  std::vector<std::string> lines;
  options_.on_exchange = [&](const HttpExchange& exchange) {
    absl::MutexLock lock(&mu);
    lines.push_back(absl::StrCat(exchange.request.method, " ", exchange.request.route, " ",
                                 exchange.status, exchange.complete ? "" : " cut"));
  };
  Start();
  Get("/hello");
  Get("/nothing");
  {
    RawHttpClient client(port());
    client.SendRequest("GET", "/later");
    streaming_.WaitForNotification();
  }
  left_.WaitForNotification();
  server_->Shutdown(absl::Seconds(1));
  // Each connection's own thread reports, after the client has its answer: in any order.
  EXPECT_THAT(lines,
              ::testing::UnorderedElementsAre("GET /hello 200", "GET  404", "GET /later 0 cut"));
}

}  // namespace
}  // namespace mneme
