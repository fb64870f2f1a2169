#include "server/process/terminate.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log_fields.h"
#include "server/process/exit_code.h"
#include "server/process/process_limits.h"

namespace mneme {
namespace {

struct LastException {
  std::string what = "no exception";
  bool is_for_want = false;  // of memory or threads
};

LastException Describe() {
  const std::exception_ptr exception = std::current_exception();
  if (exception == nullptr) return {};
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return {.what = "no memory is left", .is_for_want = true};
  } catch (const std::system_error& error) {
    const bool is_for_want = error.code() == std::errc::resource_unavailable_try_again ||
                             error.code() == std::errc::not_enough_memory;
    return {
        .what = is_for_want ? absl::StrCat("no thread is to be had: ", error.what()) : error.what(),
        .is_for_want = is_for_want};
  } catch (const std::exception& error) {
    return {.what = error.what()};
  } catch (...) {
    return {.what = "an exception of unknown type"};
  }
}

// Behind what the log has yet to write, if standard error takes it.
void SayWithoutMemory(absl::string_view line) {
  (void)FlushLog(kLastLines);
  pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(kLastLines))) <= 0) return;
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

[[noreturn]] void End() {
  bool is_for_want = true;
  try {
    const LastException last = Describe();
    is_for_want = last.is_for_want;
    const std::string limits = LimitsText();
    LogFields line("fatal");
    line.Message(absl::StrCat(last.what, limits.empty() ? "" : absl::StrCat(" (", limits, ")")));
    if (is_for_want) line.Add("exit_code", kDeviceFailure);
    line.Write(LogSeverity::kError);
  } catch (...) {  // not even so much memory is left
    SayWithoutMemory("mneme-server: no memory is left, not even to say what for\n");
  }
  if (is_for_want) ExitNow(kDeviceFailure);
  (void)FlushLog(kLastLines);
  std::abort();
}

}  // namespace

void EndOnUncaughtExceptions() { std::set_terminate(&End); }

}  // namespace mneme
