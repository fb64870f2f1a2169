// The doors to the server: the port of gRPC, and those of HTTP and of metrics where they are asked
// for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/line_writer.h"
#include "mneme/v1/config.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics.h"
#include "server/net/connection_evictor.h"
#include "server/openai/openai_service.h"
#include "server/openai/session_routes.h"
#include "server/requests/engine_access.h"
#include "server/security/security.h"

namespace mneme {

// Open from Open on; until the engine is published they tell clients to wait. Destroy them before
// the engine.
class Doors {
 public:
  // Says on `out`, which is standard output, and in the log where each of them is. Errors as of
  // ListeningSockets::Open. `access` and `security` must outlive them.
  static absl::StatusOr<std::unique_ptr<Doors>> Open(const v1::ServerConfig& config,
                                                     EngineAccess& access, Security& security,
                                                     LineWriter& out);

  // The error that Open would have for the hosts, whether or not the ports are free.
  static absl::Status CheckHosts(const v1::ServerConfig& config);

  const GrpcServer& grpc() const { return *grpc_; }
  void SetServing(bool serving) { grpc_->SetServing(serving); }

  // Refuses what is new, gives calls and answers `grace` to end, then cuts them off. Blocks.
  void Shutdown(absl::Duration grace);

 private:
  Doors(const v1::ServerConfig& config, EngineAccess& access, Security& security);

  absl::Status OpenGrpc(const v1::NetworkSection& config, EngineAccess& access, Security& security,
                        LineWriter& out);
  absl::Status OpenMetrics(const v1::MetricsSection& config, const EngineAccess& access);
  absl::Status OpenHttp(const v1::NetworkSection& config, const EngineAccess& access,
                        Security& security, LineWriter& out);

  // The servers go first, because they call the others.
  const std::shared_ptr<ConnectionEvictor> evictor_ = std::make_shared<ConnectionEvictor>();
  const Metrics metrics_;
  OpenAiService openai_;
  SessionRoutes sessions_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpServer> metrics_server_;  // null: none
  std::unique_ptr<HttpServer> http_;            // null: none
};

}  // namespace mneme
