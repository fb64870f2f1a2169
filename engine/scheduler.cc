#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/log.h"

namespace mneme {
namespace {

// Into the list of candidates.
using Indices = absl::InlinedVector<int, 512>;

void SortLongestWaiting(std::span<const RowCandidate> candidates, Indices& indices) {
  std::stable_sort(indices.begin(), indices.end(),
                   [&](int a, int b) { return candidates[a].last_run < candidates[b].last_run; });
}

// Leaves the `count` candidates that have waited longest, in that order.
void KeepLongestWaiting(std::span<const RowCandidate> candidates, int count, Indices& indices) {
  if (static_cast<int>(indices.size()) <= count) return;
  SortLongestWaiting(candidates, indices);
  indices.resize(count);
}

// How many of the prefilling candidates a step's prefill tokens are enough for, those first that
// have waited longest: a long prompt counts for the smallest chunk, a short one for its length.
int PrefillRows(std::span<const RowCandidate> candidates, Indices prefilling,
                const StepLimits& limits) {
  SortLongestWaiting(candidates, prefilling);
  int64_t tokens = 0;
  int rows = 0;
  for (const int i : prefilling) {
    tokens +=
        std::min<int64_t>(static_cast<int64_t>(candidates[i].tokens.size()), limits.min_chunk);
    if (rows > 0 && tokens > limits.prefill_tokens) break;
    ++rows;
  }
  return std::min(rows, limits.max_rows);
}

// Whether its next token is the first one of a segment other than the first.
bool Crosses(const RowCandidate& c, const StepLimits& limits) {
  return limits.segment > 0 && c.position > 0 && c.position % limits.segment == 0;
}

// Leaves out of both lists those who have to wait before they cross.
void HoldBack(std::span<const RowCandidate> candidates, const StepLimits& limits, Indices& decoding,
              Indices& prefilling) {
  if (limits.segment == 0) return;
  Indices crossing;
  for (const Indices* indices : {&decoding, &prefilling}) {
    std::copy_if(indices->begin(), indices->end(), std::back_inserter(crossing),
                 [&](int i) { return Crosses(candidates[i], limits); });
  }
  if (static_cast<int>(crossing.size()) <= limits.max_crossings) return;
  SortLongestWaiting(candidates, crossing);
  crossing.erase(crossing.begin(), crossing.begin() + limits.max_crossings);
  std::sort(crossing.begin(), crossing.end());
  const auto waits = [&](int i) { return std::binary_search(crossing.begin(), crossing.end(), i); };
  for (Indices* indices : {&decoding, &prefilling}) {
    indices->erase(std::remove_if(indices->begin(), indices->end(), waits), indices->end());
  }
}

int64_t LongestWaiting(std::span<const RowCandidate> candidates, const Indices& indices) {
  int64_t oldest = candidates[indices.front()].last_run;
  for (const int i : indices) oldest = std::min(oldest, candidates[i].last_run);
  return oldest;
}

// Rows of a step for each kind of candidate.
struct RowShares {
  int decode = 0, prefill = 0;
};

RowShares DivideRows(std::span<const RowCandidate> candidates, const Indices& decoding,
                     const Indices& prefilling, const StepLimits& limits) {
  const int decoders = static_cast<int>(decoding.size());
  const int prefillers = static_cast<int>(prefilling.size());
  int prefill = PrefillRows(candidates, prefilling, limits);
  if (prefill > 0 && decoders + prefill > limits.max_rows) {
    const int64_t share = int64_t{limits.max_rows} * prefillers / (int64_t{decoders} + prefillers);
    prefill = std::min(prefill, std::max(1, static_cast<int>(share)));
    if (limits.max_rows == 1 &&
        LongestWaiting(candidates, decoding) <= LongestWaiting(candidates, prefilling)) {
      prefill = 0;
    }
  }
  return {.decode = std::min(decoders, limits.max_rows - prefill), .prefill = prefill};
}

void AddDecoding(std::span<const RowCandidate> candidates, const Indices& decoding,
                 int& scored_left, StepPlan& plan) {
  for (const int i : decoding) {
    const RowCandidate& c = candidates[i];
    // A prompt of one token may want it scored, too.
    if (c.scored_tokens > 0 && scored_left == 0) continue;
    scored_left -= c.scored_tokens;
    plan.AddRow({.slot = c.slot,
                 .position = c.position,
                 .tokens = c.tokens,
                 .scored_tokens = c.scored_tokens,
                 .samples = c.samples,
                 .candidate = i});
  }
}

// Divides what the limits leave of the step's tokens among `prefilling`.
void AddPrefilling(std::span<const RowCandidate> candidates, Indices& prefilling,
                   const StepLimits& limits, int scored_left, StepPlan& plan) {
  int scoring = 0;  // rows among them that score; no more than there are logits for
  prefilling.erase(
      std::remove_if(
          prefilling.begin(), prefilling.end(),
          [&](int i) { return candidates[i].scored_tokens > 0 && ++scoring > scored_left; }),
      prefilling.end());
  scoring = std::min(scoring, scored_left);
  // Shares: shortest first, so that what one leaves is divided among the rest.
  std::stable_sort(prefilling.begin(), prefilling.end(), [&](int a, int b) {
    return candidates[a].tokens.size() < candidates[b].tokens.size();
  });
  int tokens_left = std::min(limits.prefill_tokens, limits.max_tokens - plan.tokens());
  if (limits.likely_sizes) {
    tokens_left = std::max(1, LikelyStepTokens(plan.tokens() + tokens_left) - plan.tokens());
  }
  int rows_left = static_cast<int>(prefilling.size());
  const auto crosses = [&](int i) { return Crosses(candidates[i], limits); };
  int64_t crossings_left = int64_t{limits.max_crossings} -
                           std::count_if(plan.candidates.begin(), plan.candidates.end(), crosses) -
                           std::count_if(prefilling.begin(), prefilling.end(), crosses);
  for (const int i : prefilling) {
    const RowCandidate& c = candidates[i];
    int share = std::max(1, tokens_left / rows_left--);
    if (c.scored_tokens > 0) {
      const int scored_share = scored_left / scoring--;
      // Tokens after the scored ones need no logits but the last one's, which is counted apart.
      if (c.scored_tokens > scored_share) share = std::min(share, scored_share);
    }
    auto take = std::min<int64_t>(static_cast<int64_t>(c.tokens.size()), share);
    if (limits.segment > 0) {
      // Segments behind that of its first token.
      const int64_t first = c.position / limits.segment;
      const int64_t more =
          std::min((c.position + take - 1) / limits.segment - first, crossings_left);
      take = std::min(take, (first + more + 1) * limits.segment - c.position);
      crossings_left -= more;
    }
    const int scored = std::min(c.scored_tokens, static_cast<int>(take));
    plan.AddRow({.slot = c.slot,
                 .position = c.position,
                 .tokens = c.tokens.first(static_cast<size_t>(take)),
                 .scored_tokens = scored,
                 .samples = c.samples && take == static_cast<int64_t>(c.tokens.size()),
                 .candidate = i});
    tokens_left -= static_cast<int>(take);
    scored_left -= scored;
  }
}

// The distance between likely sizes near `tokens`.
int LikelyStepOf(int tokens) {
  int step = 1;
  while (16 * step <= tokens) step *= 2;
  return step;
}

}  // namespace

int LikelyStepTokens(int tokens) {
  const int step = LikelyStepOf(tokens);
  return tokens / step * step;
}

int NextLikelyStepTokens(int tokens) {
  const int step = LikelyStepOf(tokens);
  return (tokens / step + 1) * step;
}

namespace {

StepPlan PlanWholeRows(std::span<const RowCandidate> candidates, const StepLimits& limits,
                       StepPlan memory) {
  Indices waiting;
  for (size_t i = 0; i < candidates.size(); ++i) waiting.push_back(static_cast<int>(i));
  SortLongestWaiting(candidates, waiting);
  StepPlan plan = std::move(memory);
  plan.Clear();
  for (const int i : waiting) {
    const RowCandidate& c = candidates[i];
    const auto tokens = static_cast<int>(c.tokens.size());
    CHECK(c.whole && tokens <= limits.max_tokens) << tokens << " tokens of a row";
    if (plan.tokens() + tokens > limits.max_tokens) continue;
    plan.AddRow({.slot = c.slot,
                 .position = c.position,
                 .tokens = c.tokens,
                 .types = c.types,
                 .samples = c.samples,
                 .candidate = i});
    if (plan.rows() == limits.max_rows) break;
  }
  return plan;
}

}  // namespace

StepPlan PlanStep(std::span<const RowCandidate> candidates, const StepLimits& limits,
                  StepPlan memory) {
  CHECK(limits.max_rows >= 1 && limits.max_tokens >= limits.max_rows && limits.max_crossings >= 1);
  if (!candidates.empty() && candidates.front().whole) {
    return PlanWholeRows(candidates, limits, std::move(memory));
  }
  Indices decoding, prefilling;
  for (size_t i = 0; i < candidates.size(); ++i) {
    (candidates[i].tokens.size() == 1 ? decoding : prefilling).push_back(static_cast<int>(i));
  }
  if (limits.prefill_tokens <= 0) prefilling.clear();
  HoldBack(candidates, limits, decoding, prefilling);
  const RowShares rows = DivideRows(candidates, decoding, prefilling, limits);
  KeepLongestWaiting(candidates, rows.decode, decoding);
  KeepLongestWaiting(candidates, rows.prefill, prefilling);

  StepPlan plan = std::move(memory);
  plan.Clear();
  int scored_left = limits.max_scored_tokens;
  AddDecoding(candidates, decoding, scored_left, plan);
  plan.decode_rows = plan.rows();
  AddPrefilling(candidates, prefilling, limits, scored_left, plan);
  return plan;
}

}  // namespace mneme
