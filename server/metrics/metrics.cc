#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <atomic>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/log_writer.h"
#include "server/metrics/process_facts.h"
#include "server/process/version.h"
#include "server/requests/session_transfers.h"

namespace mneme {
namespace {

constexpr std::pair<v1::ServerState, const char*> kStates[] = {
    {v1::SERVER_STATE_LOADING, "loading"},
    {v1::SERVER_STATE_SERVING, "serving"},
    {v1::SERVER_STATE_DRAINING, "draining"},
    {v1::SERVER_STATE_FAILED, "failed"},
};

void WriteProcess(MetricWriter& out) {
  const ProcessFacts facts = ReadProcessFacts();
  const auto gauge = [&out](const char* name, const char* help, double value) {
    if (value >= 0) out.Gauge(name, help).Value(value);
  };
  if (facts.cpu_seconds >= 0) {
    out.Counter("cpu_seconds_total", "User and system CPU time spent in seconds.")
        .Value(facts.cpu_seconds);
  }
  gauge("resident_memory_bytes", "Resident memory size in bytes.",
        static_cast<double>(facts.resident_bytes));
  gauge("virtual_memory_bytes", "Virtual memory size in bytes.",
        static_cast<double>(facts.virtual_bytes));
  gauge("open_fds", "Number of open file descriptors.", static_cast<double>(facts.open_fds));
  if (facts.max_fds > 0) {
    gauge("max_fds", "Limit on open file descriptors.", static_cast<double>(facts.max_fds));
  }
  gauge("threads", "Number of threads.", static_cast<double>(facts.threads));
  gauge("start_time_seconds", "Start of the process since the Unix epoch in seconds.",
        facts.start_time);
}

void WriteServer(const EngineAccess& access, const Engine* engine, MetricWriter& out) {
  out.Gauge("build_info", "Always 1; the labels say which build this is.")
      .Value(1, {{"version", std::string(ServerVersion())}});
  const v1::ServerState state = access.state();
  auto states = out.Gauge("server_state", "1 for the state that the server is in, 0 for others.");
  for (const auto& [value, name] : kStates) states.Value(state == value ? 1 : 0, {{"state", name}});
  const bool ready = access.CheckReady().ok() && engine->health().ok();
  out.Gauge("ready",
            "1 while the server takes requests: model loaded, not draining, healthy, on time.")
      .Value(ready ? 1 : 0);
  const auto total = static_cast<double>(access.total_bytes());
  const double loaded = total > 0 ? static_cast<double>(access.loaded_bytes()) / total : 0;
  out.Gauge("model_loaded_ratio", "Share of the weights that is loaded.")
      .Value(engine != nullptr ? 1 : loaded);

  const ServerStats& stats = access.stats();
  auto rpcs = out.Counter("rpcs_total", "gRPC calls that ended, by method and status code.");
  for (const auto& [labels, count] : stats.rpcs.Read()) {
    rpcs.Value(static_cast<double>(count), {{"method", labels.first}, {"code", labels.second}});
  }
  auto http = out.Counter("http_requests_total", "HTTP requests answered, by route and status.");
  for (const auto& [labels, count] : stats.http.Read()) {
    http.Value(static_cast<double>(count), {{"route", labels.first}, {"status", labels.second}});
  }
  out.Counter("watchdog_warnings_total",
              "Steps of the engine that took more than half of the watchdog's time.")
      .Value(static_cast<double>(stats.watchdog_warnings.value()));
  out.Counter(
         "log_lines_dropped_total",
         "Lines of the log lost because standard error took them too slowly, those of requests "
         "included.")
      .Value(static_cast<double>(DroppedLogLines()));
  out.Counter("request_log_lines_dropped_total",
              "Request log lines lost because standard error took them too slowly.")
      .Value(static_cast<double>(stats.request_log_lines_dropped.value()));
}

void WriteTransfers(const SessionTransfers& transfers, MetricWriter& out) {
  using Counts = SessionTransfers::Counts;
  constexpr std::pair<const char*, SessionTransfers::Direction> kDirections[] = {
      {"export", SessionTransfers::kExport}, {"import", SessionTransfers::kImport}};
  static_assert(std::size(kDirections) == SessionTransfers::kDirections);
  constexpr std::pair<const char*, std::atomic<int64_t> Counts::*> kOutcomes[] = {
      {"whole", &Counts::whole}, {"failed", &Counts::failed}, {"refused", &Counts::refused}};
  auto running = out.Gauge("session_transfers_running", "Sessions on their way to or from files.");
  for (const auto& [name, direction] : kDirections) {
    running.Value(static_cast<double>(transfers.counts(direction).running), {{"direction", name}});
  }
  auto ended = out.Counter("session_transfers_total",
                           "Files of sessions: whole, failed, or refused for want of a place.");
  for (const auto& [name, direction] : kDirections) {
    for (const auto& [outcome, count] : kOutcomes) {
      ended.Value(static_cast<double>(transfers.counts(direction).*count),
                  {{"direction", name}, {"outcome", outcome}});
    }
  }
  auto bytes = out.Counter("session_transfer_bytes_total", "Bytes of files that are whole.");
  for (const auto& [name, direction] : kDirections) {
    bytes.Value(static_cast<double>(transfers.counts(direction).bytes), {{"direction", name}});
  }
}

void WriteStore(const SessionStore& store, MetricWriter& out) {
  const StoreStats stats = store.stats();
  out.Gauge("session_store_bytes",
            "Bytes of the session store that logs and snapshots of all sessions take, as quotas "
            "count them.")
      .Value(static_cast<double>(store.UsageOfAll().bytes));
  out.Counter("session_store_commits_total", "Commits of the session store, of a sync each.")
      .Value(static_cast<double>(stats.commits));
  out.Counter("session_store_turns_total", "Turns of sessions that those have made durable.")
      .Value(static_cast<double>(stats.turns));
  out.Counter("session_store_written_anew_total",
              "Times that the store was written anew, after a failed sync or damage.")
      .Value(static_cast<double>(stats.written_anew));
  out.Gauge("session_store_damaged",
            "Rows and files of the session store found to be damaged or missing since the start.")
      .Value(static_cast<double>(stats.damaged));
  out.Gauge("session_store_fallen_back",
            "Sessions that damage took back to an earlier position since the start.")
      .Value(static_cast<double>(stats.fallen_back));
  out.Gauge("session_store_names_in_doubt",
            "1 while names that are not known are refused, as rows of sessions were lost.")
      .Value(stats.names_in_doubt ? 1 : 0);
}

void WriteConnections(const ServerStats& stats, MetricWriter& out) {
  constexpr std::pair<const char*, ConnectionStats ServerStats::*> kPorts[] = {
      {"grpc", &ServerStats::grpc_connections},
      {"http", &ServerStats::http_connections},
      {"metrics", &ServerStats::metrics_connections},
  };
  const auto write = [&](auto family, auto ConnectionStats::*member) {
    for (const auto& [api, port] : kPorts) {
      if ((stats.*port).limit.value() == 0) continue;
      family.Value(static_cast<double>((stats.*port.*member).value()), {{"api", api}});
    }
  };
  write(out.Gauge("connections", "Open connections, by port."), &ConnectionStats::open);
  write(out.Gauge("max_connections", "Connections that may be open, by port."),
        &ConnectionStats::limit);
  write(out.Counter("connections_refused_total", "Connections refused as one too many, by port."),
        &ConnectionStats::refused);
  write(out.Counter("connections_evicted_total",
                    "Idle connections closed to make room for others, by port."),
        &ConnectionStats::evicted);
}

void WriteModel(const Engine& engine, MetricWriter& out) {
  const ModelInfo& model = engine.model_info();
  out.Gauge("model_info", "Always 1; the labels describe the model.")
      .Value(1, {{"architecture", model.architecture},
                 {"weight_dtype", model.weight_dtype},
                 {"fingerprint", absl::StrFormat("%016x", model.fingerprint)}});
  out.Gauge("device_info", "Always 1; the label describes the device.")
      .Value(1, {{"device", engine.backend_description()}});
  out.Gauge("model_parameters", "Parameters of the model.")
      .Value(static_cast<double>(model.parameters));
  out.Gauge("model_weight_bytes", "Memory that the weights take in bytes.")
      .Value(static_cast<double>(model.weight_bytes));
}

}  // namespace

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  const absl::StatusOr<Engine*> got = access_.Get();
  const Engine* engine = got.ok() ? *got : nullptr;
  MetricWriter server("mneme_", {}, families);
  WriteServer(access_, engine, server);
  WriteConnections(access_.stats(), server);
  WriteSecurityMetrics(security_, access_.stats(), server);
  if (engine != nullptr) {
    const std::string& model = access_.facts().model_name;
    MetricWriter out("mneme_", {{"model_name", model}}, families);
    WriteModel(*engine, out);
    if (engine->store() != nullptr) WriteStore(*engine->store(), out);
    WriteTransfers(*access_.facts().session_transfers, out);
    WriteRequestMetrics(engine->stats(), access_.stats(), engine->options(), out);
    WriteStepMetrics(engine->stats(), engine->activity(), engine->options(), out);
    WriteSessionMetrics(engine->stats(), engine->capacity(), out);
    if (vllm_) {
      MetricWriter vllm("vllm:", {{"model_name", model}, {"engine", "0"}}, families);
      WriteVllmMetrics(engine->stats(), engine->capacity(), vllm);
    }
  }
  MetricWriter process("process_", {}, families);
  WriteProcess(process);
  return families;
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(Collect()); }

}  // namespace mneme
