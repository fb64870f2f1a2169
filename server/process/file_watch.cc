#include "server/process/file_watch.h"

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace mneme {

// The standard library's lock and condition, as Abseil's timed waits go by the date.
struct FileWatch::Shared {
  explicit Shared(Work work) : work(std::move(work)) {}

  void Run() {
    std::unique_lock lock(mu);
    while (!ending) {
      const bool reloads = std::exchange(asked, false);
      lock.unlock();
      reloads ? work.reload() : work.poll();
      lock.lock();
      changed.wait_for(lock, absl::ToChronoNanoseconds(work.interval),
                       [this] { return ending || asked; });
    }
    ended = true;
    changed.notify_all();
  }

  const Work work;
  std::mutex mu;
  std::condition_variable changed;
  // Under `mu`.
  bool asked = false;
  bool ending = false;
  bool ended = false;
};

absl::StatusOr<std::unique_ptr<FileWatch>> FileWatch::Start(Work work) {
  auto shared = std::make_shared<Shared>(std::move(work));
  try {
    std::thread([shared] { shared->Run(); }).detach();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  return std::unique_ptr<FileWatch>(new FileWatch(std::move(shared)));
}

FileWatch::FileWatch(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

FileWatch::~FileWatch() {
  while (!End(absl::Seconds(1))) {
  }
}

void FileWatch::Ask() {
  const std::lock_guard lock(shared_->mu);
  shared_->asked = true;
  shared_->changed.notify_all();
}

bool FileWatch::End(absl::Duration timeout) {
  std::unique_lock lock(shared_->mu);
  shared_->ending = true;
  shared_->changed.notify_all();
  return shared_->changed.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                                   [this] { return shared_->ended; });
}

}  // namespace mneme
