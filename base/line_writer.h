// Lines for a descriptor that may take its time (a terminal at Ctrl-S, a pipe nobody reads),
// written by a thread of their own: who has something to say never waits for who reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace mneme {

struct LineWriterOptions {
  // The limit on waiting lines with what keeping them costs. A line that would exceed it is
  // dropped.
  size_t max_waiting_bytes = size_t{4} << 20;
  // The line that says, once lines are written again, how many were dropped before it. Empty: none.
  std::function<std::string(int64_t lines)> describe_gap;
};

// Thread-safe, but for its end. Lines carry their own line break and are written one write() each,
// in the order of the calls.
class LineWriter {
 public:
  // `fd` stays the caller's and must not be closed. RESOURCE_EXHAUSTED where the system gives no
  // further thread.
  static absl::StatusOr<std::unique_ptr<LineWriter>> Start(int fd, LineWriterOptions options = {});
  // Returns at once: what still waits is given up, so Flush() first. A thread that is held up in a
  // write is left behind; it writes nothing more.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Returns at once. False: the line was dropped.
  bool Write(std::string line);
  // The same, whatever waits already: for last words.
  void WriteInAnyCase(std::string line);
  // Blocks until all that waits is written, but no longer than `timeout`; tells whether it is.
  [[nodiscard]] bool Flush(absl::Duration timeout);
  // Since the start: no room for them, or an error of write().
  int64_t dropped() const;

 private:
  struct Queue;
  explicit LineWriter(std::shared_ptr<Queue> queue);

  const std::shared_ptr<Queue> queue_;  // also the thread's
};

// Writes all of `line`, waiting where `fd` has no room. False: an error, errno says which.
bool WriteLine(int fd, const std::string& line);

}  // namespace mneme
