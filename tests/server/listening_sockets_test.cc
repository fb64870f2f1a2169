// Ports that are open at every address of a host.
#include "server/net/listening_sockets.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/net/host_address.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ListenOptions At(const std::string& host, int port = 0) {
  return {.host = host, .port = port, .host_flag = "--a-host", .port_flag = "--a-port"};
}

// Loopback addresses that every Linux has.
std::vector<SocketAddress> Two() {
  return {ResolveHost("127.0.0.1")->front(), ResolveHost("127.0.0.2")->front()};
}

// An address of the net for documentation: nobody's.
SocketAddress Foreign() { return ResolveHost("192.0.2.1")->front(); }

TEST(HostAddressTest, BracketsStandAroundColonsOnly) {
  EXPECT_EQ(AddressText("127.0.0.1", 80), "127.0.0.1:80");
  EXPECT_EQ(AddressText("::1", 80), "[::1]:80");
  EXPECT_EQ(AddressText("[::1]", 80), "[::1]:80");
  EXPECT_EQ(AddressText("*", 80), "[::]:80");
}

TEST(HostAddressTest, AHostHasEachOfItsAddressesOnce) {
  const auto local = ResolveHost("localhost");
  ASSERT_TRUE(local.ok()) << local.status();
  for (const SocketAddress& address : *local) {
    EXPECT_EQ(std::count(local->begin(), local->end(), address), 1) << address.Text();
  }
  SocketAddress ipv6 = ResolveHost("[::1]")->front();
  ipv6.set_port(8000);
  EXPECT_EQ(ipv6.Text(), "[::1]:8000");
}

TEST(ListeningSocketsTest, AllAddressesHaveOnePort) {
  const auto sockets = ListeningSockets::Open(Two(), At("two.example"));
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const int port = sockets->port();
  EXPECT_GT(port, 0);
  EXPECT_EQ(sockets->fds().size(), 2u);
  EXPECT_EQ(sockets->Text(), absl::StrCat("127.0.0.1:", port, ",127.0.0.2:", port));
  for (const char* host : {"127.0.0.1", "127.0.0.2"}) {
    const auto again = ListeningSockets::Open(At(host, port));
    EXPECT_TRUE(absl::IsFailedPrecondition(again.status())) << again.status();
    EXPECT_THAT(std::string(again.status().message()),
                AllOf(HasSubstr(absl::StrCat("cannot listen on ", host, ":", port, ": ")),
                      HasSubstr("in use"), HasSubstr("--a-port"), Not(HasSubstr("--a-host"))));
  }
}

TEST(ListeningSocketsTest, APortInUseAtOneAddressIsInUse) {
  const auto held = ListeningSockets::Open(At("127.0.0.2"));
  ASSERT_TRUE(held.ok()) << held.status();
  const auto taken = ListeningSockets::Open({Foreign(), Two()[1]}, At("two.example", held->port()));
  EXPECT_TRUE(absl::IsFailedPrecondition(taken.status())) << taken.status();
  EXPECT_THAT(std::string(taken.status().message()),
              AllOf(HasSubstr(absl::StrCat("cannot listen on ", held->Text(),
                                           ", an address of --a-host \"two.example\"")),
                    HasSubstr("in use"), HasSubstr("--a-port")));
}

TEST(ListeningSocketsTest, AddressesOfOtherMachinesArePassedOver) {
  const auto sockets = ListeningSockets::Open({Foreign(), Two()[1]}, At("two.example"));
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_EQ(sockets->Text(), absl::StrCat("127.0.0.2:", sockets->port()));
}

TEST(ListeningSocketsTest, AllInterfacesHaveSeveralSpellings) {
  for (const char* host : {"", "*", "::", "[::]", "0.0.0.0"}) {
    const auto sockets = ListeningSockets::Open(At(host));
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_EQ(sockets->fds().size(), 1u) << host;
    EXPECT_FALSE(ListeningSockets::Open(At("127.0.0.1", sockets->port())).ok()) << host;
  }
}

TEST(ListeningSocketsTest, HostsThatAreNoneAndForeignOnesAreTold) {
  const auto none = ListeningSockets::Open(At("no.such.host.invalid", 80));
  EXPECT_TRUE(absl::IsInvalidArgument(none.status())) << none.status();
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("no.such.host.invalid:80"), HasSubstr("--a-host")));
  const auto foreign = ListeningSockets::Open(At("192.0.2.1"));
  EXPECT_TRUE(absl::IsFailedPrecondition(foreign.status())) << foreign.status();
  EXPECT_THAT(std::string(foreign.status().message()), HasSubstr("192.0.2.1"));
}

TEST(ListeningSocketsTest, AHostIsCheckedWhoeverHasThePort) {
  const auto held = ListeningSockets::Open(At("127.0.0.1"));
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_TRUE(ListeningSockets::CheckHost(At("127.0.0.1", held->port())).ok());
  for (const char* host : {"no.such.host.invalid", "192.0.2.1"}) {
    const ListenOptions options = At(host, 50051);
    EXPECT_EQ(ListeningSockets::CheckHost(options), ListeningSockets::Open(options).status());
    EXPECT_THAT(std::string(ListeningSockets::CheckHost(options).message()),
                HasSubstr(absl::StrCat(host, ":50051")));
  }
}

TEST(ListeningSocketsTest, WhatIsMovedIsClosedByItsNewOwner) {
  auto first = ListeningSockets::Open(At("127.0.0.1"));
  ASSERT_TRUE(first.ok()) << first.status();
  const int fd = first->fds()[0];
  {
    const ListeningSockets second = *std::move(first);
    EXPECT_THAT(first->fds(), IsEmpty());
    EXPECT_EQ(second.fds()[0], fd);
    EXPECT_NE(fcntl(fd, F_GETFD), -1);
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace mneme
