#include "engine/prefill_budget.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/scheduler.h"

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
    : max_tokens_(max_tokens),
      slowdown_(slowdown),
      max_rows_(max_rows),
      decode_(max_rows),
      sizes_(max_tokens) {}

int PrefillBudget::MostTokens(int decode_rows) const {
  if (mixed_steps_ > 0) return std::max(kFirstTokens, 2 * last_tokens_);
  const bool alike =
      step_ - full_.step < kStale && 8 * std::abs(decode_rows - full_.rows) <= decode_rows;
  return alike ? std::max(kFirstTokens, full_.tokens / 2) : kFirstTokens;
}

int PrefillBudget::Tokens(int decode_rows, double reserved) {
  if (decode_rows == 0 || slowdown_ <= 1) return max_tokens_;
  bool fresh = false;
  const double decode_seconds = decode_.Seconds(std::min(decode_rows, max_rows_), step_, fresh);
  if (!fresh && step_ - last_probe_ >= kProbeInterval) {
    last_probe_ = step_;
    return 0;
  }
  if (decode_seconds < 0 || token_seconds_ < 0) {
    return allowed_tokens_ = std::min(kFirstTokens, max_tokens_);
  }
  const double room = std::max(0.0, (slowdown_ - 1) * decode_seconds - reserved);
  const double tokens =
      token_seconds_ > 0 ? std::floor((room - fixed_seconds_) / token_seconds_) : max_tokens_;
  const int least = std::min(kMinTokens, max_tokens_);
  const int most = std::min(MostTokens(decode_rows), max_tokens_);
  const int by_line = static_cast<int>(std::clamp<double>(tokens, least, most));
  return allowed_tokens_ = std::max(least, FitKnownSizes(decode_rows, by_line, most, room));
}

int PrefillBudget::FitKnownSizes(int decode_rows, int tokens, int most, double room) const {
  const auto added = [&](int step_tokens) { return sizes_.Added(decode_rows, step_tokens, step_); };
  const int asked = LikelyStepTokens(decode_rows + tokens);
  int size = asked;
  while (size > decode_rows + kMinTokens && added(size) > room) size = LikelyStepTokens(size - 1);
  for (int next = NextLikelyStepTokens(size);
       next <= decode_rows + most && added(next) >= 0 && added(next) <= room;
       next = NextLikelyStepTokens(next)) {
    size = next;
  }
  return size == asked ? tokens : size - decode_rows;
}

void PrefillBudget::Observe(int decode_rows, int prefill_tokens, absl::Duration time) {
  ++step_;
  const double seconds = absl::ToDoubleSeconds(time);
  const bool mixed = prefill_tokens > 0 && decode_rows > 0;
  mixed_steps_ = mixed ? mixed_steps_ + 1 : 0;
  if (prefill_tokens == 0) return decode_.Observe(decode_rows, seconds, step_);
  if (decode_rows == 0) {
    const double each = seconds / prefill_tokens;
    token_seconds_ = token_seconds_ < 0 ? each : std::min(token_seconds_, each);
    return;
  }
  // The scheduler takes a little less than it may; a prompt's end, what is left.
  if (4 * prefill_tokens >= 3 * allowed_tokens_) {
    full_ = {.rows = decode_rows, .tokens = prefill_tokens, .step = step_};
  }
  bool fresh = false;
  const double alone = decode_.Seconds(decode_rows, step_, fresh);
  if (alone < 0) return;
  // A step is rarely faster than its decoding alone; where timing says so, it is noise.
  ObserveAdded(decode_rows, prefill_tokens, std::max(seconds - alone, 0.05 * seconds));
}

void PrefillBudget::ObserveAdded(int decode_rows, int tokens, double added) {
  // A hiccup now and then says nothing of the steps to come.
  if (mixed_steps_ > kStepsToTrust) {
    added = std::min(added, kMostSurprise * (fixed_seconds_ + tokens * token_seconds_));
  }
  sizes_.Observe(decode_rows, decode_rows + tokens, added, step_);
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
