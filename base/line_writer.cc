#include "base/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace mneme {
namespace {

// The memory that a waiting line takes beside its text.
constexpr size_t kLineOverhead = 64;

size_t CostOf(const std::string& line) { return line.size() + kLineOverhead; }

}  // namespace

bool WriteLine(int fd, const std::string& line) {
  absl::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = write(fd, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // whoever started this process made it so
      pollfd room = {.fd = fd, .events = POLLOUT, .revents = 0};
      (void)poll(&room, 1, /*timeout=*/-1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// The standard library's lock and condition, as Abseil's timed waits go by the date, which may be
// changed.
struct LineWriter::Queue {
  Queue(int fd, LineWriterOptions options) : fd(fd), options(std::move(options)) {}

  bool Push(std::string line, bool in_any_case) {
    {
      const std::lock_guard lock(mu);
      const bool has_room = bytes + CostOf(line) <= options.max_waiting_bytes;
      if (closed || !(has_room || in_any_case)) {
        ++dropped;
        ++unsaid;
        return false;
      }
      bytes += CostOf(line);
      lines.push_back(std::move(line));
    }
    changed.notify_all();
    return true;
  }

  bool AwaitEmpty(absl::Duration timeout) {
    std::unique_lock lock(mu);
    return changed.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                            [this] { return lines.empty() && !writing; });
  }

  void Run() {
    std::vector<std::string> batch;
    while (true) {
      int64_t gap = 0;  // what was dropped so far came after the lines of this batch
      {
        std::unique_lock lock(mu);
        changed.wait(lock, [this] { return closed || !lines.empty(); });
        if (closed) return;
        batch = std::exchange(lines, {});
        gap = std::exchange(unsaid, 0);
        writing = true;
      }
      for (const std::string& line : batch) {
        if (!WriteOne(line)) return;
      }
      SayGap(gap);
      {
        const std::lock_guard lock(mu);
        writing = false;
      }
      changed.notify_all();
    }
  }

  // Writes the line that tells of `gap` dropped lines, and of those dropped since, unless lines
  // wait that came before them.
  void SayGap(int64_t gap) {
    {
      const std::lock_guard lock(mu);
      if (lines.empty()) gap += std::exchange(unsaid, 0);
    }
    if (gap == 0 || !options.describe_gap || WriteLine(fd, options.describe_gap(gap))) return;
    const std::lock_guard lock(mu);
    unsaid += gap;
  }

  // False: nothing more is to be written.
  bool WriteOne(const std::string& line) {
    const bool is_written = WriteLine(fd, line);
    const std::lock_guard lock(mu);
    bytes -= CostOf(line);
    if (!is_written) {
      ++dropped;
      ++unsaid;
    }
    return !closed;
  }

  const int fd;
  const LineWriterOptions options;

  std::mutex mu;
  std::condition_variable changed;
  // Under `mu`.
  std::vector<std::string> lines;
  size_t bytes = 0;      // of `lines` and of those that are being written
  bool writing = false;  // the thread has lines of its own
  bool closed = false;
  int64_t dropped = 0;
  int64_t unsaid = 0;  // of `dropped`: no line has told of them
};

absl::StatusOr<std::unique_ptr<LineWriter>> LineWriter::Start(int fd, LineWriterOptions options) {
  auto queue = std::make_shared<Queue>(fd, std::move(options));
  try {
    // Not joined: it may never come back from a write.
    std::thread([queue] { queue->Run(); }).detach();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  return std::unique_ptr<LineWriter>(new LineWriter(std::move(queue)));
}

LineWriter::LineWriter(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

LineWriter::~LineWriter() {
  {
    const std::lock_guard lock(queue_->mu);
    queue_->closed = true;
  }
  queue_->changed.notify_all();
}

bool LineWriter::Write(std::string line) { return queue_->Push(std::move(line), false); }

void LineWriter::WriteInAnyCase(std::string line) { (void)queue_->Push(std::move(line), true); }

bool LineWriter::Flush(absl::Duration timeout) { return queue_->AwaitEmpty(timeout); }

int64_t LineWriter::dropped() const {
  const std::lock_guard lock(queue_->mu);
  return queue_->dropped;
}

}  // namespace mneme
