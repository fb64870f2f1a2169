// A pipe that is full to the brim: whoever writes to it waits until somebody reads.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "base/log.h"

namespace mneme {

class StuckPipe {
 public:
  StuckPipe() {
    signal(SIGPIPE, SIG_IGN);  // for a writer that is left behind when the pipe goes
    CHECK_EQ(pipe2(fds_, O_CLOEXEC), 0);
    CHECK_EQ(fcntl(fds_[1], F_SETFL, O_NONBLOCK), 0);
    const std::string page(4096, '.');
    for (ssize_t count; (count = write(fds_[1], page.data(), page.size())) > 0;) {
      filling_bytes_ += static_cast<size_t>(count);
    }
    CHECK_EQ(fcntl(fds_[1], F_SETFL, 0), 0);
  }
  ~StuckPipe() {
    close(fds_[0]);
    close(fds_[1]);
  }
  StuckPipe(const StuckPipe&) = delete;
  StuckPipe& operator=(const StuckPipe&) = delete;

  int write_end() const { return fds_[1]; }

  // Takes what keeps the pipe full out of it.
  std::string ReadFilling() {
    std::string text(filling_bytes_, '\0');
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t count = read(fds_[0], text.data() + done, text.size() - done);
      CHECK_GT(count, 0);
      done += static_cast<size_t>(count);
    }
    return text;
  }
  // Reads what is there, and waits until something is.
  std::string ReadSome() {
    std::string text(1 << 16, '\0');
    const ssize_t count = read(fds_[0], text.data(), text.size());
    CHECK_GE(count, 0);
    text.resize(static_cast<size_t>(count));
    return text;
  }

 private:
  int fds_[2];
  size_t filling_bytes_ = 0;
};

}  // namespace mneme
