#include "server/config/interfaces.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/strip.h"

namespace mneme {
namespace {

// The addresses that sockets would be bound to: "0", "0x0" and "::ffff:0.0.0.0" are spellings of
// one that means all. An IPv4 address comes as the IPv6 address it is mapped to. None for a host
// that does not exist.
std::vector<in6_addr> AddressesOf(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) (void)absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_family = AF_INET6;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_V4MAPPED | AI_ALL;
  addrinfo* found = nullptr;
  std::vector<in6_addr> addresses;
  if (getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    addresses.push_back(reinterpret_cast<const sockaddr_in6*>(one->ai_addr)->sin6_addr);
  }
  freeaddrinfo(found);
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

bool IsAllInterfaces(absl::string_view host) {
  if (host.empty() || host == "*") return true;
  const std::vector<in6_addr> addresses = AddressesOf(host);
  return std::any_of(addresses.begin(), addresses.end(), [](const in6_addr& address) {
    return IN6_IS_ADDR_UNSPECIFIED(&address) || MappedIpv4(address) == 0;
  });
}

bool IsLoopback(absl::string_view host) {
  if (host == "localhost") return true;
  const std::vector<in6_addr> addresses = AddressesOf(host);
  return !addresses.empty() &&
         std::all_of(addresses.begin(), addresses.end(), [](const in6_addr& address) {
           return IN6_IS_ADDR_LOOPBACK(&address) || MappedIpv4(address) >> 24 == 127;
         });
}

}  // namespace mneme
