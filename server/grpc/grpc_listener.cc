#include "server/grpc/grpc_listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log_fields.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// After accept() failed for want of file descriptors or memory.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Between two lines that say that there are too many connections.
constexpr absl::Duration kWarningInterval = absl::Minutes(1);

void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
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
  MNEME_ASSIGN_OR_RETURN(listener->sockets_, ListeningSockets::Open({.host = options.host,
                                                                     .port = options.port,
                                                                     .host_flag = "--host",
                                                                     .port_flag = "--grpc-port"}));
  if (pipe2(listener->wake_, O_CLOEXEC) == 0) return listener;
  return absl::FailedPreconditionError(absl::StrCat("cannot make a pipe: ", strerror(errno)));
}

GrpcListener::GrpcListener(const Options& options)
    : options_(options), open_(static_cast<size_t>(options.max_connections)) {}

GrpcListener::~GrpcListener() { Stop(); }

void GrpcListener::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void GrpcListener::Stop() {
  if (wake_[1] >= 0) close(std::exchange(wake_[1], -1));
  if (thread_.joinable()) thread_.join();
  sockets_.Close();
  if (wake_[0] >= 0) close(std::exchange(wake_[0], -1));
}

void GrpcListener::Run() {
  std::vector<pollfd> watched = {{.fd = wake_[0], .events = POLLIN}};
  for (const int fd : sockets_.fds()) watched.push_back({.fd = fd, .events = POLLIN});
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
      LogFields("too_many_connections")
          .Message("another one was closed (--grpc-max-connections)")
          .Add("api", "grpc")
          .Add("open", int64_t{options_.max_connections})
          .Write(LogSeverity::kWarning);
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

}  // namespace mneme
