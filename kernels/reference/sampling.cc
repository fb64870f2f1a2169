#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Steps 1 and 2: bias, then penalties.
std::vector<double> AdjustedLogits(const SampleArgs& args, const SamplingRow& row,
                                   std::span<const double> logits) {
  std::vector<double> z(logits.begin(), logits.end());
  for (const BiasToken& b : args.bias.subspan(row.bias_begin, row.bias_end - row.bias_begin)) {
    CHECK(b.token >= 0 && b.token < static_cast<int64_t>(z.size())) << "token " << b.token;
    z[b.token] += b.bias;
  }
  for (const HistoryToken& h :
       args.history.subspan(row.history_begin, row.history_end - row.history_begin)) {
    CHECK(h.token >= 0 && h.token < static_cast<int64_t>(z.size())) << "token " << h.token;
    double& logit = z[h.token];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    logit -= (h.generated_count > 0 ? row.presence_penalty : 0.0) +
             static_cast<double>(row.frequency_penalty) * h.generated_count;
  }
  return z;
}

// Tokens with a logit above -inf, largest logit first, ties to the lower id.
std::vector<int32_t> InDescendingOrder(const std::vector<double>& z) {
  std::vector<int32_t> order;
  for (size_t t = 0; t < z.size(); ++t) {
    if (z[t] > kMinusInfinity) order.push_back(static_cast<int32_t>(t));
  }
  std::sort(order.begin(), order.end(),
            [&z](int32_t a, int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; });
  return order;
}

// Step 3 for temperature 0.
int32_t Largest(std::span<const double> z) {
  double largest = kMinusInfinity;
  int32_t token = -1;
  for (size_t t = 0; t < z.size(); ++t) {
    if (z[t] > largest) {
      largest = z[t];
      token = static_cast<int32_t>(t);
    }
  }
  return std::isinf(largest) ? kNoLogits : token;
}

// Steps 3 to 5 for any other temperature.
int32_t Draw(const SamplingRow& row, const std::vector<double>& z) {
  const std::vector<int32_t> order = InDescendingOrder(z);
  if (order.empty()) return kNoLogits;
  const double largest = z[order[0]];
  if (std::isinf(largest)) return kNoLogits;

  std::vector<double> p(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    p[i] = std::exp((z[order[i]] - largest) / row.temperature);

  if (row.top_k > 0 && p.size() > static_cast<size_t>(row.top_k)) p.resize(row.top_k);
  if (row.top_p < 1) {
    double mass = 0;
    for (const double value : p) mass += value;
    double sum = 0;
    size_t kept = 0;
    do {
      sum += p[kept++];
    } while (kept < p.size() && sum < row.top_p * mass);
    p.resize(kept);
  }
  while (p.back() < row.min_p * p[0]) p.pop_back();

  double total = 0;
  for (const double value : p) total += value;
  const double u = UniformDouble(row.seed, row.choice, static_cast<uint64_t>(row.position));
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += p[i];
    if (sum > u * total) return order[i];
  }
  return order[p.size() - 1];
}

void ReportLogprobs(const SampleArgs& args, const SamplingRow& row, int64_t r,
                    std::span<const double> logits) {
  std::vector<double> z(logits.begin(), logits.end());
  if (args.tokens[r] < 0) return;
  for (const double value : z) {
    if (std::isnan(value)) return;
  }
  const double largest = *std::max_element(z.begin(), z.end());
  if (std::isinf(largest)) return;
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  const double log_sum = largest + std::log(sum);
  args.logprobs[r] = static_cast<float>(z[args.tokens[r]] - log_sum);

  const std::vector<int32_t> order = InDescendingOrder(z);
  const size_t n =
      std::min<size_t>(std::min(row.top_logprobs, args.max_top_logprobs), order.size());
  for (size_t i = 0; i < n; ++i) {
    args.top_tokens[r * args.max_top_logprobs + i] = order[i];
    args.top_logprobs[r * args.max_top_logprobs + i] = static_cast<float>(z[order[i]] - log_sum);
  }
}

}  // namespace

void ReferenceKernels::Sample(const SampleArgs& args) {
  Check(args, reference::kTypes);
  const size_t rows = args.rows.size();
  const int64_t vocab = args.logits.shape[1];

  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::fill(args.logprobs.begin(), args.logprobs.end(), nan);
  std::fill(args.top_tokens.begin(), args.top_tokens.end(), -1);
  std::fill(args.top_logprobs.begin(), args.top_logprobs.end(), nan);
  for (size_t r = 0; r < rows; ++r) {
    const SamplingRow row = args.rows[r].Bounded();
    const std::span<const double> logits(args.logits.as<double>() + r * vocab,
                                         static_cast<size_t>(vocab));
    if (row.forced_token >= 0) {
      args.tokens[r] = row.forced_token;
    } else {
      const std::vector<double> z = AdjustedLogits(args, row, logits);
      args.tokens[r] = row.temperature == 0 ? Largest(z) : Draw(row, z);
      if (args.tokens[r] < 0 && Largest(logits) >= 0) args.tokens[r] = kNothingLeft;
    }
    if (row.top_logprobs >= 0) ReportLogprobs(args, row, static_cast<int64_t>(r), logits);
  }
  args.WriteNextInputs();
}

}  // namespace mneme
