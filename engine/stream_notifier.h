// Runs readers' callbacks, so that the engine loop never does RPC work.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/token_stream.h"

namespace mneme {

// One thread, which owns nothing. Thread-safe.
class StreamNotifier {
 public:
  StreamNotifier();
  ~StreamNotifier();  // after the callbacks of everything that was handed over
  StreamNotifier(const StreamNotifier&) = delete;
  StreamNotifier& operator=(const StreamNotifier&) = delete;

  // Takes the streams touched by a step and leaves `streams` empty, with memory to fill again.
  void Notify(std::vector<std::shared_ptr<TokenStream>>& streams);

 private:
  void Run();
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !streams_.empty(); }

  absl::Mutex mu_;
  std::vector<std::shared_ptr<TokenStream>> streams_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: started when all else is set up
};

}  // namespace mneme
