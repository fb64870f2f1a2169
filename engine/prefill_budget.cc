#include "engine/prefill_budget.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace mneme {
namespace {

// Moves `mean` a quarter of the way to `value`. The first value is taken as it is.
double Blend(double mean, double value) { return mean < 0 ? value : mean + (value - mean) / 4; }

// The same for what a prompt adds, but half of the way up: those who decode suffer from an estimate
// that is too low.
double BlendCautiously(double mean, double value) {
  return value > mean && mean >= 0 ? mean + (value - mean) / 2 : Blend(mean, value);
}

constexpr int kStepsToTrust = 6;
constexpr double kMostSurprise = 1.5;

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
  const double room = (slowdown_ - 1) * decode_seconds - fixed_seconds_;
  const double tokens = token_seconds_ > 0 ? std::floor(room / token_seconds_) : max_tokens_;
  const int least = std::min(kMinTokens, max_tokens_);
  return static_cast<int>(std::clamp<double>(tokens, least, std::min(start_tokens_, max_tokens_)));
}

void PrefillBudget::Observe(int decode_rows, int prefill_tokens, absl::Duration time) {
  ++step_;
  const double seconds = absl::ToDoubleSeconds(time);
  const bool mixed = prefill_tokens > 0 && decode_rows > 0;
  mixed_steps_ = mixed ? mixed_steps_ + 1 : 0;
  start_tokens_ = mixed ? std::max(kFirstTokens, 2 * prefill_tokens) : kFirstTokens;
  if (prefill_tokens == 0) {
    if (decode_rows < 1 || decode_rows >= static_cast<int>(decode_.size())) return;
    DecodeTime& measured = decode_[decode_rows];
    measured.seconds = Blend(measured.step < 0 ? -1 : measured.seconds, seconds);
    measured.step = step_;
    return;
  }
  if (decode_rows == 0) {
    const double each = seconds / prefill_tokens;
    token_seconds_ = token_seconds_ < 0 ? each : std::min(token_seconds_, each);
    return;
  }
  bool fresh = false;
  const double alone = DecodeSeconds(decode_rows, fresh);
  if (alone < 0) return;
  // A step is rarely faster than its decoding alone; where timing says so, it is noise.
  ObserveAdded(prefill_tokens, std::max(seconds - alone, 0.05 * seconds));
}

void PrefillBudget::ObserveAdded(int tokens, double added) {
  // A hiccup now and then says nothing of the steps to come.
  if (mixed_steps_ > kStepsToTrust) {
    added = std::min(added, kMostSurprise * (fixed_seconds_ + tokens * token_seconds_));
  }
  // Two steps that differ say what a token adds; no more than its share in any case.
  const double most = added / tokens;
  const int change = tokens - last_tokens_;
  if (mixed_steps_ > 1 && 4 * std::abs(change) >= tokens) {
    const double each = std::clamp((added - last_added_) / change, 0.0, most);
    token_seconds_ = BlendCautiously(token_seconds_, each);
  }
  if (token_seconds_ < 0 || token_seconds_ > most) token_seconds_ = most;
  fixed_seconds_ =
      BlendCautiously(mixed_steps_ > 1 ? fixed_seconds_ : -1, added - tokens * token_seconds_);
  last_tokens_ = tokens;
  last_added_ = added;
}

}  // namespace mneme
