// The system's figures for this process.
#pragma once

#include <cstdint>

namespace mneme {

// -1, or 0 for the limit, where the system does not tell.
struct ProcessFacts {
  double cpu_seconds = -1;  // user and system time so far
  int64_t resident_bytes = -1;
  int64_t virtual_bytes = -1;
  int64_t open_fds = -1;
  int64_t max_fds = 0;
  int64_t threads = -1;
  double start_time = -1;  // seconds since 1970
};

ProcessFacts ReadProcessFacts();

}  // namespace mneme
