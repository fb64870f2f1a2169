// Where files run out: whose connection ends, of those at several ports.
#include "server/net/connection_evictor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>
#include <vector>

#include "server/net/listening_sockets.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

class FakePort final : public EvictableConnections {
 public:
  explicit FakePort(std::vector<ConnectionWorth> connections)
      : connections_(std::move(connections)) {}

  std::optional<ConnectionWorth> LeastWorth() override {
    if (connections_.empty()) return std::nullopt;
    return connections_.front();
  }
  bool EvictLeast() override {
    if (stays_) return false;
    connections_.erase(connections_.begin());
    return true;
  }
  // As where a connection has come to be in use meanwhile.
  void Keep() { stays_ = true; }
  size_t left() const { return connections_.size(); }

 private:
  std::vector<ConnectionWorth> connections_;
  bool stays_ = false;
};

class ConnectionEvictorTest : public ::testing::Test {
 protected:
  bool MakeRoom() { return evictor_.MakeRoom(listener_.fds()[0]); }

  ConnectionEvictor evictor_;
  const ListeningSockets listener_ = *ListeningSockets::Open({.host = "127.0.0.1"});
};

ConnectionWorth Stranger(int second) { return {.since = absl::Seconds(second)}; }
ConnectionWorth Known(int second) { return {.is_known = true, .since = absl::Seconds(second)}; }

TEST_F(ConnectionEvictorTest, TheOldestStrangerOfAllPortsGoesFirst) {
  FakePort a({Stranger(2), Known(1)}), b({Stranger(3), Known(0)});
  evictor_.Add(&a);
  evictor_.Add(&b);
  const auto next_leaves = [&](size_t of_a, size_t of_b) {
    EXPECT_TRUE(MakeRoom());
    EXPECT_EQ(a.left(), of_a);
    EXPECT_EQ(b.left(), of_b);
  };
  next_leaves(1, 2);
  next_leaves(1, 1);
  next_leaves(1, 0);  // known clients come after strangers
  next_leaves(0, 0);
  EXPECT_FALSE(MakeRoom());
}

TEST_F(ConnectionEvictorTest, APortThatKeepsItsConnectionIsPassedOver) {
  FakePort a({Stranger(1)}), b({Known(5)});
  evictor_.Add(&a);
  evictor_.Add(&b);
  a.Keep();
  EXPECT_TRUE(MakeRoom());
  EXPECT_EQ(a.left(), 1u);
  EXPECT_EQ(b.left(), 0u);
}

TEST_F(ConnectionEvictorTest, WhereNobodyMayGoTheNewcomerIsRefusedAtOnce) {
  FakePort gone({Stranger(1)});
  evictor_.Add(&gone);
  evictor_.Remove(&gone);
  RawHttpClient newcomer(listener_.port());
  EXPECT_FALSE(MakeRoom());
  EXPECT_TRUE(newcomer.AtEnd());
  EXPECT_EQ(gone.left(), 1u);
}

}  // namespace
}  // namespace mneme
