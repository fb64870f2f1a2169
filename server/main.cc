// mneme-server: flags -> configuration -> port -> model -> serve -> drain.
//
// The port is opened before the model is loaded, so that a port in use is known at once and clients
// are told to wait (UNAVAILABLE, health NOT_SERVING). The main thread does nothing but wait for
// signals; every other thread has them blocked.
#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/human_bytes.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/config/config.h"
#include "server/config/origins.h"
#include "server/config/units.h"
#include "server/engine_access.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_guard.h"
#include "server/http/http_server.h"
#include "server/load_model.h"
#include "server/log_settings.h"
#include "server/metrics/http_metrics.h"
#include "server/openai/openai_service.h"
#include "server/openai/session_routes.h"
#include "server/request_log.h"
#include "server/security/api_keys.h"
#include "server/security/security.h"
#include "server/signals.h"
#include "server/version.h"
#include "server/watchdog.h"

namespace mneme {
namespace {

// What the process ends with; config_text.cc tells users.
enum ExitCode {
  kDrained = 0,
  kBadArguments = 2,
  kModelFailure = 3,
  kDeviceFailure = 4,
  kCannotListen = 5,
  kFatalDeviceError = 6,
};

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
// For calls to receive their last messages once the engine has drained; docs and help state it.
// Clients that do not read are cut off after it.
constexpr absl::Duration kLastMessagesGrace = absl::Seconds(2);

// Without destructors: other threads may be in the middle of something that cannot be interrupted.
[[noreturn]] void ExitNow(int code) {
  fflush(nullptr);
  _exit(code);
}

int Fail(int code, const absl::Status& status) {
  fprintf(stderr, "mneme-server: %s\n", std::string(status.message()).c_str());
  return code;
}

int FailToListen(const absl::Status& status) {
  return Fail(absl::IsInvalidArgument(status) ? kBadArguments : kCannotListen, status);
}

void SetUpLogs(const v1::LogSection& config) {
  ApplyLogSettings(config);
  // It would print a line for every malformed request; their senders are told already.
  google::protobuf::SetLogHandler(nullptr);
}

// A line of load progress each tenth of the weights, at most one a second.
class ProgressLines {
 public:
  ProgressLines(EngineAccess& access, Clock& clock) : access_(access), clock_(clock) {}

  void operator()(int64_t done_bytes, int64_t total_bytes) {
    access_.SetProgress(done_bytes, total_bytes);
    if (total_bytes <= 0) return;
    const int64_t tenth = 10 * done_bytes / total_bytes;
    const absl::Duration now = clock_.Monotonic();
    if (tenth <= last_tenth_ || now - last_line_ < absl::Seconds(1)) return;
    last_tenth_ = tenth;
    last_line_ = now;
    LOG(INFO) << "loading " << tenth * 10 << " % of " << HumanBytes(total_bytes);
  }

 private:
  EngineAccess& access_;
  Clock& clock_;
  int64_t last_tenth_ = 0;
  absl::Duration last_line_ = clock_.Monotonic();
};

// Ends the process at once on a second signal, and when the engine is stuck, while `done` is
// awaited.
template <typename T>
void WaitOrExit(Signals& signals, Watchdog& watchdog, const std::future<T>& done) {
  while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (const int signal = signals.Wait(kPollInterval); signal != 0) {
      LOG(WARNING) << "second signal, ending at once";
      ExitNow(128 + signal);
    }
    if (const absl::Status health = watchdog.Poll(); !health.ok()) {
      LOG(ERROR) << "fatal: " << health.message();
      ExitNow(kFatalDeviceError);
    }
  }
}

// What clients talk to.
struct Listeners {
  GrpcServer& grpc;
  HttpServer* http;  // null: none

  void Shutdown() const {
    std::thread other([this] { grpc.Shutdown(kLastMessagesGrace); });
    if (http != nullptr) http->Shutdown(kLastMessagesGrace);
    other.join();
  }
};

// A connection is a file, and the usual soft limit is 1024 of them.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

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

// Health off, no new work, then what runs gets its time.
int Drain(Signals& signals, Watchdog& watchdog, const Listeners& listeners, EngineAccess& access,
          Engine& engine, absl::Duration timeout) {
  LOG(INFO) << "draining"
            << " timeout=" << FormatMilliseconds(absl::ToInt64Milliseconds(timeout))
            << " running=" << engine.stats().requests_running.value()
            << " waiting=" << engine.stats().requests_waiting.value();
  listeners.grpc.SetServing(false);
  access.SetDraining();
  const std::future<void> drained = std::async(std::launch::async, [&] {
    engine.Drain(timeout);
    listeners.Shutdown();
  });
  WaitOrExit(signals, watchdog, drained);
  LOG(INFO) << "drained";
  return kDrained;
}

// Until a signal or a fatal error.
int Serve(Signals& signals, const v1::ServerConfig& config, const Listeners& listeners,
          EngineAccess& access, Engine& engine) {
  Watchdog watchdog(engine, access.stats());
  while (true) {
    if (const int signal = signals.Wait(kPollInterval); signal != 0) {
      LOG(INFO) << "SIG" << sigabbrev_np(signal);
      return Drain(signals, watchdog, listeners, access, engine,
                   absl::Milliseconds(config.server().shutdown_timeout_ms()));
    }
    if (const absl::Status health = watchdog.Poll(); !health.ok()) {
      LOG(ERROR) << "fatal: " << health.message();
      listeners.grpc.SetServing(false);
      access.SetFailed();
      // The engine's loop may never come back, and whoever waits for it neither: no joining.
      std::thread([&listeners] { listeners.Shutdown(); }).detach();
      absl::SleepFor(kLastMessagesGrace);
      ExitNow(kFatalDeviceError);
    }
  }
}

// The configuration from the same flags and variables and from what its file says by now.
using ReadConfig = std::function<absl::StatusOr<v1::ServerConfig>()>;

int Run(Signals& signals, const v1::ServerConfig& config, const ReadConfig& read_again) {
  RaiseFileLimit();
  LOG(INFO) << "mneme-server " << ServerVersion() << " " << ConfigSummary(config);
  if (const absl::Status folder = CheckModelFolder(config); !folder.ok()) {
    return Fail(kModelFailure, folder);
  }
  RealClock clock;
  EngineAccess access(clock.Now());
  RequestLog requests(RequestsToLog(config.log()), access.stats());
  access.set_request_log(&requests);
  SecurityFailure failure;
  const absl::StatusOr<std::unique_ptr<Security>> guard =
      Security::Create(config.security(), clock, failure);
  if (!guard.ok()) return Fail(static_cast<int>(failure), guard.status());
  Security* const security = guard->get();
  signals.OnTick([security] { security->Poll(); });
  signals.OnHangUp([&] {
    if (const absl::StatusOr<v1::ServerConfig> again = read_again(); again.ok()) {
      ReloadLogSettings(*again, config, requests);
    } else {
      LOG(ERROR) << "SIGHUP: nothing changes: " << again.status().message();
    }
    (void)security->Reload();
  });
  std::unique_ptr<LoadedModel> loaded;  // outlives the server
  absl::StatusOr<std::unique_ptr<GrpcServer>> server =
      GrpcServer::Start(config.server(), access, *security);
  if (!server.ok()) return FailToListen(server.status());
  const std::string address = AddressText(config.server().host(), (*server)->port());
  printf("listening on %s\n", address.c_str());
  fflush(stdout);
  LOG(INFO) << "listening on " << address << ", loading " << config.model().path();

  const Metrics metrics(access, *security, /*vllm_names=*/config.metrics().compat() == "vllm");
  std::unique_ptr<HttpServer> metrics_server;
  if (config.metrics().port() > 0) {
    absl::StatusOr<std::unique_ptr<HttpServer>> started =
        StartMetricsServer(config.metrics(), metrics, access.stats());
    if (!started.ok()) return FailToListen(started.status());
    metrics_server = *std::move(started);
    LOG(INFO) << "metrics on " << AddressText(config.metrics().host(), metrics_server->port());
  }

  OpenAiService openai(access, *security);  // outlive the HTTP server
  SessionRoutes sessions(access);
  std::unique_ptr<HttpServer> http;
  if (config.server().http_port() >= 0) {
    HttpRoutes routes;
    openai.AddRoutes(routes);
    sessions.AddRoutes(routes);
    AddMetricsRoute(metrics, /*is_open=*/false, routes);
    HttpServerOptions options = ToHttpOptions(config.server());
    options.on_exchange = [&openai,
                           count = CountExchanges(access.stats())](const HttpExchange& exchange) {
      count(exchange);
      openai.OnExchange(exchange);
    };
    GuardHttp(*security, options);
    absl::StatusOr<std::unique_ptr<HttpServer>> started =
        HttpServer::Start(options, std::move(routes));
    if (!started.ok()) return FailToListen(started.status());
    http = *std::move(started);
    const std::string http_address = AddressText(config.server().host(), http->port());
    printf("http on %s\n", http_address.c_str());
    fflush(stdout);
    LOG(INFO) << "http on " << http_address;
  }

  LoadError error;
  std::future<std::unique_ptr<LoadedModel>> loading = std::async(std::launch::async, [&] {
    return LoadEngine(
        config, clock, ProgressLines(access, clock),
        {.on_request_end = [&requests](RequestReport report) { requests.Add(std::move(report)); },
         .owner_session_limit =
             [security](const std::string& owner) {
               return security->authenticator().SessionLimitOf(owner);
             }},
        error);
  });
  while (loading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (signals.Wait(kPollInterval) == 0) continue;
    LOG(INFO) << "signal while loading: nothing to drain";
    ExitNow(kDrained);
  }
  loaded = loading.get();
  if (loaded == nullptr) return Fail(static_cast<int>(error.failure), error.status);

  Engine& engine = *loaded->engine;
  access.Publish(engine, loaded->facts);
  (*server)->SetServing(true);
  printf("%s\nready\n", engine.capacity().ToString().c_str());
  fflush(stdout);
  LOG(INFO) << "ready model=" << loaded->facts.model_name << " address=" << address;
  return Serve(signals, config, {.grpc = **server, .http = http.get()}, access, engine);
}

// --new-api-key and --hash-api-key.
int PrintApiKey(const CommandLine& line) {
  if (const absl::Status name = CheckKeyName(line.key_name); !name.ok()) {
    return Fail(kBadArguments, name);
  }
  std::string key;
  if (line.action == ServerAction::kNewApiKey) {
    key = NewApiKey();
    printf("%s\n", key.c_str());
  } else {
    std::getline(std::cin, key);
    if (key.empty()) {
      return Fail(kBadArguments,
                  absl::InvalidArgumentError("--hash-api-key: standard input has no key"));
    }
  }
  printf("%s\n", ApiKeyLine(line.key_name, key).c_str());
  return 0;
}

int Main(int argc, const char* const* argv) {
  Signals signals;
  const auto parse = [&] {
    return ParseCommandLine({argv + 1, argv + argc},
                            [](const char* name) -> const char* { return getenv(name); });
  };
  const absl::StatusOr<CommandLine> line = parse();
  if (!line.ok()) return Fail(kBadArguments, line.status());
  switch (line->action) {
    case ServerAction::kHelp:
      fputs(HelpText().c_str(), stdout);
      return 0;
    case ServerAction::kVersion:
      printf("mneme-server %s\n", std::string(ServerVersion()).c_str());
      return 0;
    case ServerAction::kPrintConfig:
      fputs(PrintConfig(line->config).c_str(), stdout);
      return 0;
    case ServerAction::kNewApiKey:
    case ServerAction::kHashApiKey:
      return PrintApiKey(*line);
    case ServerAction::kPlan: {
      LoadError error;
      const absl::StatusOr<std::string> plan = PlanText(line->config, error);
      if (!plan.ok()) return Fail(static_cast<int>(error.failure), plan.status());
      fputs(plan->c_str(), stdout);
      return 0;
    }
    case ServerAction::kServe:
      break;
  }
  SetUpLogs(line->config.log());
  for (const std::string& weakness : Weaknesses(*line)) LOG(WARNING) << weakness;
  return Run(signals, line->config, [&parse]() -> absl::StatusOr<v1::ServerConfig> {
    MNEME_ASSIGN_OR_RETURN(CommandLine again, parse());
    return std::move(again.config);
  });
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
