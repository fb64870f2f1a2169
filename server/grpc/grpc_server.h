// The listener: all services on one port.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "mneme/v1/config.pb.h"
#include "server/grpc/grpc_listener.h"
#include "server/net/connection_evictor.h"
#include "server/requests/engine_access.h"
#include "server/security/security.h"

namespace mneme {

// Open from Start on; health says NOT_SERVING until told otherwise. Destroy it before the engine.
class GrpcServer {
 public:
  // Errors as of ListeningSockets::Open. `access` and `security` must outlive the server.
  // `evictor`: that of the process's other ports, where it has some.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const v1::NetworkSection& config, EngineAccess& access, Security& security,
      std::shared_ptr<ConnectionEvictor> evictor = std::make_shared<ConnectionEvictor>());
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  const ListeningSockets& sockets() const;
  int port() const { return sockets().port(); }  // the one chosen, where the configuration said 0
  void SetServing(bool serving);

  // Refuses new calls, gives those that run `grace` to end, then cancels them.
  void Shutdown(absl::Duration grace);

 private:
  struct Parts;
  explicit GrpcServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace mneme
