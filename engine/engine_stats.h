// What the engine counts, as atomics: published by whoever knows a metrics library, printed by
// others.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"

namespace mneme {

class Counter {
 public:
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Gauge {
 public:
  void Set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// Bucket i counts values <= bounds[i] and above the bound before; one more counts the rest. A
// reader may see an observation's bucket before its sum.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void Observe(double value) {
    const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    double sum = sum_.load(std::memory_order_relaxed);
    while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
    }
  }

  const std::vector<double>& bounds() const { return bounds_; }
  std::vector<int64_t> counts() const {  // [bounds + 1], not cumulative
    std::vector<int64_t> result;
    for (const std::atomic<int64_t>& count : counts_) {
      result.push_back(count.load(std::memory_order_relaxed));
    }
    return result;
  }
  int64_t count() const {
    int64_t total = 0;
    for (const int64_t n : counts()) total += n;
    return total;
  }
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  double mean() const {
    const int64_t n = count();
    return n == 0 ? 0 : sum() / static_cast<double>(n);
  }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<double> sum_{0};
};

struct EngineStats {
  // Bounds where vLLM has a metric of the same meaning are its own, so that dashboards fit.
  static std::vector<double> StepBounds() {
    return {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};
  }
  static std::vector<double> FirstTokenBounds() {
    return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
            1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
  }
  static std::vector<double> TokenBounds() {
    return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
            0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
  }
  static std::vector<double> RequestBounds() {
    return {0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,
            10,   15,   20,  30,  40,  50,  60, 120, 240, 480, 960};
  }
  static std::vector<double> RowBounds() {
    return {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024};
  }
  static std::vector<double> LengthBounds() {
    return {1,    2,    5,    10,    20,    50,    100,    200,    500,
            1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
  }

  // Steps.
  Histogram step_seconds{StepBounds()};
  Histogram decode_rows{RowBounds()};  // of each step that had any
  Histogram tokens_per_step{LengthBounds()};
  Counter failed_steps;
  Counter prompt_tokens;     // fed while reading prompts, pending tokens included
  Counter generated_tokens;  // sampled
  Counter resumed_tokens;    // found in a session's memory when a request began
  // Bytes, counted as if a row read and wrote its whole slab; a model that touches a part of it
  // moves less.
  Counter state_bytes;
  Counter weight_bytes;     // all weights once a step
  Counter slab_copy_bytes;  // new sessions and forks: exact

  // Requests.
  Histogram queue_seconds{RequestBounds()};           // submitted -> admitted
  Histogram prefill_seconds{RequestBounds()};         // admitted -> first token
  Histogram decode_seconds{RequestBounds()};          // first token -> last
  Histogram request_seconds{RequestBounds()};         // submitted -> finished
  Histogram first_token_seconds{FirstTokenBounds()};  // submitted -> first token
  Histogram inter_token_seconds{TokenBounds()};
  Histogram request_prompt_tokens{LengthBounds()};
  Histogram request_generated_tokens{LengthBounds()};
  std::array<Counter, 6> finished;   // admitted requests by FinishReason
  std::array<Counter, 17> rejected;  // requests that were never admitted, by absl::StatusCode
  Counter replayed;                  // answered from the record of an idempotency key

  // Now.
  Gauge requests_running;
  Gauge requests_waiting;
  Gauge slabs_used;
  Gauge slabs_total;
  Gauge sessions;  // named ones
  Counter sessions_expired;

  Counter& finished_by(FinishReason reason) { return finished[static_cast<size_t>(reason)]; }
  const Counter& finished_by(FinishReason reason) const {
    return finished[static_cast<size_t>(reason)];
  }
  Counter& rejected_by(absl::StatusCode code) { return rejected[static_cast<size_t>(code)]; }
  const Counter& rejected_by(absl::StatusCode code) const {
    return rejected[static_cast<size_t>(code)];
  }
};

}  // namespace mneme
