// A port, open at every address that a host has.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/net/host_address.h"

namespace mneme {

struct ListenOptions {
  std::string host;  // a name or an address; "[::1]" is fine, and "", "*" are all interfaces
  int port = 0;      // 0: any that is free at all addresses
  // Where they are set, for messages about them.
  std::string host_flag;
  std::string port_flag;
};

// Sockets that listen, do not block and are closed in the end. Movable.
class ListeningSockets {
 public:
  // INVALID_ARGUMENT for a host that is none, FAILED_PRECONDITION where the port cannot be had at
  // one of its addresses. Those that this machine does not have are passed over, unless it has
  // none of them.
  static absl::StatusOr<ListeningSockets> Open(const ListenOptions& options);
  // The same for the addresses of options.host, which are known already.
  static absl::StatusOr<ListeningSockets> Open(const std::vector<SocketAddress>& addresses,
                                               const ListenOptions& options);
  // The error that Open would have for the host, whether or not the port is free.
  static absl::Status CheckHost(const ListenOptions& options);
  ListeningSockets() = default;
  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&& other) noexcept;
  ~ListeningSockets() { Close(); }

  int port() const { return addresses_.empty() ? 0 : addresses_.front().port(); }  // of all
  const std::vector<int>& fds() const { return fds_; }
  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  std::string Text() const;  // "[::1]:8000,127.0.0.1:8000"

  // Takes over a socket that listens at `address`.
  void Add(int fd, const SocketAddress& address);
  // The sockets, which are the caller's to close from now on.
  std::vector<int> Release();
  void Close();

 private:
  std::vector<int> fds_;
  std::vector<SocketAddress> addresses_;
};

}  // namespace mneme
