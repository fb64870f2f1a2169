// Choosing tokens from logits. Built once per instruction set.
//
// A vocabulary is never sorted. Tokens are counted into buckets by the leading bits of their
// probability, which keeps their order; every limit (top_k, top_p, min_p) and the draw itself ends
// inside one bucket, and only that bucket's tokens are sorted.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd.h"

namespace mneme::MNEME_ISA {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// e^x for x <= 0 to within a rounding or two of a double; zero below -708. Branch-free, so that
// loops over it become vector code.
MNEME_INLINE double ExpOfNegative(double x) {
  const double clamped = x > -708.0 ? x : -708.0;
  constexpr double kRounder = 0x1.8p52;  // leaves no room for a fraction
  const double shifted = clamped * 0x1.71547652b82fep0 + kRounder;
  const double n = shifted - kRounder;
  const double r = (clamped - n * 0x1.62e42fefp-1) - n * 0x1.473de6af278edp-34;  // ln 2
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t exponent = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  const double value = p * std::bit_cast<double>(exponent);
  return x > -708.0 ? value : 0.0;
}

// The largest logit; -inf if all are NaN.
float LargestLogit(const float* logits, int64_t n) {
  float best = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  if (n >= kLanes) {
    Vec largest = Set1(best);
    for (; i + kLanes <= n; i += kLanes) largest = Max(Load(logits + i), largest);
    best = MaxLane(largest);
  }
  for (; i < n; ++i) best = logits[i] > best ? logits[i] : best;
  return best;
}

// kNoLogits if there is none, or its logit is infinite.
int32_t GreedyToken(const float* logits, int64_t n) {
  const float best = LargestLogit(logits, n);
  if (std::isinf(best)) return kNoLogits;
  for (int64_t i = 0; i < n; ++i) {
    if (logits[i] == best) return static_cast<int32_t>(i);
  }
  return kNoLogits;
}

bool HasNaN(const float* logits, int64_t n) {
  int found = 0;
  for (int64_t i = 0; i < n; ++i) found |= logits[i] != logits[i] ? 1 : 0;
  return found != 0;
}

// log(sum(exp(logits))), the sum split into eight fixed parts; NaN if there is no such number.
double LogSumOfExponentials(const float* logits, int64_t n) {
  const double largest = LargestLogit(logits, n);
  if (std::isinf(largest) || HasNaN(logits, n)) return std::numeric_limits<double>::quiet_NaN();
  constexpr int kParts = 8;
  double parts[kParts] = {};
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int j = 0; j < kParts; ++j) parts[j] += ExpOfNegative(logits[i + j] - largest);
  }
  double sum = 0;
  for (const double part : parts) sum += part;
  for (; i < n; ++i) sum += ExpOfNegative(logits[i] - largest);
  return largest + std::log(sum);
}

// Logits after bias and penalties: steps 1 and 2.
void AdjustLogits(const SampleArgs& args, const SamplingRow& row, const float* logits, int64_t n,
                  double* z) {
  for (int64_t i = 0; i < n; ++i) z[i] = logits[i];
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    z[args.bias[i].token] += args.bias[i].bias;
  }
  for (int32_t i = row.history_begin; i < row.history_end; ++i) {
    const HistoryToken& seen = args.history[i];
    double& logit = z[seen.token];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    logit -= (seen.generated_count > 0 ? row.presence_penalty : 0.0) +
             static_cast<double>(row.frequency_penalty) * seen.generated_count;
  }
}

// kNoLogits if there is none, or it is infinite.
int32_t LargestToken(const double* z, int64_t n) {
  double best = -kInfinity;
  int32_t token = kNoLogits;
  for (int64_t i = 0; i < n; ++i) {
    if (z[i] > best) {
      best = z[i];
      token = static_cast<int32_t>(i);
    }
  }
  return best == kInfinity ? kNoLogits : token;
}

// Tokens by descending probability, sorted no further than asked. Holds a prefix of that order: all
// buckets above `bucket_`, and the first `taken_` tokens of it.
class Ranking {
 public:
  // z: adjusted logits; p: exp((z - largest) / temperature), or negative for tokens to leave out.
  Ranking(const double* z, const double* p, int64_t n, int32_t* candidates)
      : z_(z), p_(p), n_(n), candidates_(candidates) {
    for (int64_t i = 0; i < n; ++i) {
      if (p[i] < 0) continue;
      const int b = Bucket(p[i]);
      ++counts_[b];
      masses_[b] += p[i];
    }
    taken_ = counts_[0];
  }

  void KeepFirst(int64_t k) {
    for (int b = kBuckets - 1; b > bucket_; --b) {
      if (k <= counts_[b]) return Cut(b, static_cast<int>(k));
      k -= counts_[b];
    }
    if (k < taken_) Cut(bucket_, static_cast<int>(k));
  }

  void KeepProbability(double fraction) {
    Prefix end;
    Find(fraction * Mass(), /*exceed=*/false, &end);
    Cut(end.bucket, end.taken);
  }

  void KeepAtLeast(double p) {
    const int b = Bucket(p);
    if (b < bucket_) return;
    Sort(b);
    int kept = 0;
    const int limit = b == bucket_ ? taken_ : counts_[b];
    while (kept < limit && p_[candidates_[kept]] >= p) ++kept;
    Cut(b, kept);
  }

  int32_t Draw(double uniform) {
    Prefix end;
    return Find(uniform * Mass(), /*exceed=*/true, &end);
  }

 private:
  // A bucket is the exponent of p as a float, p <= 1, and the first four bits of the fraction.
  static constexpr int kShift = 19;
  static constexpr int kBuckets = (0x3f800000 >> kShift) + 1;
  static int Bucket(double p) {
    const int b = static_cast<int>(BitsFromFloat(static_cast<float>(p)) >> kShift);
    return b < kBuckets ? b : kBuckets - 1;
  }

  struct Prefix {
    int bucket = 0;
    int taken = 0;
  };

  void Cut(int bucket, int taken) {
    bucket_ = bucket;
    taken_ = taken;
  }

  void Sort(int bucket) {
    if (sorted_ == bucket) return;
    sorted_ = bucket;
    int found = 0;
    for (int64_t i = 0; i < n_; ++i) {
      if (p_[i] >= 0 && Bucket(p_[i]) == bucket) candidates_[found++] = static_cast<int32_t>(i);
    }
    const double* z = z_;
    std::sort(candidates_, candidates_ + found,
              [z](int32_t a, int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; });
  }

  double Mass() {
    double sum = 0;
    for (int b = kBuckets - 1; b > bucket_; --b) sum += masses_[b];
    if (taken_ == counts_[bucket_]) return sum + masses_[bucket_];
    Sort(bucket_);
    for (int i = 0; i < taken_; ++i) sum += p_[candidates_[i]];
    return sum;
  }

  // The shortest part of the prefix, at least one token, whose mass is at least `target`, or
  // exceeds it; all of the prefix if rounding leaves none. Returns its last token.
  int32_t Find(double target, bool exceed, Prefix* end) {
    const auto reached = [&](double sum) { return exceed ? sum > target : sum >= target; };
    double sum = 0;
    int last = -1;  // the last bucket with tokens
    for (int b = kBuckets - 1; b >= bucket_; --b) {
      const int count = b == bucket_ ? taken_ : counts_[b];
      if (count == 0) continue;
      last = b;
      if (b > bucket_ && !reached(sum + masses_[b])) {
        sum += masses_[b];
        continue;
      }
      Sort(b);
      for (int i = 0; i < count; ++i) {
        sum += p_[candidates_[i]];
        if (reached(sum)) {
          *end = {b, i + 1};
          return candidates_[i];
        }
      }
    }
    Sort(last);
    const int count = last == bucket_ ? taken_ : counts_[last];
    *end = {last, count};
    return candidates_[count - 1];
  }

  const double* const z_;
  const double* const p_;
  const int64_t n_;
  int32_t* const candidates_;  // of bucket sorted_, in order
  int sorted_ = -1;
  int bucket_ = 0;
  int taken_ = 0;
  int counts_[kBuckets] = {};
  double masses_[kBuckets] = {};
};

// Steps 3 to 5 for a temperature above zero.
int32_t Draw(const SamplingRow& row, const double* z, int64_t n, double uniform,
             SampleScratch& scratch) {
  const int32_t first = LargestToken(z, n);
  if (first < 0) return first;
  const double largest = z[first];

  double* p = scratch.probabilities;
  const double temperature = row.temperature;
  for (int64_t i = 0; i < n; ++i) {
    const double value = ExpOfNegative((z[i] - largest) / temperature);
    p[i] = z[i] > -kInfinity ? value : -1.0;
  }
  Ranking ranking(z, p, n, scratch.candidates);
  if (row.top_k > 0) ranking.KeepFirst(row.top_k);
  if (row.top_p < 1) ranking.KeepProbability(row.top_p);
  if (row.min_p > 0) ranking.KeepAtLeast(row.min_p);
  return ranking.Draw(uniform);
}

void ReportLogprobs(const SampleArgs& args, const SamplingRow& row, int r, const float* logits,
                    int64_t n) {
  if (args.tokens[r] < 0) return;
  const double log_sum = LogSumOfExponentials(logits, n);
  if (std::isnan(log_sum)) return;
  args.logprobs[r] = static_cast<float>(logits[args.tokens[r]] - log_sum);

  const int wanted = std::min(row.top_logprobs, args.max_top_logprobs);
  if (wanted <= 0) return;
  int32_t* tokens = &args.top_tokens[int64_t{r} * args.max_top_logprobs];
  float* best = &args.top_logprobs[int64_t{r} * args.max_top_logprobs];  // first the logits
  int found = 0;
  float floor = -std::numeric_limits<float>::infinity();  // a candidate must exceed it
  for (int64_t i = 0; i < n; ++i) {
    if (i % kLanes == 0 && i + kLanes <= n && !(LargestLogit(logits + i, kLanes) > floor)) {
      i += kLanes - 1;
      continue;
    }
    if (!(logits[i] > floor)) continue;
    int at = found < wanted ? found++ : wanted - 1;
    for (; at > 0 && logits[i] > best[at - 1]; --at) {
      best[at] = best[at - 1];
      tokens[at] = tokens[at - 1];
    }
    best[at] = logits[i];
    tokens[at] = static_cast<int32_t>(i);
    if (found == wanted) floor = best[wanted - 1];
  }
  for (int i = 0; i < found; ++i) best[i] = static_cast<float>(best[i] - log_sum);
}

}  // namespace

void Sample(const SampleArgs& args, const SamplingRow& row, int r, double uniform,
            SampleScratch& scratch) {
  const int64_t n = args.logits.shape[1];
  const float* logits = args.logits.as<float>() + r * n;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  args.logprobs[r] = nan;
  for (int64_t i = r * int64_t{args.max_top_logprobs}; i < (r + 1) * int64_t{args.max_top_logprobs};
       ++i) {
    args.top_tokens[i] = -1;
    args.top_logprobs[i] = nan;
  }

  const bool adjusted = row.bias_begin < row.bias_end || row.history_begin < row.history_end;
  if (row.forced_token >= 0) {
    args.tokens[r] = row.forced_token;
  } else if (row.temperature == 0 && !adjusted) {
    args.tokens[r] = GreedyToken(logits, n);
  } else {
    AdjustLogits(args, row, logits, n, scratch.logits);
    args.tokens[r] = row.temperature == 0 ? LargestToken(scratch.logits, n)
                                          : Draw(row, scratch.logits, n, uniform, scratch);
    if (args.tokens[r] < 0 && GreedyToken(logits, n) >= 0) args.tokens[r] = kNothingLeft;
  }
  if (row.top_logprobs >= 0) ReportLogprobs(args, row, r, logits, n);
}

}  // namespace mneme::MNEME_ISA
