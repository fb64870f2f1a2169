// Hosts as configurations name them, and addresses as messages and logs write them.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// "127.0.0.1:50051", "[::1]:50051".
std::string AddressText(absl::string_view host, int port);

// An address of TCP, as system calls take it.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  bool is_ipv6() const { return bytes.ss_family == AF_INET6; }
  int port() const;
  void set_port(int port);
  std::string Host() const;  // in digits; an IPv4 address mapped to IPv6 as what it is
  std::string Text() const { return AddressText(Host(), port()); }

  friend bool operator==(const SocketAddress& a, const SocketAddress& b);
};

// The address of the other end of a connected socket; empty if it has gone.
std::string PeerText(int fd);

// The addresses of a name or of an address itself, each once and with port 0; "[::1]" is fine, and
// "" and "*" are "::". INVALID_ARGUMENT says why there is none.
absl::StatusOr<std::vector<SocketAddress>> ResolveHost(absl::string_view host);

// Whether `host` means every interface of the machine.
bool IsAllInterfaces(absl::string_view host);

// Whether `host` is an address of this machine that others cannot reach.
bool IsLoopback(absl::string_view host);

}  // namespace mneme
