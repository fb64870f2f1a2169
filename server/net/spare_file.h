// A file descriptor kept back for what has to be done where the process may open no further file.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace mneme {

// For one thread at a time.
class SpareFile {
 public:
  SpareFile() { Keep(); }
  ~SpareFile() { Give(); }
  SpareFile(const SpareFile&) = delete;
  SpareFile& operator=(const SpareFile&) = delete;

  // Lets somebody open a file; whoever comes first, if there are several. Keep() afterwards.
  void Give() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Keep() {
    if (fd_ < 0) fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }

  // Takes a connection that waits at `listener` and closes it at once, so that its client need not
  // find out by waiting. `listener` does not block.
  void RefuseOne(int listener) {
    Give();
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    Keep();
  }

 private:
  int fd_ = -1;
};

}  // namespace mneme
