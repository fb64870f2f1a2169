// Runs a program of the build, as a user would.
#pragma once

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace mneme {

// Both outputs are collected as they come. The destructor kills what still runs.
class ChildProcess {
 public:
  // `environment` entries "NAME=value" are added to this process's own. `input` is written to
  // standard input, which is then closed.
  explicit ChildProcess(const std::vector<std::string>& command, const std::string& input = "",
                        const std::vector<std::string>& environment = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Blocks until `text` has appeared in either output or both have ended; tells which. Returns the
  // rest of its line.
  bool WaitForText(const std::string& text, std::string* rest = nullptr) ABSL_LOCKS_EXCLUDED(mu_);

  void Signal(int signal);
  pid_t pid() const { return pid_; }
  // Blocks until it has ended: the exit code, or 1000 plus the signal that ended it.
  int Wait();

  // Complete once Wait has returned.
  std::string out() const ABSL_LOCKS_EXCLUDED(mu_);
  std::string err() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Collect(int fd, std::string* text) ABSL_LOCKS_EXCLUDED(mu_);

  pid_t pid_ = -1;
  int exit_code_ = -1;
  mutable absl::Mutex mu_;
  std::string out_ ABSL_GUARDED_BY(mu_);
  std::string err_ ABSL_GUARDED_BY(mu_);
  int open_ ABSL_GUARDED_BY(mu_) = 2;
  std::vector<std::thread> readers_;
};

}  // namespace mneme
