#include "bench/bench_stream.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace mneme {

double BenchNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<int32_t> RandomTokens(uint64_t seed, int count, int vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(UniformDouble(seed, 1, i) * vocab);
  }
  return tokens;
}

Request BenchRequest(std::vector<int32_t> prompt, int tokens, uint64_t seed) {
  Request request;
  request.prompt.continued = prompt;
  request.prompt.at_start = std::move(prompt);
  request.sampling.temperature = 0.8f;
  request.sampling.top_p = 0.95f;
  request.sampling.seed = seed;
  request.stop.max_tokens = tokens;
  request.stop.ignore_eos = true;
  return request;
}

absl::StatusOr<std::unique_ptr<BenchStream>> BenchStream::Submit(Engine& engine, Request request) {
  auto stream = absl::WrapUnique(new BenchStream);
  stream->submitted_ = BenchNow();
  MNEME_ASSIGN_OR_RETURN(stream->stream_, engine.Submit(std::move(request)));
  stream->stream_->SetReadyCallback([raw = stream.get()] { raw->Drain(); });
  stream->Drain();
  return stream;
}

BenchStream::~BenchStream() {
  if (stream_ != nullptr) stream_->SetReadyCallback(nullptr);
}

void BenchStream::Drain() {
  absl::MutexLock lock(&mu_);
  while (std::optional<TokenEvent> event = stream_->TryNext()) {
    if (!event->token_ids.empty()) {
      arrivals_.push_back(BenchNow());
      tokens_ += static_cast<int64_t>(event->token_ids.size());
    }
    if (event->is_last) {
      ended_ = true;
      status_ = event->status;
    }
  }
}

void BenchStream::AwaitTokens(int64_t tokens) {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return tokens_ >= tokens || ended_; };
  mu_.Await(absl::Condition(&done));
}

absl::Status BenchStream::AwaitEnd() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&ended_));
  return status_;
}

std::vector<double> BenchStream::arrivals() const {
  absl::MutexLock lock(&mu_);
  return arrivals_;
}

int64_t BenchStream::tokens() const {
  absl::MutexLock lock(&mu_);
  return tokens_;
}

std::vector<double> BenchStream::GapsWithin(double from, double to) const {
  absl::MutexLock lock(&mu_);
  std::vector<double> gaps;
  for (size_t i = 1; i < arrivals_.size(); ++i) {
    if (arrivals_[i] > from && arrivals_[i] <= to) gaps.push_back(arrivals_[i] - arrivals_[i - 1]);
  }
  return gaps;
}

}  // namespace mneme
