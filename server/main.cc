// mneme-server: flags -> configuration -> port -> model -> serve -> drain.
//
// The port is opened before the model is loaded, so that a port in use is known at once and clients
// are told to wait (UNAVAILABLE, health NOT_SERVING). Then the main thread waits for signals, which
// a thread of their own takes, and watches the engine. Whatever a server says, in its log or on
// standard output, goes through a thread that writes: who does not read holds nobody up.
#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/line_writer.h"
#include "base/log_fields.h"
#include "base/log_writer.h"
#include "base/one_line.h"
#include "base/program_folder.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "server/config/config.h"
#include "server/config/demo_model.h"
#include "server/config/environment.h"
#include "server/doors.h"
#include "server/http/http_access_log.h"
#include "server/load_model.h"
#include "server/process/exit_code.h"
#include "server/process/file_watch.h"
#include "server/process/log_settings.h"
#include "server/process/process_limits.h"
#include "server/process/signals.h"
#include "server/process/terminate.h"
#include "server/process/version.h"
#include "server/requests/engine_access.h"
#include "server/requests/request_log.h"
#include "server/security/api_keys.h"
#include "server/security/security.h"
#include "server/serving.h"

namespace mneme {
namespace {

// The last word of a process that does what it was asked, or cannot. A line, whatever a path in it
// contains.
int Fail(int code, const absl::Status& status) {
  fprintf(stderr, "mneme-server: %s\n", OneLine(status.message()).c_str());
  return code;
}

// The same for a server, whose log may be read by machines.
int FailToStart(const v1::LogSection& log, int code, const absl::Status& status) {
  if (log.format() != "json") {
    LogPlainLine(absl::StrCat("mneme-server: ", status.message()));
    return code;
  }
  LogFields("start_failed")
      .Message(status.message())
      .Add("exit_code", code)
      .Write(LogSeverity::kError);
  return code;
}

int ListenFailure(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kBadArguments : kCannotListen;
}

void SetUpLogs(const v1::LogSection& config) {
  ApplyLogSettings(config);
  // It would print a line for every malformed request; their senders are told already.
  google::protobuf::SetLogHandler(nullptr);
}

std::span<const char* const> Environment() {
  size_t count = 0;
  while (environ[count] != nullptr) ++count;
  return {environ, count};
}

void LogConfiguration(const CommandLine& line) {
  LogFields("start")
      .Add("version", ServerVersion())
      .Add("settings", ConfigSummary(line.config))
      .Write(LogSeverity::kInfo);
  if (line.serves_demo) {
    LogFields("demo_model")
        .Message("no model was named: the demo model is served; --model DIR serves another")
        .Add("path", line.config.model().path())
        .Write(LogSeverity::kInfo);
  }
  for (const std::string& weakness : Weaknesses(line)) {
    LogFields("weak_setting").Message(weakness).Write(LogSeverity::kWarning);
  }
  for (const UnknownVariable& variable : UnknownVariables(Environment())) {
    LogFields("unknown_variable")
        .Message(absl::StrCat(
            "the environment variable ", variable.name, " is no setting",
            variable.nearest.empty() ? "" : absl::StrCat("; did you mean ", variable.nearest, "?")))
        .Add("name", variable.name)
        .Add("nearest", variable.nearest)
        .Write(LogSeverity::kWarning);
  }
}

// The configuration from the same flags and variables and from what its file says by now.
using ReadConfig = std::function<absl::StatusOr<v1::ServerConfig>()>;

// Lives from before the port is open to the end.
struct ServerParts {
  ServerParts(const v1::LogSection& log, Clock& clock, Security& security)
      : clock(clock),
        security(security),
        access(clock),
        requests(RequestsToLog(log), access.stats()),
        http_calls(HttpCallsToLog(log)) {
    access.set_request_log(&requests);
    access.set_http_log(&http_calls);
  }

  Clock& clock;
  Security& security;
  EngineAccess access;
  RequestLog requests;
  HttpAccessLog http_calls;
};

// Keys and certificates are read again when they change, and with the configuration at SIGHUP.
absl::StatusOr<std::unique_ptr<FileWatch>> WatchFiles(Signals& signals,
                                                      const v1::ServerConfig& config,
                                                      const ReadConfig& read_again,
                                                      ServerParts& parts) {
  FileWatch::Work work;
  work.poll = [&parts] { parts.security.Poll(); };
  work.reload = [&config, &read_again, &parts, last_log = config.log()]() mutable {
    const absl::StatusOr<v1::ServerConfig> again = read_again();
    parts.access.stats().config_reloads.Add(again.ok());
    if (again.ok()) {
      ReloadLogSettings(*again, config, last_log, parts.requests, parts.http_calls);
    } else {
      LogFields("reload_failed")
          .Message(
              absl::StrCat("SIGHUP: the configuration stays as it is: ", again.status().message()))
          .Add("files", "config")
          .Write(LogSeverity::kError);
    }
    (void)parts.security.Reload();
  };
  MNEME_ASSIGN_OR_RETURN(std::unique_ptr<FileWatch> files, FileWatch::Start(std::move(work)));
  signals.OnHangUp([&files = *files] { files.Ask(); });
  return files;
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
    LogFields("loading")
        .Add("percent", tenth * 10)
        .Add("total_bytes", total_bytes)
        .Write(LogSeverity::kInfo);
  }

 private:
  EngineAccess& access_;
  Clock& clock_;
  int64_t last_tenth_ = 0;
  absl::Duration last_line_ = clock_.Monotonic();
};

// LoadEngine, while signals are answered: one ends the process, as there is nothing to drain. A
// plain thread, so that an exception ends the process where it is thrown (terminate.h).
std::unique_ptr<LoadedModel> LoadUnlessSignalled(Signals& signals, const v1::ServerConfig& config,
                                                 Clock& clock, EngineAccess& access,
                                                 const EngineHooks& hooks, LoadError& error) {
  LogFields("loading").Add("model", config.model().path()).Write(LogSeverity::kInfo);
  std::unique_ptr<LoadedModel> loaded;
  absl::Notification done;
  std::thread loading([&] {
    loaded = LoadEngine(config, clock, ProgressLines(access, clock), hooks, error);
    done.Notify();
  });
  while (!done.HasBeenNotified()) {
    const int signal = signals.Wait(kSignalPoll);
    if (signal == 0) continue;
    LogSignal(signal, "the model is loading: there is nothing to drain");
    ExitNow(kDrained);
  }
  loading.join();
  return loaded;
}

void SayReady(const Engine& engine, const ServingFacts& facts, const Doors& doors,
              LineWriter& out) {
  out.Write(absl::StrCat(engine.capacity().ToString(), "\nready\n"));
  LogFields("ready")
      .Add("model", facts.model_name)
      .Add("address", doors.grpc().sockets().Text())
      .Write(LogSeverity::kInfo);
}

ServingTimes TimesOf(const v1::ServerConfig& config) {
  return {.drain = absl::Milliseconds(config.server().shutdown_timeout_ms()),
          .watchdog = absl::Milliseconds(config.engine().watchdog_timeout_ms())};
}

// Checks the files that a server needs before it opens a port, and a plan, too. `exit_code` says
// what kind of file is wrong.
absl::StatusOr<std::unique_ptr<Security>> CheckFiles(const v1::ServerConfig& config, Clock& clock,
                                                     int& exit_code) {
  if (absl::Status folder = CheckModelFolder(config); !folder.ok()) {
    exit_code = kModelFailure;
    return folder;
  }
  SecurityFailure failure;
  absl::StatusOr<std::unique_ptr<Security>> security =
      Security::Create(config.security(), clock, failure);
  if (!security.ok()) exit_code = static_cast<int>(failure);
  return security;
}

// Opens the ports, loads the model and serves until a signal. `fitting` is `config` with what the
// process may have; `out` is standard output.
int LoadAndServe(Signals& signals, LineWriter& out, const v1::ServerConfig& config,
                 const v1::ServerConfig& fitting, ServerParts& parts) {
  std::unique_ptr<LoadedModel> loaded;  // outlives the doors
  const absl::StatusOr<std::unique_ptr<Doors>> doors =
      Doors::Open(fitting, parts.access, parts.security, out);
  if (!doors.ok()) return FailToStart(config.log(), ListenFailure(doors.status()), doors.status());

  const EngineHooks hooks = {
      .on_request_end =
          [&requests = parts.requests](RequestReport report) { requests.Add(std::move(report)); },
      .owner_session_limit =
          [&security = parts.security](const std::string& owner) {
            return security.authenticator().SessionLimitOf(owner);
          }};
  LoadError error;
  loaded = LoadUnlessSignalled(signals, config, parts.clock, parts.access, hooks, error);
  if (loaded == nullptr) {
    return FailToStart(config.log(), static_cast<int>(error.failure), error.status);
  }
  parts.access.Publish(*loaded->engine, loaded->facts);
  (*doors)->SetServing(true);
  SayReady(*loaded->engine, loaded->facts, **doors, out);
  return ServeUntilSignal(signals, parts.clock, *loaded->engine, parts.access, **doors,
                          TimesOf(config));
}

int Serve(Signals& signals, LineWriter& out, const v1::ServerConfig& config,
          const ReadConfig& read_again) {
  const auto fail = [&config](int code, const absl::Status& status) {
    return FailToStart(config.log(), code, status);
  };
  v1::ServerConfig fitting = config;
  if (const absl::Status limits = FitToLimits(fitting); !limits.ok()) {
    return fail(kDeviceFailure, limits);
  }
  signals.LimitEnd(TimeToEnd(TimesOf(config)));
  RealClock clock;
  int exit_code = 0;
  const absl::StatusOr<std::unique_ptr<Security>> guard = CheckFiles(config, clock, exit_code);
  if (!guard.ok()) return fail(exit_code, guard.status());
  ServerParts parts(config.log(), clock, **guard);
  const absl::StatusOr<std::unique_ptr<FileWatch>> files =
      WatchFiles(signals, config, read_again, parts);
  if (!files.ok()) return fail(kDeviceFailure, files.status());
  const int code = LoadAndServe(signals, out, config, fitting, parts);
  if (!(*files)->End(kLastLines)) {
    LogFields("file_hangs")
        .Message("a file that is being read again does not come: ending without it")
        .Write(LogSeverity::kWarning);
    (void)out.Flush(kLastLines);
    ExitNow(code);
  }
  return code;
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

// Refuses what Serve would refuse, but for a port or a folder that another server has.
int PrintPlan(const v1::ServerConfig& config) {
  v1::ServerConfig fitting = config;
  if (const absl::Status limits = FitToLimits(fitting); !limits.ok()) {
    return Fail(kDeviceFailure, limits);
  }
  RealClock clock;
  int exit_code = 0;
  const absl::Status files = CheckFiles(config, clock, exit_code).status();
  if (!files.ok()) return Fail(exit_code, files);
  const absl::Status hosts = Doors::CheckHosts(config);
  if (!hosts.ok()) return Fail(ListenFailure(hosts), hosts);
  LoadError error;
  const absl::StatusOr<std::string> plan = PlanText(config, error);
  if (!plan.ok()) return Fail(static_cast<int>(error.failure), plan.status());
  fputs(plan->c_str(), stdout);
  return 0;
}

// Does what a command line asks for that does not serve.
int Answer(const CommandLine& line) {
  if (const absl::Status status = CheckCommandLine(line); !status.ok()) {
    return Fail(kBadArguments, status);
  }
  switch (line.action) {
    case ServerAction::kHelp:
      fputs(HelpText().c_str(), stdout);
      return 0;
    case ServerAction::kVersion:
      printf("mneme-server %s\n", std::string(ServerVersion()).c_str());
      return 0;
    case ServerAction::kPrintConfig:
      fputs(PrintConfig(line.config).c_str(), stdout);
      return 0;
    case ServerAction::kPlan:
      return PrintPlan(line.config);
    default:
      return PrintApiKey(line);
  }
}

const char* EnvironmentVariable(const char* name) { return getenv(name); }

absl::StatusOr<CommandLine> ReadArguments(std::span<const char* const> arguments) {
  MNEME_ASSIGN_OR_RETURN(CommandLine line, ReadCommandLine(arguments, EnvironmentVariable));
  UseDemoModel(ProgramFolder(), line);
  return line;
}

// A server's threads that the rest relies on; the signals' goes first, as all others inherit what
// it blocks.
struct Ground {
  std::unique_ptr<Signals> signals;
  std::unique_ptr<LogWriter> log;
  std::unique_ptr<LineWriter> out;  // standard output
};

absl::StatusOr<Ground> LayGround() {
  Ground ground;
  MNEME_ASSIGN_OR_RETURN(ground.signals, Signals::Start());
  MNEME_ASSIGN_OR_RETURN(ground.log, LogWriter::Start());
  MNEME_ASSIGN_OR_RETURN(ground.out, LineWriter::Start(STDOUT_FILENO));
  return ground;
}

int ServeAsTold(const absl::StatusOr<CommandLine>& line, std::span<const char* const> arguments) {
  EndOnUncaughtExceptions();
  v1::LogSection log;
  if (line.ok()) {
    log = line->config.log();
  } else if (WantsJsonLog(arguments, EnvironmentVariable)) {
    log.set_format("json");
  }
  SetUpLogs(log);
  const absl::StatusOr<Ground> ground = LayGround();
  if (!ground.ok()) {
    return FailToStart(log, kDeviceFailure,
                       absl::ResourceExhaustedError(
                           absl::StrCat(ground.status().message(), " (", LimitsText(), ")")));
  }
  if (!line.ok()) return FailToStart(log, kBadArguments, line.status());
  if (const absl::Status status = CheckCommandLine(*line); !status.ok()) {
    return FailToStart(log, kBadArguments, status);
  }
  LogConfiguration(*line);
  const ReadConfig read_again = [&]() -> absl::StatusOr<v1::ServerConfig> {
    MNEME_RETURN_IF_ERROR(CheckReadAgain(line->file));
    MNEME_ASSIGN_OR_RETURN(CommandLine again, ReadArguments(arguments));
    MNEME_RETURN_IF_ERROR(CheckCommandLine(again));
    return std::move(again.config);
  };
  const int code = Serve(*ground->signals, *ground->out, line->config, read_again);
  (void)ground->out->Flush(kLastLines);
  return code;
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  const std::span<const char* const> arguments(argv + 1, argv + argc);
  const absl::StatusOr<CommandLine> line = ReadArguments(arguments);
  if (line.ok() && line->action != ServerAction::kServe) return Answer(*line);
  return ServeAsTold(line, arguments);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
