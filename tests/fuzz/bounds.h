// Demands of the fuzz targets on every input, beside those of the sanitizers.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace mneme {

// Ends the program if `condition` is false, and says which.
inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// While it lives, the program has that long to get on; SIGALRM ends it otherwise. Far more than any
// input should take, as sanitizers and a busy machine are slow.
class TimeLimit {
 public:
  explicit TimeLimit(unsigned seconds) { alarm(seconds); }
  ~TimeLimit() { alarm(0); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
};

}  // namespace mneme
