// GET /metrics, and the counting of what an HTTP server answers.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "mneme/v1/config.pb.h"
#include "server/http/http_routes.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics.h"
#include "server/server_stats.h"

namespace mneme {

// `is_open`: without the authenticator. `metrics` must outlive the server of the routes.
void AddMetricsRoute(const Metrics& metrics, bool is_open, HttpRoutes& routes);

// For HttpServerOptions::on_exchange; `stats` must outlive the server.
std::function<void(const HttpExchange&)> CountExchanges(ServerStats& stats);

// The server of --metrics-port: GET /metrics and nothing else, for everybody who reaches it. Errors
// as of HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> StartMetricsServer(const v1::MetricsSection& config,
                                                               const Metrics& metrics,
                                                               ServerStats& stats);

}  // namespace mneme
