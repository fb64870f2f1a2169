// Clients whose connections have shown that they are not strangers'.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace mneme {

// Addresses of clients, "127.0.0.1:40356", that have made a call that needs a key, where there are
// keys, and any call but health's where there are none. Whoever accepts connections forgets those
// that have closed. Thread-safe.
class KnownPeers {
 public:
  void Mark(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    peers_.insert(std::string(peer));
  }
  bool Contains(absl::string_view peer) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return peers_.contains(peer);
  }
  void Forget(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    peers_.erase(peer);
  }

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_set<std::string> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
