#include "server/metrics/http_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/http_access_log.h"

namespace mneme {

void AddMetricsRoute(const Metrics& metrics, bool is_open, HttpRoutes& routes) {
  routes.Add({.method = "GET",
              .pattern = "/metrics",
              .handler =
                  [&metrics](const std::shared_ptr<HttpCall>& call) {
                    call->Send({.content_type = Metrics::kContentType, .body = metrics.Text()});
                  },
              .is_open = is_open});
}

std::function<void(const HttpExchange&)> NoteExchanges(std::string api,
                                                       const EngineAccess& access) {
  return [api = std::move(api), &stats = access.stats(),
          log = access.http_log()](const HttpExchange& exchange) {
    // Paths that nothing answers are up to clients, and would be a series each.
    stats.http.Add(exchange.request.route.empty() ? "none" : exchange.request.route,
                   absl::StrCat(exchange.status));
    if (log != nullptr) log->Add(api, exchange);
  };
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetricsServer(
    const v1::MetricsSection& config, const Metrics& metrics, const EngineAccess& access,
    std::shared_ptr<ConnectionEvictor> evictor) {
  HttpRoutes routes;
  AddMetricsRoute(metrics, /*is_open=*/true, routes);
  HttpServerOptions options;
  options.host = config.host();
  options.port = config.port();
  options.host_flag = "--metrics-host";
  options.port_flag = "--metrics-port";
  options.threads = 1;
  options.max_connections = 64;  // of scrapers; an idle one is closed in time
  options.max_connections_flag = "";
  options.api = "metrics";
  options.stats = &access.stats().metrics_connections;
  options.evictor = std::move(evictor);
  options.on_exchange = NoteExchanges(options.api, access);
  return HttpServer::Start(options, std::move(routes));
}

}  // namespace mneme
