// Which rows run next.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "engine/step_plan.h"

namespace mneme {

// A sequence that could take part in the next step.
struct RowCandidate {
  int slot = -1;
  int64_t position = -1;            // tokens that the slab was fed before; has to be set
  std::span<const int32_t> tokens;  // to be fed next; not empty
  std::span<const int32_t> types;   // StepRow::types
  bool whole = false;               // all of the tokens in one step, or none
  // Logits are wanted after this many of the first tokens, to score the prompt ...
  int scored_tokens = 0;
  // ... and after the last one, to sample.
  bool samples = false;
  int64_t last_run = 0;  // number of the step in which it last ran, or else became a candidate
};

struct StepLimits {
  int max_rows = 1;
  int max_tokens = 1;         // of all rows; at least max_rows
  int max_scored_tokens = 1;  // logit rows for scoring, besides one row each for sampling
  int prefill_tokens = 1;     // of all rows that feed more than one token; 0: none of them runs
  bool likely_sizes = false;  // steps with prompts are of the LikelyStepTokens, see PlanStep
  int min_chunk = 64;  // a step does not cut its prefill tokens into smaller shares than this
  // Positions after which a row crosses into another segment, with the token that is the first one
  // of it; 0: there are no segments. Of all rows no more than so many cross; at least 1.
  int segment = 0;
  int max_crossings = std::numeric_limits<int>::max();
};

// The sizes that a step with prompts likes to have: the largest one up to `tokens`, all rows
// counted. There are eight per octave. A device's library looks for an algorithm for every number
// of rows that it has not met, and may load a kernel, which takes milliseconds.
int LikelyStepTokens(int tokens);
// The next larger one.
int NextLikelyStepTokens(int tokens);

// Decoding first: rows with one token to feed take one token each. Rows with more share
// `prefill_tokens`, evenly, the shortest ones leaving what they do not need to the others; as many
// run as can have `min_chunk` tokens or all that they need. With `likely_sizes` they have a few
// tokens less, so that the step has one of the LikelyStepTokens if they want them all.
//
// Fairness: where not all fit, those that have waited longest go first, and the rows of a step are
// divided between decoding and prefilling in proportion to their numbers, each kind getting at
// least one (with a single row they take turns). So of D decoding and P prefilling candidates each
// runs at least once in 2 ceil((D + P) / max_rows) steps, or, prefilling, in the P /
// (prefill_tokens / min_chunk) steps that its share of the tokens amounts to, if that is longer.
//
// Crossings: rows that are about to cross are no candidates but for the `max_crossings` that have
// waited longest, whatever their kind; so of C of them each crosses in C / max_crossings steps.
// Prompts that come to a segment's end within a step go on only as far as crossings are left.
//
// Rows that want to be whole are those of a model that classifies, which has no others. Those that
// have waited longest go first, and later ones take what these leave of max_rows and max_tokens, if
// that is all that they need. A row has at most max_tokens tokens, so none waits for ever.
//
// Pure: the same candidates and limits give the same plan. `memory` is a plan that is no longer
// needed: its arrays are used again.
StepPlan PlanStep(std::span<const RowCandidate> candidates, const StepLimits& limits,
                  StepPlan memory = {});

}  // namespace mneme
