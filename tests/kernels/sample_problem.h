// Rows to sample from, and their distribution worked out the long way.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {

inline constexpr float kBanned = -std::numeric_limits<float>::infinity();

struct Sampled {
  std::vector<int32_t> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;
};

// Rows over one vocabulary, each with its own logits, lists and parameters.
struct SampleProblem {
  explicit SampleProblem(int vocab) : vocab(vocab) {}

  SamplingRow& Add(const std::vector<double>& row_logits,
                   const std::vector<HistoryToken>& row_history = {},
                   const std::vector<BiasToken>& row_bias = {}) {
    for (const double logit : row_logits) logits.push_back(RoundTo(logit, DType::kF32));
    SamplingRow row;
    row.history_begin = static_cast<int>(history.size());
    history.insert(history.end(), row_history.begin(), row_history.end());
    row.history_end = static_cast<int>(history.size());
    row.bias_begin = static_cast<int>(bias.size());
    bias.insert(bias.end(), row_bias.begin(), row_bias.end());
    row.bias_end = static_cast<int>(bias.size());
    rows.push_back(row);
    return rows.back();
  }

  // The problem as arguments for a backend, whose results come to `sampled`.
  SampleArgs Args(Workbench& bench, Sampled& sampled) const {
    const size_t n = rows.size();
    sampled.tokens.assign(n, -7);
    sampled.logprobs.assign(n, -7);
    sampled.top_tokens.assign(n * max_top_logprobs, -7);
    sampled.top_logprobs.assign(n * max_top_logprobs, -7);
    SampleArgs args;
    args.logits = bench.Activations(logits, {static_cast<int64_t>(n), vocab});
    args.rows = rows;
    args.history = history;
    args.bias = bias;
    args.max_top_logprobs = max_top_logprobs;
    args.tokens = sampled.tokens;
    args.logprobs = sampled.logprobs;
    args.top_tokens = sampled.top_tokens;
    args.top_logprobs = sampled.top_logprobs;
    return args;
  }

  Sampled Run(Backend& backend) const {
    Workbench bench(backend);
    Sampled sampled;
    const SampleArgs args = Args(bench, sampled);
    bench.kernels().Sample(args);
    EXPECT_THAT(bench.Read(args.logits),
                HasSameBits(bench.Read(bench.Activations(logits, args.logits.shape))))
        << "the logits were modified";
    return sampled;
  }

  std::vector<double> Logits(size_t row) const {
    return {logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab};
  }

  // Steps 1 and 2.
  std::vector<double> Adjusted(size_t row) const {
    const SamplingRow& r = rows[row];
    std::vector<double> z = Logits(row);
    for (int i = r.bias_begin; i < r.bias_end; ++i) z[bias[i].token] += bias[i].bias;
    for (int i = r.history_begin; i < r.history_end; ++i) {
      double& logit = z[history[i].token];
      logit = logit > 0 ? logit / r.repetition_penalty : logit * r.repetition_penalty;
      if (history[i].generated_count > 0) logit -= r.presence_penalty;
      logit -= static_cast<double>(r.frequency_penalty) * history[i].generated_count;
    }
    return z;
  }

  // The probability of every token that can be drawn, in the order of the draw. Each filter looks
  // at all tokens anew: a token stays if the probability of those ahead of it is still too small.
  std::vector<std::pair<int, double>> Distribution(size_t row) const {
    const SamplingRow& r = rows[row];
    const std::vector<double> z = Adjusted(row);
    std::vector<std::pair<int, double>> p;  // token, probability
    double largest = -INFINITY;
    for (const double logit : z) largest = std::max(largest, logit);
    for (int t = 0; t < vocab; ++t) {
      p.emplace_back(t, std::exp((z[t] - largest) / r.temperature));
    }
    std::stable_sort(p.begin(), p.end(),
                     [&z](const auto& a, const auto& b) { return z[a.first] > z[b.first]; });
    if (r.top_k > 0) p.resize(std::min<size_t>(p.size(), r.top_k));
    double mass = 0;
    for (const auto& [token, weight] : p) mass += weight;
    std::vector<std::pair<int, double>> kept;
    double ahead = 0;
    for (const auto& [token, weight] : p) {
      const bool in_top_p = kept.empty() || r.top_p >= 1 || ahead < r.top_p * mass;
      ahead += weight;
      if (in_top_p && weight >= r.min_p * p[0].second) kept.emplace_back(token, weight);
    }
    double total = 0;
    for (const auto& [token, weight] : kept) total += weight;
    for (auto& [token, weight] : kept) weight /= total;
    return kept;
  }

  int ExpectedToken(size_t row) const {
    const SamplingRow& r = rows[row];
    if (r.forced_token >= 0) return r.forced_token;
    if (r.temperature == 0) {
      const std::vector<double> z = Adjusted(row);
      return static_cast<int>(std::max_element(z.begin(), z.end()) - z.begin());
    }
    const double u = UniformDouble(r.seed, r.choice, static_cast<uint64_t>(r.position));
    double sum = 0;
    int last = -1;
    for (const auto& [token, probability] : Distribution(row)) {
      if (probability == 0) continue;
      sum += probability;
      last = token;
      if (sum > u) break;
    }
    return last;
  }

  int vocab;
  int max_top_logprobs = 0;
  std::vector<double> logits;
  std::vector<SamplingRow> rows;
  std::vector<HistoryToken> history;
  std::vector<BiasToken> bias;
};

}  // namespace mneme
