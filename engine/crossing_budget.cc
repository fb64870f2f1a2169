#include "engine/crossing_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace mneme {
namespace {

// A hiccup now and then says nothing of the steps to come.
constexpr int kCrossingsToTrust = 3;
constexpr double kMostCrossingSurprise = 1.5;
constexpr double kLeastSeconds = 1e-9;

size_t IndexOf(int crossings) {
  return static_cast<size_t>(std::bit_width(static_cast<unsigned>(crossings)) - 1);
}

}  // namespace

CrossingBudget::CrossingBudget(int max_rows, double slowdown)
    : max_rows_(max_rows),
      slowdown_(slowdown),
      decode_(max_rows),
      means_(IndexOf(std::max(max_rows, 1)) + 1) {}

int CrossingBudget::Most(int decode_rows) const {
  if (slowdown_ <= 1) return max_rows_;
  bool fresh = false;
  const double decode = decode_.Seconds(std::min(decode_rows, max_rows_), step_, fresh);
  const double room = (slowdown_ - 1) * decode;
  double most = 0, below = max_rows_ + 1;
  bool known = false;
  for (const Mean& mean : means_) {
    if (!Holds(mean) || decode < 0) continue;
    known = true;
    if (mean.added <= room) {
      most = std::max(most, mean.crossings * room / mean.added);
    } else {
      below = std::min(below, mean.crossings);
    }
  }
  if (!known) return std::min(kFirst, max_rows_);
  const double fewer = std::ceil(below) - 1;
  // Where all that were met are too many, their part that fits.
  if (most == 0) most = below / 2;
  return static_cast<int>(std::clamp<double>(std::min(most, fewer), 1, max_rows_));
}

double CrossingBudget::Added(int crossings) const {
  if (crossings <= 0) return 0;
  double added = 0;
  for (const Mean& mean : means_) {
    if (!Holds(mean)) continue;
    added = mean.added * std::max(1.0, crossings / mean.crossings);
    if (mean.crossings >= crossings) break;
  }
  return added;
}

std::optional<absl::Duration> CrossingBudget::Observe(int decode_rows, int crossings,
                                                      absl::Duration time) {
  ++step_;
  const double seconds = absl::ToDoubleSeconds(time);
  if (crossings == 0) {
    decode_.Observe(decode_rows, seconds, step_);
    return std::nullopt;
  }
  bool fresh = false;
  const double alone = decode_.Seconds(decode_rows, step_, fresh);
  if (alone < 0 || crossings > max_rows_) return std::nullopt;
  Mean& mean = means_[IndexOf(crossings)];
  if (!Holds(mean)) mean = {};
  // A step is rarely faster than its decoding alone; where timing says so, it is noise.
  double added = std::max({seconds - alone, 0.05 * seconds, kLeastSeconds});
  if (mean.steps >= kCrossingsToTrust) {
    added = std::min(
        added, kMostCrossingSurprise * mean.added * std::max(1.0, crossings / mean.crossings));
  }
  mean.steps = std::min(mean.steps + 1, kMeanSteps);
  mean.crossings += (crossings - mean.crossings) / mean.steps;
  mean.added += (added - mean.added) / mean.steps;
  mean.at = step_;
  if (!fresh) return std::nullopt;
  return absl::Seconds(std::max(0.0, seconds - alone));
}

}  // namespace mneme
