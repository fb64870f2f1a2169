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
#include "base/clock.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// After accept() failed for want of files or memory, for what was freed to come back.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(10);
// How often those that are open are counted.
constexpr int kCountIntervalMs = 1000;

void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

bool OpenConnections::Add(int fd, const std::string& peer) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return false;
  absl::MutexLock lock(&mu_);
  connections_.erase(fd);  // of an earlier connection, which is closed, as its number was free
  if (connections_.size() >= limit_) ForgetClosed();
  if (connections_.size() >= limit_) return false;
  known_.Forget(peer);  // an earlier client with this address has left
  connections_[fd] = {.inode = facts.st_ino, .since = RealClock().Monotonic(), .peer = peer};
  return true;
}

void OpenConnections::ForgetClosed() {
  std::erase_if(connections_, [this](const auto& entry) {
    struct stat facts {};
    const bool is_closed = fstat(entry.first, &facts) != 0 || facts.st_ino != entry.second.inode;
    if (is_closed) known_.Forget(entry.second.peer);
    return is_closed;
  });
}

OpenConnections::Connections::iterator OpenConnections::FindStranger() {
  auto oldest = connections_.end();
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    if (oldest != connections_.end() && oldest->second.since < it->second.since) continue;
    if (!known_.Contains(it->second.peer)) oldest = it;
  }
  return oldest;
}

std::optional<absl::Duration> OpenConnections::OldestStranger() {
  absl::MutexLock lock(&mu_);
  ForgetClosed();  // ending these would free nothing
  const auto oldest = FindStranger();
  if (oldest == connections_.end()) return std::nullopt;
  return oldest->second.since;
}

// gRPC owns the descriptor and may close it at any moment, so a copy of it is looked at and used:
// its number cannot come to mean another connection in between.
bool OpenConnections::EvictStranger() {
  absl::MutexLock lock(&mu_);
  const auto oldest = FindStranger();
  if (oldest == connections_.end()) return false;
  spare_file_.Give();
  const int copy = fcntl(oldest->first, F_DUPFD_CLOEXEC, 0);
  const bool is_gone = copy >= 0 || errno == EBADF;  // or is about to be
  struct stat facts {};
  if (copy >= 0 && fstat(copy, &facts) == 0 && facts.st_ino == oldest->second.inode) {
    (void)shutdown(copy, SHUT_RDWR);
  }
  if (copy >= 0) close(copy);
  spare_file_.Keep();
  if (is_gone) connections_.erase(oldest);
  return is_gone;
}

size_t OpenConnections::Count() {
  absl::MutexLock lock(&mu_);
  ForgetClosed();
  return connections_.size();
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
    : options_(options), open_(static_cast<size_t>(options.max_connections), *options.known_peers) {
  if (options_.stats != nullptr) options_.stats->limit.Set(options_.max_connections);
  options_.evictor->Add(this);
}

GrpcListener::~GrpcListener() {
  options_.evictor->Remove(this);
  Stop();
}

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
    if (poll(watched.data(), watched.size(), kCountIntervalMs) < 0) continue;  // a signal
    CountOpen();
    if (watched[0].revents != 0) return;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents != 0) Take(watched[i].fd);
    }
  }
}

void GrpcListener::CountOpen() {
  const absl::Duration now = RealClock().Monotonic();
  if (options_.stats == nullptr || now < next_count_) return;
  next_count_ = now + absl::Milliseconds(kCountIntervalMs);
  options_.stats->open.Set(static_cast<int64_t>(open_.Count()));
}

bool GrpcListener::FindRoom(int fd, const std::string& peer) {
  if (open_.Add(fd, peer)) return true;
  const bool is_evicted = EvictLeast() && open_.Add(fd, peer);
  if (!is_evicted && options_.stats != nullptr) options_.stats->refused.Add();
  limit_log_.Say(options_.max_connections, is_evicted);
  return is_evicted;
}

void GrpcListener::MakeRoom(int listener) {
  const bool is_evicted = options_.evictor->MakeRoom(listener);
  if (!is_evicted && options_.stats != nullptr) options_.stats->refused.Add();
  file_log_.Say(static_cast<int64_t>(open_.Count()), is_evicted);
}

std::optional<ConnectionWorth> GrpcListener::LeastWorth() {
  const std::optional<absl::Duration> since = open_.OldestStranger();
  if (!since.has_value()) return std::nullopt;
  return ConnectionWorth{.is_known = false, .since = *since};
}

bool GrpcListener::EvictLeast() {
  if (!open_.EvictStranger()) return false;
  if (options_.stats != nullptr) options_.stats->evicted.Add();
  return true;
}

void GrpcListener::Take(int listener) {
  SocketAddress peer{.size = sizeof(peer.bytes)};
  const int fd = accept4(listener, peer.get(), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    const bool is_gone = errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
    if (IsForWant(errno)) MakeRoom(listener);
    if (!is_gone) absl::SleepFor(kAcceptPause);
    return;
  }
  if (!FindRoom(fd, peer.Text())) {
    close(fd);
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
