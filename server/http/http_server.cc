#include "server/http/http_server.h"

#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <deque>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/timed_wait.h"
#include "server/http/http_connection.h"
#include "server/net/connection_limit.h"
#include "server/net/host_address.h"

namespace mneme {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// After accept() failed for want of files or memory, for what was freed to come back.
constexpr std::chrono::milliseconds kAcceptPause(10);

Tcp ProtocolOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  (void)getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return address.ss_family == AF_INET6 ? Tcp::v6() : Tcp::v4();
}

// A client that vanished without a word is noticed by the system: by probes while nothing is being
// sent, and otherwise when nothing of what was sent has been acknowledged for `unacknowledged`.
// Until its buffers are full the system takes whatever is written, so the write time-out would not
// see it.
void NoticeLoss(Tcp::socket& socket, absl::Duration unacknowledged) {
  ErrorCode ignored;
  socket.set_option(Tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
#ifdef TCP_KEEPIDLE
  using Option = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Count = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  socket.set_option(Option(60), ignored);
  socket.set_option(Interval(15), ignored);
  socket.set_option(Count(4), ignored);
#endif
#ifdef TCP_USER_TIMEOUT
  using Unacknowledged = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  const auto ms = static_cast<int>(absl::ToInt64Milliseconds(unacknowledged));
  socket.set_option(Unacknowledged(ms), ignored);
#endif
}

}  // namespace

class HttpServer::Impl final : private EvictableConnections {
 public:
  Impl(const HttpServerOptions& options, HttpRoutes routes)
      : shared_{.options = options, .routes = std::move(routes)},
        work_(asio::make_work_guard(context_)),
        accepting_(asio::make_strand(context_)),
        limit_log_(options.api, options.max_connections_flag),
        file_log_(options.api, kFileLimit) {
    if (options.stats != nullptr) options.stats->limit.Set(options.max_connections);
    options.evictor->Add(this);
  }
  ~Impl() {
    shared_.options.evictor->Remove(this);
    Shutdown(absl::ZeroDuration());
  }

  absl::Status Listen() {
    const HttpServerOptions& options = shared_.options;
    MNEME_ASSIGN_OR_RETURN(sockets_, ListeningSockets::Open({.host = options.host,
                                                             .port = options.port,
                                                             .host_flag = options.host_flag,
                                                             .port_flag = options.port_flag}));
    for (const int fd : sockets_.Release()) doors_.emplace_back(accepting_, fd);
    asio::post(accepting_, [this] {
      for (Door& door : doors_) Accept(door);
    });
    for (int i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { context_.run(); });
    }
    return absl::OkStatus();
  }

  const ListeningSockets& sockets() const { return sockets_; }

  int64_t open_connections() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return static_cast<int64_t>(connections_.size());
  }

  void Shutdown(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);  // a connection is added before this or not at all
      shared_.draining.store(true);
    }
    if (threads_.empty()) return;
    asio::post(accepting_, [this] {
      for (Door& door : doors_) door.Close();
    });
    ForEach([](HttpConnection& connection) { connection.PostCloseIfIdle(); });
    if (!AwaitNone(grace)) ForEach([](HttpConnection& connection) { connection.PostClose(); });
    // With doors and connections closed the threads run out of work.
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    // Somebody else may be about to answer a call, and so hold a connection for that moment.
    while (shared_.living.load() > 0) {
      context_.restart();
      context_.poll();
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 private:
  // One address at which it listens; all of them are served on one strand.
  struct Door {
    Door(const asio::strand<asio::io_context::executor_type>& strand, int fd)
        : acceptor(strand, ProtocolOf(fd), fd), pause(strand) {}
    void Close() {
      ErrorCode ignored;
      acceptor.close(ignored);
      pause.cancel();
    }

    Tcp::acceptor acceptor;
    asio::steady_timer pause;
  };

  void Accept(Door& door) {
    door.acceptor.async_accept(asio::make_strand(context_),
                               [this, &door](ErrorCode error, Tcp::socket socket) {
                                 if (!door.acceptor.is_open()) return;
                                 if (!error) Add(std::move(socket));
                                 if (!error || error == asio::error::connection_aborted) {
                                   Accept(door);
                                 } else {
                                   if (IsForWant(error.value())) MakeRoom(door);
                                   AcceptLater(door);
                                 }
                               });
  }

  // The process may open no further file.
  void MakeRoom(Door& door) ABSL_LOCKS_EXCLUDED(mu_) {
    const bool is_evicted = shared_.options.evictor->MakeRoom(door.acceptor.native_handle());
    if (!is_evicted && shared_.options.stats != nullptr) shared_.options.stats->refused.Add();
    absl::MutexLock lock(&mu_);
    file_log_.Say(static_cast<int64_t>(connections_.size()), is_evicted);
  }

  void AcceptLater(Door& door) {
    door.pause.expires_after(kAcceptPause);
    door.pause.async_wait([this, &door](ErrorCode) {
      if (door.acceptor.is_open()) Accept(door);
    });
  }

  void Add(Tcp::socket socket) ABSL_LOCKS_EXCLUDED(mu_) {
    NoticeLoss(socket, shared_.options.write_timeout);
    std::string peer = PeerText(socket.native_handle());
    const asio::any_io_executor executor = socket.get_executor();
    ByteStreamFactory* const factory = shared_.options.stream_factory.get();
    std::unique_ptr<ByteStream> stream =
        factory == nullptr ? MakeTcpStream(std::move(socket)) : factory->Wrap(std::move(socket));
    auto connection =
        std::make_shared<HttpConnection>(shared_, executor, std::move(stream), std::move(peer),
                                         [this](HttpConnection* closed) { Remove(closed); });
    bool is_full = false;
    {
      absl::MutexLock lock(&mu_);
      if (shared_.draining.load()) return;
      if (connections_.size() >= static_cast<size_t>(shared_.options.max_connections)) {
        is_full = !EvictOne();
        limit_log_.Say(shared_.options.max_connections, !is_full);
      }
      if (!is_full) connections_.emplace(connection.get(), connection);
      CountOpen();
    }
    if (is_full && shared_.options.stats != nullptr) shared_.options.stats->refused.Add();
    asio::post(executor, [connection, is_full] {
      is_full ? connection->StartRefusing() : connection->Start();
    });
  }

  void Remove(HttpConnection* connection) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    connections_.erase(connection);
    CountOpen();
  }

  std::optional<ConnectionWorth> LeastWorth() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const std::shared_ptr<HttpConnection> least = Least();
    return least == nullptr ? std::nullopt : std::optional(least->use().worth());
  }

  bool EvictLeast() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return EvictOne();
  }

  // One of those that have shown no right to be here, or, if there is none, one between two
  // requests; of each kind the one that has been so for longest. Null: all are in use.
  std::shared_ptr<HttpConnection> Least() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    std::shared_ptr<HttpConnection> least;
    for (const auto& [key, weak] : connections_) {
      std::shared_ptr<HttpConnection> candidate = weak.lock();
      if (candidate == nullptr || !candidate->use().is_idle()) continue;
      if (least == nullptr || candidate->use().worth() < least->use().worth()) {
        least = std::move(candidate);
      }
    }
    return least;
  }

  // Makes room for another connection. Where the least one has just begun a request, it stays, and
  // there is one more for a while.
  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::shared_ptr<HttpConnection> least = Least();
    if (least == nullptr) return false;
    least->PostEvict();
    if (shared_.options.stats != nullptr) shared_.options.stats->evicted.Add();
    return true;
  }

  void CountOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (shared_.options.stats == nullptr) return;
    shared_.options.stats->open.Set(static_cast<int64_t>(connections_.size()));
  }

  void ForEach(const std::function<void(HttpConnection&)>& function) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::shared_ptr<HttpConnection>> all;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [key, weak] : connections_) {
        if (auto connection = weak.lock()) all.push_back(std::move(connection));
      }
    }
    for (const auto& connection : all) function(*connection);
  }

  bool AwaitNone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return connections_.empty(); };
    return AwaitFor(mu_, absl::Condition(&none), timeout);
  }

  HttpShared shared_;
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::strand<asio::io_context::executor_type> accepting_;
  ListeningSockets sockets_;  // their descriptors have gone to the doors
  std::deque<Door> doors_;
  std::vector<std::thread> threads_;

  mutable absl::Mutex mu_;
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections_
      ABSL_GUARDED_BY(mu_);
  ConnectionLimitLog limit_log_ ABSL_GUARDED_BY(mu_);
  ConnectionLimitLog file_log_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpRoutes routes) {
  auto impl = std::make_unique<Impl>(options, std::move(routes));
  if (const absl::Status listening = impl->Listen(); !listening.ok()) return listening;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

const ListeningSockets& HttpServer::sockets() const { return impl_->sockets(); }
int64_t HttpServer::open_connections() const { return impl_->open_connections(); }
void HttpServer::Shutdown(absl::Duration grace) { impl_->Shutdown(grace); }

}  // namespace mneme
