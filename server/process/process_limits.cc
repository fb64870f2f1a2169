#include "server/process/process_limits.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "base/control_group.h"
#include "base/human_bytes.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"

namespace mneme {
namespace {

// Standard streams, ports, event loops, gRPC's own, the model's files while they are read, keys and
// certificates while they are read again, the metrics port and its scrapers; some to spare.
constexpr int64_t kOwnFiles = 48;
// A port that has fewer connections is of no use.
constexpr int64_t kFewestConnections = 8;

// Main, signals and writers: a server has them before it counts, a plan does without most of them.
constexpr int kFirstThreads = 4;
// Beside those and those that compute: the 29 of docs/architecture.md, Threads, that a server with
// both doors, a metrics port and a store has, and those that load the model and drain.
constexpr int kOwnThreads = 31;
// gRPC's two executors and two timers, at first.
constexpr int kGrpcThreads = 4;
// Threads by which its executors may grow.
constexpr int kMoreGrpcThreadsPerCpu = 2;
// Heaps, among them one that was reserved before threads came to share one, code and data of
// libraries that are loaded later, buffers of connections.
constexpr int64_t kWorkingBytes = int64_t{256} << 20;

int64_t SoftLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return -1;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
}

// The number behind "key:" in /proc/self/status; -1 if it has none.
int64_t StatusNumber(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":"))
      return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10);
  }
  return -1;
}

// Threads that the control group allows; -1: no limit.
int64_t ThreadsOfControlGroup() {
  int64_t least = -1;
  for (const std::string& folder : ControlGroups()) {
    std::ifstream file(folder + "/pids.max");
    int64_t limit = 0;
    if (file >> limit && (least < 0 || limit < least)) least = limit;
  }
  return least;
}

// All that a server with so many threads that compute has more than now. gRPC has some for each
// processor, usable or not: those that take events of calls, and those that take events of sockets.
int ThreadsToCome(int compute_threads) {
  const int usable = AvailableCpus();
  const int all = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  const int of_grpc = kGrpcThreads + std::clamp(all / 2, 2, 16) + std::clamp(all, 2, 32) + 1 +
                      kMoreGrpcThreadsPerCpu * usable;
  const auto there = static_cast<int>(StatusNumber("Threads"));
  return std::max(0, kFirstThreads - there) + (compute_threads > 0 ? compute_threads : usable) +
         kOwnThreads + of_grpc;
}

int64_t StackBytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  pthread_attr_init(&attributes);
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return static_cast<int64_t>(bytes);
}

void* WaitForEnd(void* end) {
  static_cast<absl::Notification*>(end)->WaitForNotification();
  return nullptr;
}

// Starts so many threads at once and lets them end: 0, or the error that kept one from starting.
int TryThreads(int count, int& started) {
  absl::Notification end;
  std::vector<pthread_t> threads;
  int error = 0;
  for (started = 0; started < count && error == 0; ++started) {
    pthread_t thread{};
    error = pthread_create(&thread, nullptr, &WaitForEnd, &end);
    if (error == 0) threads.push_back(thread);
  }
  started = static_cast<int>(threads.size());
  end.Notify();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  return error;
}

absl::Status FitToAddressSpace(int threads) {
  const int64_t limit = SoftLimit(RLIMIT_AS);
  const int64_t used = StatusNumber("VmSize") * 1024;
  if (limit < 0 || used < 0) return absl::OkStatus();
  mallopt(M_ARENA_MAX, 1);
  const int64_t needed = used + threads * StackBytes() + kWorkingBytes;
  if (limit >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the process may have ", HumanBytes(limit), " of address space (ulimit -v ", limit / 1024,
      "), and needs at least ", HumanBytes(needed), ": ", HumanBytes(used), " are in use, ",
      threads, " threads take ", HumanBytes(StackBytes()), " each (ulimit -s), and ",
      HumanBytes(kWorkingBytes), " are for work; weights and sessions come on top"));
}

}  // namespace

absl::StatusOr<ConnectionLimits> FitConnections(ConnectionLimits wanted, int64_t files) {
  const int64_t sum = wanted.grpc + wanted.http;
  const int64_t left = files - kOwnFiles;
  if (sum <= left) return wanted;
  const auto fewest = [](int64_t limit) { return std::min(limit, kFewestConnections); };
  const int64_t needed = kOwnFiles + fewest(wanted.grpc) + fewest(wanted.http);
  if (files < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the process may open ", files, " files (ulimit -n, LimitNOFILE=), and needs at least ",
        needed, ": ", kOwnFiles, " of its own and one for each connection"));
  }
  const auto share = [&](int64_t limit) { return std::max(fewest(limit), limit * left / sum); };
  ConnectionLimits fitting = {.grpc = share(wanted.grpc), .http = share(wanted.http)};
  // A port that was given the fewest takes them from the other one.
  fitting.grpc = std::min(fitting.grpc, left - fewest(wanted.http));
  fitting.http = std::min(fitting.http, left - fitting.grpc);
  return fitting;
}

absl::Status FitToOpenFiles(v1::ServerConfig& config) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  if (limit.rlim_cur != limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const int64_t files = SoftLimit(RLIMIT_NOFILE);
  if (files < 0) return absl::OkStatus();
  v1::NetworkSection& server = *config.mutable_server();
  const ConnectionLimits wanted = {
      .grpc = server.grpc_max_connections(),
      .http = server.http_port() < 0 ? 0 : server.http_max_connections()};
  MNEME_ASSIGN_OR_RETURN(const ConnectionLimits fitting, FitConnections(wanted, files));
  if (fitting == wanted) return absl::OkStatus();
  server.set_grpc_max_connections(static_cast<int32_t>(fitting.grpc));
  if (wanted.http > 0) server.set_http_max_connections(static_cast<int32_t>(fitting.http));
  LogFields("fewer_connections")
      .Message(absl::StrCat("the process may open ", files,
                            " files (ulimit -n, LimitNOFILE=): connections are limited to ",
                            fitting.grpc, " of gRPC instead of ", wanted.grpc, " and ",
                            fitting.http, " of HTTP instead of ", wanted.http))
      .Add("files", files)
      .Add("grpc", fitting.grpc)
      .Add("http", fitting.http)
      .Write(LogSeverity::kWarning);
  return absl::OkStatus();
}

absl::Status FitToThreadsAndAddressSpace(int compute_threads) {
  const int threads = ThreadsToCome(compute_threads);
  MNEME_RETURN_IF_ERROR(FitToAddressSpace(threads));
  int started = 0;
  const int error = TryThreads(threads, started);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the system gives ", started, " threads, and ", threads, " are needed at the start: ",
      strerror(error), LimitsText().empty() ? "" : absl::StrCat(" (", LimitsText(), ")")));
}

absl::Status FitToLimits(v1::ServerConfig& config) {
  MNEME_RETURN_IF_ERROR(FitToOpenFiles(config));
  return FitToThreadsAndAddressSpace(config.device().threads());
}

int64_t AddressSpaceToCome(int compute_threads) {
  if (SoftLimit(RLIMIT_AS) < 0) return 0;
  return ThreadsToCome(compute_threads) * StackBytes();
}

std::string MemoryLimitsText() {
  std::vector<std::string> limits;
  if (const int64_t bytes = SoftLimit(RLIMIT_AS); bytes >= 0) {
    limits.push_back(absl::StrCat("address space ", StatusNumber("VmSize"), " KiB of ",
                                  bytes / 1024, " KiB (ulimit -v)"));
  }
  if (const int64_t bytes = SoftLimit(RLIMIT_DATA); bytes >= 0) {
    limits.push_back(absl::StrCat("data ", StatusNumber("VmData"), " KiB of ", bytes / 1024,
                                  " KiB (ulimit -d)"));
  }
  return absl::StrJoin(limits, ", ");
}

std::string LimitsText() {
  std::vector<std::string> limits;
  if (std::string memory = MemoryLimitsText(); !memory.empty()) limits.push_back(memory);
  if (const int64_t threads = SoftLimit(RLIMIT_NPROC); threads >= 0) {
    limits.push_back(absl::StrCat("threads ", StatusNumber("Threads"),
                                  ", and those of the user's "
                                  "other processes, of ",
                                  threads, " (ulimit -u)"));
  }
  if (const int64_t threads = ThreadsOfControlGroup(); threads >= 0) {
    limits.push_back(absl::StrCat("threads of the control group: ", threads, " (pids.max)"));
  }
  return absl::StrJoin(limits, ", ");
}

}  // namespace mneme
