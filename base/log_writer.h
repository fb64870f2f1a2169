// The log of a process that must not wait for who reads it.
//
// Without a LogWriter, which is how tests, tools and the command line run, a line is written to
// standard error by whoever logs it. While one lives, it goes through a bounded queue to a thread
// that writes, and is dropped and counted where the queue is full.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/line_writer.h"

namespace mneme {

// One at a time. While lines were dropped, an event `log_lines_dropped` says how many once others
// are written again.
class LogWriter {
 public:
  // Errors as of LineWriter::Start.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Start(int fd = STDERR_FILENO,
                                                          LineWriterOptions options = {});
  // Waits for the last lines, for a second at most. Where nobody takes them, nobody would take
  // those that come after, which are dropped as well. Otherwise whoever logs writes again.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

 private:
  explicit LogWriter(std::unique_ptr<LineWriter> lines);

  std::unique_ptr<LineWriter> lines_;
};

// Logs a text as it is, in one line and with no more than that. Of any severity and format.
void LogPlainLine(absl::string_view text);

// Blocks until what was logged is written, but no longer than `timeout`; tells whether it is.
bool FlushLog(absl::Duration timeout);

// Since the start of the process.
int64_t DroppedLogLines();

}  // namespace mneme
