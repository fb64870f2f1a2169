#include "server/grpc/grpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/config/config.h"
#include "server/grpc/admin_service.h"
#include "server/grpc/grpc_credentials.h"
#include "server/grpc/health_service.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/session_service.h"
#include "server/requests/executor.h"
#include "server/requests/session_transfers.h"

namespace mneme {
namespace {

// Session commands wait for the engine's loop, one after the other. A second thread is for those
// that come while the first one makes a view of a memory.
constexpr int kCommandThreads = 2;
constexpr size_t kMaxWaitingCommands = 1024;

std::set<std::string> OwnServices() {
  return {v1::Admin::service_full_name(), v1::Inference::service_full_name(),
          v1::Sessions::service_full_name()};
}

std::set<std::string> AllServices() {
  std::set<std::string> services = OwnServices();
  services.insert(grpc::health::v1::Health::service_full_name());
  services.insert(grpc::reflection::v1::ServerReflection::service_full_name());
  services.insert(grpc::reflection::v1alpha::ServerReflection::service_full_name());
  return services;
}

// gRPC's own complaints, in our form.
void LogForGrpc(gpr_log_func_args* args) {
  if (args->severity == GPR_LOG_SEVERITY_ERROR) LOG(WARNING) << "grpc: " << args->message;
}

// While a server starts: a dump in front of the one line that says what is wrong helps nobody.
void KeepQuiet(gpr_log_func_args*) {}

int ToGrpcMs(int64_t ms) { return static_cast<int>(std::min<int64_t>(ms, INT32_MAX)); }

void Configure(const v1::NetworkSection& config, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_message_bytes()));
  // Counts the buffers of what arrives, wherever they are held. Under it gRPC narrows the windows
  // of its connections; beyond it, it cancels calls.
  grpc::ResourceQuota quota("mneme");
  quota.Resize(static_cast<size_t>(GrpcMemoryBytes(config)));
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_streams());
  // Tokens may be far apart, so clients keep connections alive with pings of their own; by default
  // gRPC would answer a second one within five minutes with GOAWAY "too_many_pings".
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             ToGrpcMs(config.keepalive_min_interval_ms()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A peer that is gone without a word takes its calls with it.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ToGrpcMs(config.keepalive_time_ms()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             ToGrpcMs(config.keepalive_timeout_ms()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             ToGrpcMs(config.handshake_timeout_ms()));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, config.max_header_bytes());
  if (config.max_connection_idle_ms() > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                               ToGrpcMs(config.max_connection_idle_ms()));
  }
  if (config.max_connection_age_ms() > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               ToGrpcMs(config.max_connection_age_ms()));
  }
}

}  // namespace

// In the order of construction; the gRPC server goes first, because it calls the others.
struct GrpcServer::Parts {
  Parts(EngineAccess& access, Security& security)
      : credentials(GuardedCredentials(security)),
        commands(kCommandThreads, kMaxWaitingCommands),
        inference(access, security),
        transfers(kTransferThreads, kMaxWaitingCommands),
        sessions(access, security, commands, transfers),
        admin(access, security, commands),
        health(OwnServices()),
        reflection_v1(AllServices()),
        reflection_v1alpha(AllServices()) {}

  const std::shared_ptr<grpc::ServerCredentials> credentials;
  Executor commands;
  InferenceService inference;
  Executor transfers;
  SessionService sessions;
  AdminService admin;
  HealthService health;
  ReflectionV1 reflection_v1;
  ReflectionV1Alpha reflection_v1alpha;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcListener> listener;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const v1::NetworkSection& config, EngineAccess& access, Security& security,
    std::shared_ptr<ConnectionEvictor> evictor) {
  auto parts = std::make_unique<Parts>(access, security);
  MNEME_ASSIGN_OR_RETURN(
      parts->listener,
      GrpcListener::Open({.host = config.host(),
                          .port = config.grpc_port(),
                          .max_connections = config.grpc_max_connections(),
                          .unacknowledged = absl::Milliseconds(config.keepalive_timeout_ms()),
                          .known_peers = &security.grpc_peers(),
                          .evictor = std::move(evictor),
                          .stats = &access.stats().grpc_connections}));
  grpc::ServerBuilder builder;
  Configure(config, builder);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, parts->credentials);
  builder.RegisterService(&parts->inference);
  builder.RegisterService(&parts->sessions);
  builder.RegisterService(&parts->admin);
  builder.RegisterService(&parts->health);
  builder.RegisterService(&parts->reflection_v1);
  builder.RegisterService(&parts->reflection_v1alpha);
  gpr_set_log_function(&KeepQuiet);
  parts->server = builder.BuildAndStart();
  gpr_set_log_function(&LogForGrpc);
  if (parts->server == nullptr) {
    return absl::FailedPreconditionError("gRPC does not start: its log says why");
  }
  parts->listener->Start(std::move(acceptor));
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(parts)));
}

GrpcServer::GrpcServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

const ListeningSockets& GrpcServer::sockets() const { return parts_->listener->sockets(); }

void GrpcServer::SetServing(bool serving) { parts_->health.SetServing(serving); }

void GrpcServer::Shutdown(absl::Duration grace) {
  parts_->listener->Stop();
  parts_->health.EndWatches();
  parts_->inference.AbandonTexts();
  // A deadline that no step of the date moves.
  const gpr_timespec time = gpr_time_from_millis(absl::ToInt64Milliseconds(grace), GPR_TIMESPAN);
  parts_->server->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), time));
}

}  // namespace mneme
