// The gRPC port and its connections: how many, and which of them do not stay.
#include "server/grpc/grpc_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/accepted_sockets.h"
#include "tests/server/grpc/server_fixture.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

// The first bytes of a client of HTTP/2: the preface, and a frame of settings without any.
const std::string& Preface() {
  static const auto* const bytes =
      new std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9));
  return *bytes;
}

// With an address for each, as accept() would give it.
bool Add(OpenConnections& open, int fd) { return open.Add(fd, absl::StrCat("client ", fd)); }

TEST(OpenConnectionsTest, ClosedOnesMakeRoom) {
  KnownPeers known;
  OpenConnections open(2, known);
  const int first = socket(AF_INET, SOCK_STREAM, 0);
  const int second = socket(AF_INET, SOCK_STREAM, 0);
  const int third = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_TRUE(Add(open, first));
  EXPECT_TRUE(Add(open, second));
  EXPECT_FALSE(Add(open, third));
  close(first);
  EXPECT_TRUE(Add(open, third));
  // The number of the one that was closed comes again, for another socket.
  const int again = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(again, first);
  EXPECT_FALSE(Add(open, again));
  close(second);
  EXPECT_TRUE(Add(open, again));
  close(third);
  close(again);
  EXPECT_FALSE(Add(open, again));  // no connection at all
}

TEST(OpenConnectionsTest, TheOldestStrangerIsEvicted) {
  KnownPeers known;
  OpenConnections open(3, known);
  std::vector<int> mine, theirs;
  for (int i = 0; i < 3; ++i) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    EXPECT_TRUE(Add(open, pair[0]));
    mine.push_back(pair[0]);
    theirs.push_back(pair[1]);
  }
  known.Mark(absl::StrCat("client ", mine[0]));
  const auto is_ended = [&](int i) {
    char byte;
    return recv(theirs[i], &byte, 1, MSG_DONTWAIT) == 0;
  };
  EXPECT_TRUE(open.EvictStranger());
  EXPECT_TRUE(is_ended(1));
  EXPECT_FALSE(is_ended(2));
  EXPECT_TRUE(open.EvictStranger());
  EXPECT_TRUE(is_ended(2));
  EXPECT_FALSE(open.EvictStranger()) << "the one that is left is known";
  EXPECT_FALSE(is_ended(0));
  EXPECT_EQ(open.Count(), 1u);
  close(mine[0]);
  EXPECT_EQ(open.Count(), 0u);
  EXPECT_FALSE(known.Contains(absl::StrCat("client ", mine[0]))) << "its address may come again";
  for (const int fd : {mine[1], mine[2], theirs[0], theirs[1], theirs[2]}) close(fd);
}

TEST(OpenConnectionsTest, AnEvictionNeedsNoFurtherFile) {
  KnownPeers known;
  OpenConnections open(1, known);
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  ASSERT_TRUE(open.Add(pair[0], "stranger"));
  const int next = dup(pair[0]);  // the lowest number that is free: the limit leaves none
  close(next);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_LT(dup(pair[0]), 0);
  EXPECT_TRUE(open.EvictStranger());
  char byte;
  EXPECT_EQ(recv(pair[1], &byte, 1, MSG_DONTWAIT), 0) << "it was not ended";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(pair[0]);
  close(pair[1]);
}

// A server with room for two connections. Only clients that deserve no better have times that end
// in a test: others may be held up for longer.
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

std::unique_ptr<Client> AnotherClient(const std::string& target) {
  return std::make_unique<Client>(ClientOptions{.target = target});
}

TEST_F(GrpcListenerTest, AConnectionTooManyIsClosedAndOthersGoOn) {
  EXPECT_TRUE(client_->GetInfo().ok());
  {
    const std::unique_ptr<Client> second = AnotherClient(target());
    EXPECT_TRUE(second->GetInfo().ok());
    RawHttpClient third(server_->port());
    EXPECT_TRUE(third.AtEnd());
    EXPECT_TRUE(client_->GetInfo().ok());
    EXPECT_TRUE(second->GetInfo().ok());
    EXPECT_GE(access_.stats().grpc_connections.refused.value(), 1);
    EXPECT_EQ(access_.stats().grpc_connections.evicted.value(), 0);
  }
  // Once it has left there is room, as soon as the server has noticed.
  for (bool found_room = false; !found_room;) {
    RawHttpClient next(server_->port());
    found_room = next.Send(Preface()) && next.ReadBytes(9).size() == 9;
  }
}

TEST_F(GrpcListenerTest, AConnectionWithoutACallMakesRoomForAnother) {
  EXPECT_TRUE(client_->GetInfo().ok());
  for (int i = 0; i < 3; ++i) {
    RawHttpClient stranger(server_->port());
    EXPECT_TRUE(stranger.Send(Preface()));
    EXPECT_NE(stranger.ReadBytes(9), "");  // the server's settings
    RawHttpClient another(server_->port());
    EXPECT_TRUE(another.Send(Preface()));
    EXPECT_NE(another.ReadBytes(9), "");
    (void)stranger.ReadToEnd();
    EXPECT_TRUE(stranger.AtEnd());
  }
  EXPECT_TRUE(client_->GetInfo().ok());
  const ConnectionStats& connections = access_.stats().grpc_connections;
  EXPECT_EQ(connections.limit.value(), 2);
  EXPECT_GE(connections.evicted.value(), 3);
  EXPECT_EQ(connections.refused.value(), 0);
  while (connections.open.value() == 0) {
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
  KnownPeers known;
  const auto listener =
      GrpcListener::Open({.host = "localhost", .max_connections = 1, .known_peers = &known});
  ASSERT_TRUE(listener.ok()) << listener.status();
  for (const SocketAddress& address : (*listener)->sockets().addresses()) {
    EXPECT_TRUE(RawHttpClient(address).connected()) << address.Text();
  }
}

}  // namespace
}  // namespace mneme
