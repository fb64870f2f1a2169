#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace mneme {
namespace {

enum class Stream { kOpen, kClosed, kTaken };

// A stream that the program was started with does not close on exec, or it would not be there.
Stream StateOf(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  if (flags < 0) return errno == EBADF ? Stream::kClosed : Stream::kOpen;
  return (flags & FD_CLOEXEC) != 0 ? Stream::kTaken : Stream::kOpen;
}

}  // namespace

void OpenStandardStreams(char** argv) {
  bool is_any_taken = false;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const Stream state = StateOf(fd);
    if (state == Stream::kOpen) continue;
    is_any_taken |= state == Stream::kTaken;
    const int null = open("/dev/null", O_RDWR);
    if (null < 0 || null == fd) continue;
    (void)dup2(null, fd);
    close(null);
  }
  // A process whose file was taken away must not go on; the next start finds the streams open.
  if (is_any_taken) execv("/proc/self/exe", argv);
}

}  // namespace mneme
