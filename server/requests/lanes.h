// Threads for work that takes long, shared fairly by those who ask for it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace mneme {

// Thread-safe. Owners take turns, whatever each has waiting, and one's tasks start in the order
// they were posted. Where there are several threads, nobody has all of them: one is left for
// whoever comes next. The destructor runs all tasks that are left.
//
// The tasks that wait are bounded, all of them together, and those of each owner to three times the
// places that are free by then: one owner alone gets three quarters of them, a second one three
// quarters of the rest, so that nobody's backlog leaves others without a place. A task that finds
// no place is overload, and the caller must say so to its client.
class Lanes {
 public:
  Lanes(int threads, size_t capacity);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // False, and the task is dropped, if there is no place for it.
  [[nodiscard]] bool TryPost(absl::string_view owner, std::function<void()> task)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The tasks of one owner; removed once there are none.
  struct Owner {
    std::deque<std::function<void()>> waiting;
    int running = 0;
  };

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The place in `turns_` of the owner whose task is next; its size if none may start.
  size_t NextTurn() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool MayStart(const Owner& owner) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || owner.running < most_running_;
  }

  const size_t capacity_;
  const int most_running_;  // of one owner
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Owner> owners_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mu_);  // who has tasks waiting; the first is next
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace mneme
