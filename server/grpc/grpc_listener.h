// The gRPC port: listens, and counts the connections that it hands to gRPC, which knows no limit on
// them and answers until the process has no file descriptor left.
#pragma once

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/net/connection_evictor.h"
#include "server/net/connection_limit.h"
#include "server/net/listening_sockets.h"
#include "server/net/spare_file.h"
#include "server/requests/server_stats.h"
#include "server/security/known_peers.h"

namespace mneme {

// The open connections, by file descriptor. gRPC does not tell when it closes a connection, but the
// number of its socket's inode does: no two sockets that exist have the same one. Thread-safe.
class OpenConnections {
 public:
  OpenConnections(size_t limit, KnownPeers& known) : limit_(limit), known_(known) {}

  // False if `fd`, of a client at the address `peer`, would be one too many.
  bool Add(int fd, const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // When the oldest connection whose client has not become known was added, on the monotonic clock.
  std::optional<absl::Duration> OldestStranger() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends that connection. False: there is none. Needs no further file.
  bool EvictStranger() ABSL_LOCKS_EXCLUDED(mu_);
  // How many are open.
  size_t Count() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    ino_t inode;
    absl::Duration since;
    std::string peer;
  };
  using Connections = std::unordered_map<int, Connection>;

  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Connections::iterator FindStranger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t limit_;
  KnownPeers& known_;
  absl::Mutex mu_;
  SpareFile spare_file_ ABSL_GUARDED_BY(mu_);
  Connections connections_ ABSL_GUARDED_BY(mu_);  // some may be closed by now
};

class GrpcListener final : private EvictableConnections {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  struct Options {
    std::string host;
    int port = 0;  // 0: any free one
    int max_connections = 0;
    // How long the client may leave data unacknowledged before the system gives the connection up.
    absl::Duration unacknowledged;
    KnownPeers* known_peers = nullptr;  // must outlive the listener
    // That of the process's other ports, where it has some.
    std::shared_ptr<ConnectionEvictor> evictor = std::make_shared<ConnectionEvictor>();
    ConnectionStats* stats = nullptr;  // null: nobody counts
  };

  // Opens the port; errors as of ListeningSockets::Open. Connections wait until Start.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Open(const Options& options);
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  const ListeningSockets& sockets() const { return sockets_; }

  // Begins to hand connections over, on a thread of its own. Once.
  void Start(std::unique_ptr<Acceptor> acceptor);
  // Closes the port. Idempotent; to be called before the gRPC server ends.
  void Stop();

 private:
  explicit GrpcListener(const Options& options);

  void Run();
  void CountOpen();
  void Take(int listener);
  // Whether `fd` may stay; makes room for it where that is possible.
  bool FindRoom(int fd, const std::string& peer);
  // The process may open no further file.
  void MakeRoom(int listener);
  std::optional<ConnectionWorth> LeastWorth() override;
  bool EvictLeast() override;

  const Options options_;
  ListeningSockets sockets_;
  int wake_[2] = {-1, -1};  // a pipe: its closed end stops the thread
  std::unique_ptr<Acceptor> acceptor_;
  OpenConnections open_;
  absl::Duration next_count_ = -absl::InfiniteDuration();  // monotonic
  ConnectionLimitLog limit_log_{"grpc", "--grpc-max-connections"};
  ConnectionLimitLog file_log_{"grpc", kFileLimit};
  std::thread thread_;
};

}  // namespace mneme
