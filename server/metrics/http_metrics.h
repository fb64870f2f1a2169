// GET /metrics, and what is noted of each answer of an HTTP server.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "mneme/v1/config.pb.h"
#include "server/http/http_routes.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics.h"
#include "server/net/connection_evictor.h"
#include "server/requests/engine_access.h"

namespace mneme {

// `is_open`: without the authenticator. `metrics` must outlive the server of the routes.
void AddMetricsRoute(const Metrics& metrics, bool is_open, HttpRoutes& routes);

// For HttpServerOptions::on_exchange: counts in access.stats() and writes into access.http_log(),
// both of which must outlive the server. `api` is HttpServerOptions::api.
std::function<void(const HttpExchange&)> NoteExchanges(std::string api, const EngineAccess& access);

// The server of --metrics-port: GET /metrics and nothing else, for everybody who reaches it.
// `evictor`: of all ports. Errors as of HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> StartMetricsServer(
    const v1::MetricsSection& config, const Metrics& metrics, const EngineAccess& access,
    std::shared_ptr<ConnectionEvictor> evictor);

}  // namespace mneme
