// The server's ends of connections to a port of this process, for what only the system knows of
// them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <vector>

namespace mneme {

// Descriptors of connected sockets whose own port is `port`.
inline std::vector<int> AcceptedSockets(int port) {
  constexpr int kMaxDescriptor = 4096;
  std::vector<int> found;
  for (int fd = 0; fd < kMaxDescriptor; ++fd) {
    sockaddr_in6 own{}, peer{};  // has room for an address of IPv4, and its port at the same place
    socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
      continue;
    }
    if (ntohs(own.sin6_port) == port) found.push_back(fd);
  }
  return found;
}

// An option of TCP's; -1 if it cannot be had.
inline int TcpOption(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  return getsockopt(fd, IPPROTO_TCP, option, &value, &size) == 0 ? value : -1;
}

}  // namespace mneme
