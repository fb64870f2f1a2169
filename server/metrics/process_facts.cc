#include "server/metrics/process_facts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace mneme {
namespace {

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Seconds since 1970 at which the system started.
double BootTime() {
  std::istringstream lines(ReadAll("/proc/stat"));
  for (std::string word; lines >> word;) {
    double seconds = 0;
    if (word == "btime" && lines >> seconds) return seconds;
  }
  return -1;
}

}  // namespace

ProcessFacts ReadProcessFacts() {
  ProcessFacts facts;
  // proc(5): "pid (name) state ppid ..."; the name may hold anything, so count from its end.
  const std::string stat = ReadAll("/proc/self/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end != std::string::npos) {
    std::istringstream words(stat.substr(name_end + 1));
    std::string skipped;
    for (int field = 3; field < 14; ++field) words >> skipped;
    double user = 0, system = 0, start = 0;
    int64_t threads = 0, resident_pages = 0;
    words >> user >> system >> skipped >> skipped >> skipped >> skipped >> threads >> skipped >>
        start >> facts.virtual_bytes >> resident_pages;
    if (words) {
      const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
      facts.cpu_seconds = (user + system) / ticks;
      facts.threads = threads;
      facts.resident_bytes = resident_pages * sysconf(_SC_PAGESIZE);
      if (const double boot = BootTime(); boot > 0) facts.start_time = boot + start / ticks;
    }
  }
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/self/fd", error);
  if (!error) {
    facts.open_fds = -1;  // the one that reads the folder
    for (const auto& entry : fds) facts.open_fds += entry.path().empty() ? 0 : 1;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    facts.max_fds = static_cast<int64_t>(limit.rlim_cur);
  }
  return facts;
}

}  // namespace mneme
