// Ends connections where the process may open no further file: the one that is worth least goes
// first, whichever port it came to, so that strangers at one port do not keep clients from another.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/net/spare_file.h"

namespace mneme {

struct ConnectionWorth {
  bool is_known = false;  // its client has shown a right to be here
  // On the monotonic clock: when a known client's connection became idle, a stranger's was opened.
  absl::Duration since;

  friend bool operator<(const ConnectionWorth& a, const ConnectionWorth& b) {
    return std::pair(a.is_known, a.since) < std::pair(b.is_known, b.since);
  }
};

// The connections of one port. Thread-safe.
class EvictableConnections {
 public:
  // The worth of the connection that is to end first; nullopt: none may be ended.
  virtual std::optional<ConnectionWorth> LeastWorth() = 0;
  // Ends that connection, or begins to; false: there is none any more. Needs no further file.
  virtual bool EvictLeast() = 0;

 protected:
  ~EvictableConnections() = default;
};

// One for all ports of a process. Thread-safe. Locks of ports are taken inside of its own, and so
// must not be held where it is called.
class ConnectionEvictor {
 public:
  ConnectionEvictor() = default;
  ConnectionEvictor(const ConnectionEvictor&) = delete;
  ConnectionEvictor& operator=(const ConnectionEvictor&) = delete;

  // `port` is asked until it is removed.
  void Add(EvictableConnections* port) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(EvictableConnections* port) ABSL_LOCKS_EXCLUDED(mu_);

  // After accept() at `listener`, which does not block, failed for want of a file: ends a
  // connection, or, where none may be ended, refuses the one that waits at `listener`. Whether it
  // ended one; its file comes back soon after.
  bool MakeRoom(int listener) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::vector<EvictableConnections*> ports_ ABSL_GUARDED_BY(mu_);
  SpareFile spare_file_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
