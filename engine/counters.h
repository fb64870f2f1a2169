// Numbers that one thread changes and any thread reads, without locks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

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

}  // namespace mneme
