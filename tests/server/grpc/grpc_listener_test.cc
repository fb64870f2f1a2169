// The gRPC port and its connections: how many, and which of them do not stay.
#include "server/grpc/grpc_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/server/accepted_sockets.h"
#include "tests/server/grpc/server_fixture.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

// What a client of HTTP/2 says first: the preface, and a frame of settings without any.
const std::string& Preface() {
  static const auto* const bytes =
      new std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9));
  return *bytes;
}

TEST(OpenConnectionsTest, ClosedOnesMakeRoom) {
  OpenConnections open(2);
  const int first = socket(AF_INET, SOCK_STREAM, 0);
  const int second = socket(AF_INET, SOCK_STREAM, 0);
  const int third = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_TRUE(open.Add(first));
  EXPECT_TRUE(open.Add(second));
  EXPECT_FALSE(open.Add(third));
  close(first);
  EXPECT_TRUE(open.Add(third));
  // The number of the one that was closed comes again, for another socket.
  const int again = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(again, first);
  EXPECT_FALSE(open.Add(again));
  close(second);
  EXPECT_TRUE(open.Add(again));
  close(third);
  close(again);
  EXPECT_FALSE(open.Add(again));  // no connection at all
}

// Of two connections. Times that end in the tests are for clients that deserve no better: others
// may be held up for longer.
class GrpcListenerTest : public ServerTest {
 protected:
  explicit GrpcListenerTest(int64_t handshake_timeout_ms = 600'000,
                            int64_t keepalive_time_ms = 600'000)
      : ServerTest(true, {}, Network(handshake_timeout_ms, keepalive_time_ms)) {}

 private:
  static v1::NetworkSection Network(int64_t handshake_timeout_ms, int64_t keepalive_time_ms) {
    v1::NetworkSection network;
    network.set_grpc_max_connections(2);
    network.set_handshake_timeout_ms(handshake_timeout_ms);
    network.set_keepalive_time_ms(keepalive_time_ms);
    network.set_keepalive_timeout_ms(700);
    return network;
  }
};

class ShortHandshakeTest : public GrpcListenerTest {
 protected:
  ShortHandshakeTest() : GrpcListenerTest(/*handshake_timeout_ms=*/500) {}
};

class ShortKeepaliveTest : public GrpcListenerTest {
 protected:
  ShortKeepaliveTest() : GrpcListenerTest(600'000, /*keepalive_time_ms=*/1000) {}
};

TEST_F(GrpcListenerTest, AConnectionTooManyIsClosedAndOthersGoOn) {
  EXPECT_TRUE(client_->GetInfo().ok());
  {
    RawHttpClient second(server_->port());
    EXPECT_TRUE(second.Send(Preface()));
    EXPECT_NE(second.ReadBytes(9), "");  // the server's settings
    RawHttpClient third(server_->port());
    EXPECT_TRUE(third.AtEnd());
    EXPECT_TRUE(client_->GetInfo().ok());
  }
  // Once it has left there is room, as soon as the server has noticed.
  for (bool found_room = false; !found_room;) {
    RawHttpClient next(server_->port());
    found_room = next.Send(Preface()) && next.ReadBytes(9).size() == 9;
  }
}

TEST_F(ShortHandshakeTest, ClientsThatSayNothingAreClosed) {
  for (const size_t bytes : {size_t{0}, size_t{10}, Preface().size() - 9}) {
    RawHttpClient client(server_->port());
    EXPECT_TRUE(client.Send(Preface().substr(0, bytes)));
    (void)client.ReadToEnd();
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST_F(ShortKeepaliveTest, IdleClientsThatDoNotAnswerAreClosed) {
  RawHttpClient idle(server_->port());
  EXPECT_TRUE(idle.Send(Preface()));
  (void)idle.ReadToEnd();
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(GrpcListenerTest, TheSystemNoticesClientsThatVanish) {
  EXPECT_TRUE(client_->GetInfo().ok());
  const std::vector<int> sockets = AcceptedSockets(server_->port());
  ASSERT_EQ(sockets.size(), 1u);
  EXPECT_EQ(TcpOption(sockets[0], TCP_USER_TIMEOUT), 700);
  EXPECT_EQ(TcpOption(sockets[0], TCP_NODELAY), 1);
}

TEST(GrpcListenerHostTest, EveryAddressOfANameIsListenedOn) {
  const auto listener = GrpcListener::Open({.host = "localhost", .max_connections = 1});
  ASSERT_TRUE(listener.ok()) << listener.status();
  for (const SocketAddress& address : (*listener)->sockets().addresses()) {
    EXPECT_TRUE(RawHttpClient(address).connected()) << address.Text();
  }
}

}  // namespace
}  // namespace mneme
