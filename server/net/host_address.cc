#include "server/net/host_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

// A host for getaddrinfo: "::1" of "[::1]", and "::" of what means all interfaces.
std::string Unbracketed(absl::string_view host) {
  if (host.empty() || host == "*") return "::";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return std::string(host.substr(1, host.size() - 2));
  }
  return std::string(host);
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, const addrinfo& hints) {
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(Unbracketed(host).c_str(), "0", &hints, &found); error != 0) {
    return absl::InvalidArgumentError(gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress address{.size = one->ai_addrlen};
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    // /etc/hosts may well name one twice.
    if (std::count(addresses.begin(), addresses.end(), address) == 0) addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

// The addresses that sockets would be bound to: "0", "0x0" and "::ffff:0.0.0.0" are spellings of
// one that means all. An IPv4 address comes as the IPv6 address it is mapped to. None for a host
// that does not exist.
std::vector<in6_addr> Ipv6AddressesOf(absl::string_view host) {
  addrinfo hints{};
  hints.ai_family = AF_INET6;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_V4MAPPED | AI_ALL;
  std::vector<in6_addr> addresses;
  const auto found = Resolve(host, hints);
  if (!found.ok()) return addresses;
  for (const SocketAddress& one : *found) {
    addresses.push_back(reinterpret_cast<const sockaddr_in6*>(one.get())->sin6_addr);
  }
  return addresses;
}

// The IPv4 address in the lowest four bytes; -1 for others.
int64_t MappedIpv4(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return -1;
  uint32_t wire = 0;
  std::memcpy(&wire, address.s6_addr + 12, sizeof(wire));
  return ntohl(wire);
}

}  // namespace

std::string AddressText(absl::string_view host, int port) {
  const std::string plain = Unbracketed(host);
  return absl::StrContains(plain, ':') ? absl::StrCat("[", plain, "]:", port)
                                       : absl::StrCat(plain, ":", port);
}

int SocketAddress::port() const {
  return ntohs(is_ipv6() ? reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_port
                         : reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port);
}

void SocketAddress::set_port(int port) {
  const in_port_t wire = htons(static_cast<uint16_t>(port));
  is_ipv6() ? reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port = wire
            : reinterpret_cast<sockaddr_in*>(&bytes)->sin_port = wire;
}

std::string SocketAddress::Host() const {
  char text[NI_MAXHOST] = "?";
  if (const int64_t mapped =
          is_ipv6() ? MappedIpv4(reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr) : -1;
      mapped >= 0) {
    const in_addr address{.s_addr = htonl(static_cast<uint32_t>(mapped))};
    return inet_ntop(AF_INET, &address, text, sizeof(text));
  }
  (void)getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string PeerText(int fd) {
  SocketAddress peer{.size = sizeof(peer.bytes)};
  return getpeername(fd, peer.get(), &peer.size) == 0 ? peer.Text() : "";
}

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  return a.size == b.size && std::memcmp(&a.bytes, &b.bytes, a.size) == 0;
}

absl::StatusOr<std::vector<SocketAddress>> ResolveHost(absl::string_view host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  return Resolve(host, hints);
}

bool IsAllInterfaces(absl::string_view host) {
  if (host.empty() || host == "*") return true;
  const std::vector<in6_addr> addresses = Ipv6AddressesOf(host);
  return std::any_of(addresses.begin(), addresses.end(), [](const in6_addr& address) {
    return IN6_IS_ADDR_UNSPECIFIED(&address) || MappedIpv4(address) == 0;
  });
}

bool IsLoopback(absl::string_view host) {
  if (host == "localhost") return true;
  const std::vector<in6_addr> addresses = Ipv6AddressesOf(host);
  return !addresses.empty() &&
         std::all_of(addresses.begin(), addresses.end(), [](const in6_addr& address) {
           return IN6_IS_ADDR_LOOPBACK(&address) || MappedIpv4(address) >> 24 == 127;
         });
}

}  // namespace mneme
