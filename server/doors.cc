#include "server/doors.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "server/config/origins.h"
#include "server/http/http_guard.h"
#include "server/metrics/http_metrics.h"
#include "server/net/host_address.h"

namespace mneme {
namespace {

HttpServerOptions ToHttpOptions(const v1::NetworkSection& config) {
  HttpServerOptions options;
  options.host = config.host();
  options.port = config.http_port();
  options.max_connections = config.http_max_connections();
  options.limits.max_body_bytes = config.max_message_bytes();
  options.limits.max_header_bytes = config.max_header_bytes();
  options.header_timeout = absl::Milliseconds(config.http_header_timeout_ms());
  options.body_timeout = absl::Milliseconds(config.http_body_timeout_ms());
  options.idle_timeout = absl::Milliseconds(config.http_idle_timeout_ms());
  options.allowed_origins = *ParseOrigins(config.http_allowed_origins());  // valid by now
  return options;
}

void LogListening(const char* api, const ListeningSockets& sockets) {
  LogFields("listening").Add("api", api).Add("address", sockets.Text()).Write(LogSeverity::kInfo);
}

// For scripts: the address as the host was given, with the port that was found.
void PrintAddress(LineWriter& out, const char* what, const std::string& host, int port) {
  out.Write(absl::StrCat(what, " on ", AddressText(host, port), "\n"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Doors>> Doors::Open(const v1::ServerConfig& config,
                                                   EngineAccess& access, Security& security,
                                                   LineWriter& out) {
  std::unique_ptr<Doors> doors(new Doors(config, access, security));
  MNEME_RETURN_IF_ERROR(doors->OpenGrpc(config.server(), access, security, out));
  MNEME_RETURN_IF_ERROR(doors->OpenMetrics(config.metrics(), access));
  MNEME_RETURN_IF_ERROR(doors->OpenHttp(config.server(), access, security, out));
  return doors;
}

absl::Status Doors::CheckHosts(const v1::ServerConfig& config) {
  MNEME_RETURN_IF_ERROR(ListeningSockets::CheckHost({.host = config.server().host(),
                                                     .port = config.server().grpc_port(),
                                                     .host_flag = "--host"}));
  if (config.metrics().port() <= 0) return absl::OkStatus();
  return ListeningSockets::CheckHost({.host = config.metrics().host(),
                                      .port = config.metrics().port(),
                                      .host_flag = "--metrics-host"});
}

Doors::Doors(const v1::ServerConfig& config, EngineAccess& access, Security& security)
    : metrics_(access, security, /*vllm_names=*/config.metrics().compat() == "vllm"),
      openai_(access, security),
      sessions_(access) {}

absl::Status Doors::OpenGrpc(const v1::NetworkSection& config, EngineAccess& access,
                             Security& security, LineWriter& out) {
  MNEME_ASSIGN_OR_RETURN(grpc_, GrpcServer::Start(config, access, security, evictor_));
  PrintAddress(out, "listening", config.host(), grpc_->port());
  LogListening("grpc", grpc_->sockets());
  return absl::OkStatus();
}

absl::Status Doors::OpenMetrics(const v1::MetricsSection& config, const EngineAccess& access) {
  if (config.port() <= 0) return absl::OkStatus();
  MNEME_ASSIGN_OR_RETURN(metrics_server_, StartMetricsServer(config, metrics_, access, evictor_));
  LogListening("metrics", metrics_server_->sockets());
  return absl::OkStatus();
}

absl::Status Doors::OpenHttp(const v1::NetworkSection& config, const EngineAccess& access,
                             Security& security, LineWriter& out) {
  if (config.http_port() < 0) return absl::OkStatus();
  HttpRoutes routes;
  openai_.AddRoutes(routes);
  sessions_.AddRoutes(routes);
  AddMetricsRoute(metrics_, /*is_open=*/false, routes);
  HttpServerOptions options = ToHttpOptions(config);
  options.on_exchange = [this,
                         note = NoteExchanges(options.api, access)](const HttpExchange& exchange) {
    note(exchange);
    openai_.OnExchange(exchange);
  };
  options.stats = &access.stats().http_connections;
  options.evictor = evictor_;
  GuardHttp(security, options);
  MNEME_ASSIGN_OR_RETURN(http_, HttpServer::Start(options, std::move(routes)));
  PrintAddress(out, "http", config.host(), http_->port());
  LogListening("http", http_->sockets());
  return absl::OkStatus();
}

void Doors::Shutdown(absl::Duration grace) {
  openai_.AbandonTexts();
  std::thread other([this, grace] { grpc_->Shutdown(grace); });
  if (http_ != nullptr) http_->Shutdown(grace);
  other.join();
}

}  // namespace mneme
