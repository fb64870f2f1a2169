// A request's stream, read as the server reads it: by the ready callback. Keeps when tokens came.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/token_stream.h"

namespace mneme {

// Seconds on a clock that never goes backwards.
double BenchNow();

// `count` random token ids.
std::vector<int32_t> RandomTokens(uint64_t seed, int count, int vocab);

// A request for `tokens` tokens, drawn at temperature 0.8 and top_p 0.95 and never ended early.
Request BenchRequest(std::vector<int32_t> prompt, int tokens, uint64_t seed);

class BenchStream {
 public:
  static absl::StatusOr<std::unique_ptr<BenchStream>> Submit(Engine& engine, Request request);
  // Cancels the request if it has not ended.
  ~BenchStream();

  // Block until that many tokens came, or the stream ended.
  void AwaitTokens(int64_t tokens);
  absl::Status AwaitEnd();

  double submitted() const { return submitted_; }
  // The times at which events brought tokens, and how many tokens came by now.
  std::vector<double> arrivals() const;
  int64_t tokens() const;
  // Gaps between arrivals of which the later one is in (from, to].
  std::vector<double> GapsWithin(double from, double to) const;

 private:
  BenchStream() = default;
  void Drain() ABSL_LOCKS_EXCLUDED(mu_);

  double submitted_ = 0;
  mutable absl::Mutex mu_;
  std::vector<double> arrivals_ ABSL_GUARDED_BY(mu_);
  int64_t tokens_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<TokenStream> stream_;
};

}  // namespace mneme
