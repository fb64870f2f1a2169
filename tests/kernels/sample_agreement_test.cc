// Sampling at the size of real vocabularies against a walk over the sorted row in float64: the same
// draws, but for those that rounding may move across an edge of the distribution. They are counted.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct Batch {
  std::vector<double> logits;
  std::vector<SamplingRow> rows;
  std::vector<HistoryToken> history;
  std::vector<BiasToken> bias;
};

enum class LogitShape { kFlat, kUsual, kPeaked, kRounded, kEqual };
constexpr LogitShape kShapes[] = {LogitShape::kFlat, LogitShape::kUsual, LogitShape::kPeaked,
                                  LogitShape::kRounded, LogitShape::kEqual};

std::vector<double> Logits(SeededRandom& random, LogitShape shape, int vocab) {
  switch (shape) {
    case LogitShape::kFlat:
      return random.NormalValues(vocab, 0.05);
    case LogitShape::kUsual:
      return random.NormalValues(vocab, 2);
    case LogitShape::kPeaked: {
      std::vector<double> logits = random.NormalValues(vocab, 2);
      for (int i = 0; i < 8; ++i)
        logits[random.Int(0, vocab - 1)] = RoundTo(14 + i * 0.3, DType::kF32);
      return logits;
    }
    case LogitShape::kRounded:  // many ties
      return random.NormalValues(vocab, 1, DType::kBF16);
    case LogitShape::kEqual:
      return std::vector<double>(static_cast<size_t>(vocab), 0.25);
  }
  return {};
}

Batch RandomBatch(uint64_t seed, int rows, int vocab) {
  SeededRandom random(seed);
  Batch batch;
  for (int r = 0; r < rows; ++r) {
    const std::vector<double> logits = Logits(random, kShapes[r % 5], vocab);
    batch.logits.insert(batch.logits.end(), logits.begin(), logits.end());
    SamplingRow row;
    row.seed = seed * 1000 + r % 3;
    row.position = r;
    row.choice = random.Int(0, 3);
    if (random.Chance(0.05)) row.forced_token = random.Int(0, vocab - 1);
    row.temperature = r % 11 == 10 ? 0.0f : static_cast<float>(random.Uniform(0.1, 2));
    if (random.Chance(0.3))
      row.top_k = random.Chance(0.5) ? random.Int(1, 100) : random.Int(1, vocab);
    if (random.Chance(0.3)) row.top_p = static_cast<float>(random.Uniform(0.3, 1));
    if (random.Chance(0.2)) row.min_p = static_cast<float>(std::pow(random.Uniform(), 4));
    row.history_begin = static_cast<int>(batch.history.size());
    row.bias_begin = static_cast<int>(batch.bias.size());
    if (random.Chance(0.3)) {
      row.repetition_penalty = static_cast<float>(random.Uniform(0.8, 1.5));
      row.frequency_penalty = static_cast<float>(random.Uniform(-0.5, 0.5));
      row.presence_penalty = static_cast<float>(random.Uniform(-0.5, 0.5));
      const int step = random.Int(1, 40);
      for (int t = random.Int(0, 5); t < vocab; t += step) {
        batch.history.push_back({t, random.Int(0, 3)});
        if (random.Chance(0.02)) batch.bias.push_back({t, 1.5f});
        if (t + 1 < vocab && random.Chance(0.02)) {
          batch.bias.push_back({t + 1, -std::numeric_limits<float>::infinity()});
          t += 2;
        }
      }
    }
    row.history_end = static_cast<int>(batch.history.size());
    row.bias_end = static_cast<int>(batch.bias.size());
    row.top_logprobs = r % 4 == 0 ? r % 21 : -1;
    batch.rows.push_back(row);
  }
  return batch;
}

constexpr int kTop = 20;

struct SampledRows {
  std::vector<int32_t> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;
};

SampledRows SampleOn(Backend& backend, const Batch& batch, int vocab) {
  Workbench bench(backend);
  const size_t n = batch.rows.size();
  SampledRows sampled;
  sampled.tokens.assign(n, -7);
  sampled.logprobs.assign(n, -7);
  sampled.top_tokens.assign(n * kTop, -7);
  sampled.top_logprobs.assign(n * kTop, -7);
  SampleArgs args;
  args.logits = bench.Activations(batch.logits, {static_cast<int64_t>(n), vocab});
  args.rows = batch.rows;
  args.history = batch.history;
  args.bias = batch.bias;
  args.max_top_logprobs = kTop;
  args.tokens = sampled.tokens;
  args.logprobs = sampled.logprobs;
  args.top_tokens = sampled.top_tokens;
  args.top_logprobs = sampled.top_logprobs;
  bench.kernels().Sample(args);
  return sampled;
}

// How far the draw of row r lies from the nearest edge that would give `token`, as a part of all
// mass, or from a cut that rounding may have moved; infinite if neither is near.
double DistanceToEdge(const Batch& batch, int r, int vocab, int token, int want) {
  const SamplingRow& row = batch.rows[r];
  std::vector<double> z(batch.logits.begin() + int64_t{r} * vocab,
                        batch.logits.begin() + int64_t{r + 1} * vocab);
  for (int i = row.bias_begin; i < row.bias_end; ++i) z[batch.bias[i].token] += batch.bias[i].bias;
  for (int i = row.history_begin; i < row.history_end; ++i) {
    const HistoryToken& seen = batch.history[i];
    double& logit = z[seen.token];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    if (seen.generated_count > 0) logit -= row.presence_penalty;
    logit -= static_cast<double>(row.frequency_penalty) * seen.generated_count;
  }
  std::vector<int> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&z](int a, int b) { return z[a] > z[b]; });
  size_t kept = order.size();
  if (row.top_k > 0) kept = std::min<size_t>(kept, row.top_k);
  const auto p = [&](size_t i) { return std::exp((z[order[i]] - z[order[0]]) / row.temperature); };
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += p(i);
  double at_cut = std::numeric_limits<double>::infinity();
  if (row.top_p < 1) {
    double sum = 0;
    size_t n = 0;
    do {
      at_cut = std::min(at_cut, std::abs(sum - row.top_p * total) / total);
      sum += p(n++);
      at_cut = std::min(at_cut, std::abs(sum - row.top_p * total) / total);
    } while (n < kept && sum < row.top_p * total);
    kept = n;
    total = sum;
  }
  while (kept > 1 && p(kept - 1) < row.min_p) total -= p(--kept);
  const double u = UniformDouble(row.seed, row.choice, static_cast<uint64_t>(row.position));
  double sum = 0, begin = 0, end = 0, nearest = at_cut;
  for (size_t i = 0; i < kept; ++i) {
    begin = sum;
    sum += p(i);
    end = sum;
    if (order[i] != token && order[i] != want) continue;
    nearest = std::min({nearest, std::abs(begin / total - u), std::abs(end / total - u)});
  }
  return nearest;
}

class SampleAgreementTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(SampleAgreementTest, DrawsAreThoseOfTheSortedWalkButForRoundingAtAnEdge) {
  const std::unique_ptr<Backend> backend = GetParam().Make(), reference = MakeReference();
  const std::unique_ptr<Backend> cpu = MakeBackend("cpu", {}).value();
  int draws = 0, different = 0, different_from_cpu = 0;
  uint64_t seed = 100;
  struct Size {
    int rows, vocab;
  };
  // Few rows and many, odd vocabularies and even: they may go different ways.
  for (const Size size :
       {Size{1, 32000}, Size{5, 32000}, Size{20, 50257}, Size{45, 20000}, Size{70, 12001},
        Size{140, 8192}, Size{300, 4096}, Size{6, 128256}, Size{2, 256000}}) {
    const Batch batch = RandomBatch(++seed, size.rows, size.vocab);
    const SampledRows want = SampleOn(*reference, batch, size.vocab);
    const SampledRows got = SampleOn(*backend, batch, size.vocab);
    const SampledRows of_cpu = SampleOn(*cpu, batch, size.vocab);
    for (int r = 0; r < size.rows; ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r << " of " << size.rows << ", vocabulary "
                                      << size.vocab << ", seed " << seed);
      ++draws;
      if (of_cpu.tokens[r] != got.tokens[r]) {
        ++different_from_cpu;
        EXPECT_LT(DistanceToEdge(batch, r, size.vocab, got.tokens[r], of_cpu.tokens[r]), 1e-12)
            << "token " << got.tokens[r] << ", on the CPU " << of_cpu.tokens[r];
      }
      if (got.tokens[r] != want.tokens[r]) {
        ++different;
        ASSERT_GE(got.tokens[r], 0);
        ASSERT_LT(got.tokens[r], size.vocab);
        EXPECT_LT(DistanceToEdge(batch, r, size.vocab, got.tokens[r], want.tokens[r]), 1e-12)
            << "token " << got.tokens[r] << " for " << want.tokens[r];
      } else if (batch.rows[r].top_logprobs >= 0) {
        EXPECT_NEAR(got.logprobs[r], want.logprobs[r], 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(got.logprobs[r]));
      }
      for (int j = 0; j < kTop; ++j) {
        ASSERT_EQ(got.top_tokens[r * kTop + j], want.top_tokens[r * kTop + j]) << "place " << j;
        if (want.top_tokens[r * kTop + j] < 0) continue;
        ASSERT_NEAR(got.top_logprobs[r * kTop + j], want.top_logprobs[r * kTop + j], 1e-5);
      }
    }
  }
  RecordProperty("draws", draws);
  RecordProperty("different", different);
  std::printf("  %d of %d draws differ from the sorted walk, %d from the CPU's\n", different, draws,
              different_from_cpu);
  EXPECT_LE(different, 2) << "of " << draws;
  EXPECT_LE(different_from_cpu, 2) << "of " << draws;
}

// Which other rows are in the call decides how many blocks a row gets on a GPU.
TEST_P(SampleAgreementTest, TheSameRowGivesTheSameBitsInAnyBatch) {
  const std::unique_ptr<Backend> backend = GetParam().Make();
  constexpr int kVocab = 32000, kRows = 150;
  const Batch batch = RandomBatch(77, kRows, kVocab);
  const SampledRows all = SampleOn(*backend, batch, kVocab);
  for (const int rows : {1, 30, 60}) {
    Batch part = batch;
    part.rows.resize(static_cast<size_t>(rows));
    part.logits.resize(static_cast<size_t>(rows) * kVocab);
    const SampledRows few = SampleOn(*backend, part, kVocab);
    for (int r = 0; r < rows; ++r) {
      ASSERT_EQ(few.tokens[r], all.tokens[r]) << "row " << r << " of " << rows;
      if (batch.rows[r].top_logprobs < 0) continue;
      ASSERT_EQ(few.logprobs[r], all.logprobs[r]) << "row " << r << " of " << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SampleAgreementTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
