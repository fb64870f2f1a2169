#include "engine/prefill_budget.h"

#include <algorithm>
#include <cmath>

namespace mneme {
namespace {

// Moves `mean` a quarter of the way down, or half of the way up, to `value`: those who decode
// suffer from an estimate that is too low. The first value is taken as it is.
double Blend(double mean, double value) {
  return mean < 0 ? value : mean + (value - mean) / (value > mean ? 2 : 4);
}

}  // namespace

PrefillBudget::PrefillBudget(int max_tokens, int max_rows, double slowdown)
    : max_tokens_(max_tokens), slowdown_(slowdown), decode_(max_rows + 1) {}

double PrefillBudget::DecodeSeconds(int decode_rows, bool& fresh) const {
  fresh = false;
  // The nearest row count that was measured. D grows by at most the ratio of the rows, and a
  // difference of an eighth in rows is less than the noise of a measurement.
  const int last = static_cast<int>(decode_.size()) - 1;
  for (int distance = 0; distance <= last; ++distance) {
    for (const int rows : {decode_rows - distance, decode_rows + distance}) {
      if (rows < 1 || rows > last || decode_[rows].step < 0) continue;
      fresh = step_ - decode_[rows].step < kStale && distance * 8 <= decode_rows;
      const double scale = std::min(1.0, static_cast<double>(decode_rows) / rows);
      return decode_[rows].seconds * scale;
    }
  }
  return -1;
}

int PrefillBudget::Tokens(int decode_rows) {
  if (decode_rows == 0 || slowdown_ <= 1) return max_tokens_;
  bool fresh = false;
  const double decode_seconds =
      DecodeSeconds(std::min<int>(decode_rows, static_cast<int>(decode_.size()) - 1), fresh);
  if (!fresh && step_ - last_probe_ >= kProbeInterval) {
    last_probe_ = step_;
    return 0;
  }
  if (decode_seconds < 0 || token_seconds_ < 0) return std::min(kFirstTokens, max_tokens_);
  const double room = (slowdown_ - 1) * decode_seconds;
  const double tokens = token_seconds_ > 0 ? std::floor(room / token_seconds_) : max_tokens_;
  return static_cast<int>(std::clamp<double>(tokens, std::min(kMinTokens, max_tokens_),
                                             std::min(start_tokens_, max_tokens_)));
}

void PrefillBudget::Observe(int decode_rows, int prefill_tokens, absl::Duration time) {
  ++step_;
  const double seconds = absl::ToDoubleSeconds(time);
  const bool mixed = prefill_tokens > 0 && decode_rows > 0;
  start_tokens_ = mixed ? std::max(kFirstTokens, 2 * prefill_tokens) : kFirstTokens;
  if (prefill_tokens == 0) {
    if (decode_rows < 1 || decode_rows >= static_cast<int>(decode_.size())) return;
    DecodeTime& measured = decode_[decode_rows];
    measured.seconds = Blend(measured.step < 0 ? -1 : measured.seconds, seconds);
    measured.step = step_;
    return;
  }
  double added = seconds;
  if (decode_rows > 0) {
    bool fresh = false;
    const double alone = DecodeSeconds(decode_rows, fresh);
    if (alone < 0) return;
    // A step is rarely faster than its decoding alone; where timing says so, it is noise.
    added = std::max(seconds - alone, 0.05 * seconds);
  }
  token_seconds_ = Blend(token_seconds_, added / prefill_tokens);
}

}  // namespace mneme
