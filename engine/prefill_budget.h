// How many prompt tokens a step may take beside rows that decode.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "engine/decode_times.h"
#include "engine/step_times.h"

namespace mneme {

// A prompt's tokens lengthen the step, so those who decode beside it wait longer for their next
// token. Let a step with d decoding rows alone take D(d), and c prompt tokens add f + c t. The
// budget is the c for which
//
//   D(d) + f + c t = slowdown * D(d)
//
// so that tokens come at most `slowdown` times later, and the prompt, but for f, is read at the
// share (slowdown - 1) / slowdown of the speed it would have alone: 0.63 at 2.7. D, f and t are
// measured as the engine runs. D is a mean over many steps: they differ from each other, some by
// design, as those that fold what is pending into the memories, and the prompt's steps would all be
// longer by what the last few happened to be. What a token costs alone, or beside fewer rows, tells
// little about the first step of a prompt beside many, so that one is small, and the next ones at
// most double; one that soon follows another beside as many rows begins at half of what that had.
// A straight line is a guide to sizes that are not known (StepTimes): one that proved too long is
// not taken, and one that did not is, whatever the line says.
// Budgets change how a prompt is split over steps, never a result.
//
// Owned and called by one thread.
class PrefillBudget {
 public:
  // slowdown <= 1: always max_tokens.
  PrefillBudget(int max_tokens, int max_rows, double slowdown);

  // Prompt tokens for the next step, which has `decode_rows` decoding rows. 0: let them run alone
  // once, to measure; not asked for more often than every kProbeInterval steps. `reserved` seconds
  // of what the step may take longer go to something else.
  int Tokens(int decode_rows, double reserved = 0);

  // A step's rows and tokens, and how long after those of the step before its tokens came.
  void Observe(int decode_rows, int prefill_tokens, absl::Duration time);

 private:
  static constexpr int kFirstTokens = 32;    // while nothing is known of prompts beside rows
  static constexpr int kMinTokens = 8;       // a prompt always goes on
  static constexpr int kProbeInterval = 24;  // steps; measuring costs the prompt 1 part in 50
  static constexpr int64_t kStale = 2000;    // steps after which a full one says nothing

  // The last step beside decoding rows that had all the tokens it was allowed.
  struct FullStep {
    int rows = 0, tokens = 0;
    int64_t step = -kStale;
  };

  // The most that a step may have, whatever D, f and t are.
  int MostTokens(int decode_rows) const;

  // A step beside decoding rows had so many prompt tokens, which added so much time.
  void ObserveAdded(int decode_rows, int tokens, double added);
  // `tokens`, or as many fewer or more, up to `most`, as what is known of sizes of steps says of
  // what may add so many seconds.
  int FitKnownSizes(int decode_rows, int tokens, int most, double room) const;

  const int max_tokens_;
  const double slowdown_;
  const int max_rows_;
  DecodeTimes decode_;
  StepTimes sizes_;
  double token_seconds_ = -1;  // t; negative: unknown
  double fixed_seconds_ = 0;   // f
  int mixed_steps_ = 0;        // in a row, until now
  int last_tokens_ = 0;        // of the last of them
  double last_added_ = 0;
  int allowed_tokens_ = 0;  // in the next step, by Tokens()
  FullStep full_;
  int64_t step_ = 0;
  int64_t last_probe_ = -kProbeInterval;
};

}  // namespace mneme
