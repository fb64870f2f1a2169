// The gRPC port: listens, and counts the connections that it hands to gRPC, which knows no limit on
// them and answers until the process has no file descriptor left.
#pragma once

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/listening_sockets.h"

namespace mneme {

// What is open, by file descriptor. gRPC does not tell when it closes a connection, but the number
// of its socket's inode does: no two sockets that exist have the same one.
class OpenConnections {
 public:
  explicit OpenConnections(size_t limit) : limit_(limit) {}

  // False if `fd` would be one too many.
  bool Add(int fd);

 private:
  void ForgetClosed();

  const size_t limit_;
  std::unordered_map<int, ino_t> inodes_;  // some may be closed by now
};

class GrpcListener {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  struct Options {
    std::string host;
    int port = 0;  // 0: any free one
    int max_connections = 0;
    // Of data that the client does not acknowledge, before the system gives the connection up.
    absl::Duration unacknowledged;
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
  void Take(int listener);

  const Options options_;
  ListeningSockets sockets_;
  int wake_[2] = {-1, -1};  // a pipe: its closed end stops the thread
  std::unique_ptr<Acceptor> acceptor_;
  OpenConnections open_;
  absl::Time next_warning_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace mneme
