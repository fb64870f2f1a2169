#include "server/net/listening_sockets.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log_fields.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// A port that is free at one address may be taken at the next; then another one is tried.
constexpr int kFreePortTries = 32;

constexpr char kAllInterfaces[] = "::";
constexpr char kAllIpv4Interfaces[] = "0.0.0.0";

// The reason why the port could not be opened, and where; the last one if there are several.
struct Obstacle {
  int error = 0;  // errno; 0: nothing did
  SocketAddress address;
};

// Whether the machine has no such address.
bool IsForeign(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; }

void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// A socket that listens, or -1 with errno set. `address` gets the port that was chosen for 0.
int ListenAt(SocketAddress& address) {
  const int fd = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.is_ipv6()) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, address.get(), address.size) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, address.get(), &address.size) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// Goes on after foreign addresses only.
Obstacle ListenAtAll(const std::vector<SocketAddress>& addresses, int port,
                     ListeningSockets& sockets) {
  Obstacle obstacle;
  for (SocketAddress address : addresses) {
    address.set_port(port);
    int fd = ListenAt(address);
    if (fd < 0 && IsForeign(errno) && address.Host() == kAllInterfaces) {  // no IPv6 here
      address = ResolveHost(kAllIpv4Interfaces)->front();
      address.set_port(port);
      fd = ListenAt(address);
    }
    if (fd < 0) {
      obstacle = {.error = errno, .address = address};
      if (IsForeign(obstacle.error)) continue;
      return obstacle;
    }
    port = address.port();
    sockets.Add(fd, address);
  }
  return obstacle;
}

absl::Status CannotListen(Obstacle obstacle, const ListenOptions& options) {
  if (options.port != 0) obstacle.address.set_port(options.port);
  const std::string where = obstacle.address.Text();
  const bool is_name = where != AddressText(options.host, obstacle.address.port());
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot listen on ", where,
      is_name ? absl::StrCat(", an address of ", options.host_flag, " \"", options.host, "\"") : "",
      ": ", strerror(obstacle.error),
      obstacle.error == EADDRINUSE
          ? absl::StrCat("; is another server running? (", options.port_flag, ")")
          : ""));
}

absl::StatusOr<std::vector<SocketAddress>> AddressesOf(const ListenOptions& options) {
  absl::StatusOr<std::vector<SocketAddress>> addresses = ResolveHost(options.host);
  if (addresses.ok()) return addresses;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", AddressText(options.host, options.port), ": ",
                   options.host_flag, ": ", addresses.status().message()));
}

// At `port`, whichever port the options name; 0: any that is free.
absl::StatusOr<ListeningSockets> OpenAt(const std::vector<SocketAddress>& addresses, int port,
                                        const ListenOptions& options) {
  Obstacle obstacle;
  for (int i = 0; i < kFreePortTries; ++i) {
    ListeningSockets sockets;
    obstacle = ListenAtAll(addresses, port, sockets);
    if (obstacle.error == 0) return sockets;
    if (IsForeign(obstacle.error) && !sockets.fds().empty()) {
      LogFields("address_passed_over")
          .Message(CannotListen(obstacle, options).message())
          .Add("address", obstacle.address.Text())
          .Write(LogSeverity::kWarning);
      return sockets;
    }
    if (port != 0 || obstacle.error != EADDRINUSE) break;
  }
  return CannotListen(obstacle, options);
}

}  // namespace

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const ListenOptions& options) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, AddressesOf(options));
  return Open(addresses, options);
}

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const std::vector<SocketAddress>& addresses,
                                                        const ListenOptions& options) {
  return OpenAt(addresses, options.port, options);
}

absl::Status ListeningSockets::CheckHost(const ListenOptions& options) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, AddressesOf(options));
  return OpenAt(addresses, /*port=*/0, options).status();
}

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : fds_(other.Release()), addresses_(std::move(other.addresses_)) {}

ListeningSockets& ListeningSockets::operator=(ListeningSockets&& other) noexcept {
  Close();
  fds_ = other.Release();
  addresses_ = std::move(other.addresses_);
  return *this;
}

std::string ListeningSockets::Text() const {
  return absl::StrJoin(addresses_, ",", [](std::string* out, const SocketAddress& address) {
    out->append(address.Text());
  });
}

void ListeningSockets::Add(int fd, const SocketAddress& address) {
  fds_.push_back(fd);
  addresses_.push_back(address);
}

std::vector<int> ListeningSockets::Release() { return std::exchange(fds_, {}); }

void ListeningSockets::Close() {
  for (const int fd : Release()) close(fd);
}

}  // namespace mneme
