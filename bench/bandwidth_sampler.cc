#include <algorithm>

#include "absl/strings/str_format.h"
#include "bench/engine_bench.h"
#include "bench/sample_statistics.h"

namespace mneme {

MemoryBandwidth BandwidthSampler::Measure() {
  if (!once_ || read_.empty()) {
    const MemoryBandwidth bandwidth = MeasureMemoryBandwidth(threads_);
    read_.push_back(bandwidth.read);
    read_modify_write_.push_back(bandwidth.read_modify_write);
  }
  return {.read = read_.back(), .read_modify_write = read_modify_write_.back()};
}

MemoryBandwidth BandwidthSampler::median() const {
  return {.read = Median(read_), .read_modify_write = Median(read_modify_write_)};
}

std::string BandwidthSampler::ToString() const {
  const auto range = [](const std::vector<double>& values) {
    return absl::StrFormat("%.1f GB/s (%.1f to %.1f)", Median(values) / 1e9,
                           *std::min_element(values.begin(), values.end()) / 1e9,
                           *std::max_element(values.begin(), values.end()) / 1e9);
  };
  return absl::StrFormat("Memory: read %s, read-modify-write %s; times measured: %d.", range(read_),
                         range(read_modify_write_), read_.size());
}

}  // namespace mneme
