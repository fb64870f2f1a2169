#include "server/grpc/grpc_listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// After accept() failed for want of file descriptors or memory.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Between two lines that say that there are too many connections.
constexpr absl::Duration kWarningInterval = absl::Minutes(1);

constexpr char kAllInterfaces[] = "::";
constexpr char kAllIpv4Interfaces[] = "0.0.0.0";

std::string Unbracketed(const std::string& host) {
  if (host.empty() || host == "*") return kAllInterfaces;
  if (host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// The port of a bound socket; 0 if it cannot be told.
int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// A listening socket, or -1 with errno set. `port`, unless 0, goes before that of the address:
// where a name has several and any port will do, it is the same for all.
int ListenOn(const addrinfo& address, int port) {
  if (port > 0) {
    const auto wire = htons(static_cast<uint16_t>(port));
    address.ai_family == AF_INET6
        ? reinterpret_cast<sockaddr_in6*>(address.ai_addr)->sin6_port = wire
        : reinterpret_cast<sockaddr_in*>(address.ai_addr)->sin_port = wire;
  }
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

bool OpenConnections::Add(int fd) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return false;
  inodes_.erase(fd);  // of an earlier connection, which is closed, as its number was free
  if (inodes_.size() >= limit_) ForgetClosed();
  if (inodes_.size() >= limit_) return false;
  inodes_[fd] = facts.st_ino;
  return true;
}

void OpenConnections::ForgetClosed() {
  std::erase_if(inodes_, [](const auto& entry) {
    struct stat facts {};
    return fstat(entry.first, &facts) != 0 || facts.st_ino != entry.second;
  });
}

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Open(const Options& options) {
  std::unique_ptr<GrpcListener> listener(new GrpcListener(options));
  MNEME_RETURN_IF_ERROR(listener->Listen());
  return listener;
}

GrpcListener::GrpcListener(const Options& options)
    : options_(options), open_(static_cast<size_t>(options.max_connections)) {}

GrpcListener::~GrpcListener() { Stop(); }

absl::Status GrpcListener::Listen() {
  const std::string host = Unbracketed(options_.host);
  const std::string where = AddressText(host, options_.port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  int reason = 0;
  // A system without IPv6 has no interfaces by the first name.
  for (const std::string& name : host == kAllInterfaces
                                     ? std::vector<std::string>{host, kAllIpv4Interfaces}
                                     : std::vector<std::string>{host}) {
    addrinfo* addresses = nullptr;
    const std::string service = absl::StrCat(options_.port);
    if (const int error = getaddrinfo(name.c_str(), service.c_str(), &hints, &addresses);
        error != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", where, ": --host: ", gai_strerror(error)));
    }
    for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
      const int fd = ListenOn(*address, port_);
      if (fd < 0) {
        reason = errno;
        continue;
      }
      listeners_.push_back(fd);
      port_ = PortOf(fd);
    }
    freeaddrinfo(addresses);
    if (!listeners_.empty()) break;
  }
  if (!listeners_.empty() && reason != EADDRINUSE && pipe2(wake_, O_CLOEXEC) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen on ", where, ": ", strerror(reason != 0 ? reason : errno),
                   reason == EADDRINUSE ? "; is another server running? (--grpc-port)" : ""));
}

void GrpcListener::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void GrpcListener::Stop() {
  if (wake_[1] >= 0) close(std::exchange(wake_[1], -1));
  if (thread_.joinable()) thread_.join();
  for (const int fd : std::exchange(listeners_, {})) close(fd);
  if (wake_[0] >= 0) close(std::exchange(wake_[0], -1));
}

void GrpcListener::Run() {
  std::vector<pollfd> watched = {{.fd = wake_[0], .events = POLLIN}};
  for (const int fd : listeners_) watched.push_back({.fd = fd, .events = POLLIN});
  while (true) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;  // a signal
    if (watched[0].revents != 0) return;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents != 0) Take(watched[i].fd);
    }
  }
}

void GrpcListener::Take(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    const bool is_gone = errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
    if (!is_gone) absl::SleepFor(kAcceptPause);
    return;
  }
  if (!open_.Add(fd)) {
    close(fd);
    if (const absl::Time now = absl::Now(); now >= next_warning_) {
      next_warning_ = now + kWarningInterval;
      LOG(WARNING) << "grpc: " << options_.max_connections
                   << " connections are open, another one was closed (--grpc-max-connections)";
    }
    return;
  }
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(absl::ToInt64Milliseconds(options_.unacknowledged)));
  Acceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

std::string AddressText(const std::string& host, int port) {
  const std::string plain = Unbracketed(host);
  return absl::StrContains(plain, ':') ? absl::StrCat("[", plain, "]:", port)
                                       : absl::StrCat(plain, ":", port);
}

}  // namespace mneme
