// When a choice ends, and what of the end is shown: end tokens, stop strings, length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"

namespace mneme {

inline constexpr int kMaxStopTokens = 64;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;

// INVALID_ARGUMENT, naming field, value and range. Stop strings need a tokenizer.
absl::Status ValidateStop(const StopParams& params, int vocab, bool has_tokenizer);

// A request's rules, prepared once and shared by its choices.
class StopRules {
 public:
  StopRules() = default;
  StopRules(const StopParams& params, std::span<const int32_t> end_tokens);

  int max_tokens() const { return max_tokens_; }
  int min_tokens() const { return min_tokens_; }
  // Whether the token ends a choice: a stop token, or an end token that is not ignored.
  bool IsStopToken(int32_t token) const {
    return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  }
  // All of them: what cannot be drawn before min_tokens.
  std::vector<int32_t> StopTokens() const { return {stop_tokens_.begin(), stop_tokens_.end()}; }

 private:
  friend class StopCondition;

  // A stop string as a Knuth-Morris-Pratt automaton: state s means that the last s bytes of the
  // text are the string's first s.
  struct StopString {
    std::string text;
    std::vector<int> fallback;  // [text.size() + 1]: longest proper border of the first s bytes
  };

  int max_tokens_ = 0;
  int min_tokens_ = 0;
  bool keep_stop_string_ = false;
  absl::InlinedVector<int32_t, 4> stop_tokens_;  // few, looked through for every token
  std::vector<StopString> strings_;
};

// Follows one choice. The rules must outlive it. Bytes that may be the beginning of a stop string
// are held back until that is decided, so nothing is ever shown that would have to be taken back.
class StopCondition {
 public:
  explicit StopCondition(const StopRules& rules)
      : rules_(&rules), states_(rules.strings_.size(), 0) {}

  struct Outcome {
    FinishReason finish = FinishReason::kNone;
    std::string matched;  // the stop string, or the stop token in decimal
  };

  // Takes a sampled token and the text that it completes, which is not its own text if it is a stop
  // token; appends what may be shown to `shown`. The stop string that is complete first wins, of
  // those that end at the same byte the longest. Call at most max_tokens times, not after an end.
  Outcome OnToken(int32_t token, absl::string_view text, std::string& shown);

  // Whether the choice goes on after `token`, whatever its text: what can be known without decoding
  // it. OnToken(token) has no finish then.
  bool GoesOnAfter(int32_t token) const {
    return states_.empty() && !rules_->IsStopToken(token) && generated_ + 1 < rules_->max_tokens_;
  }

  // Whether it goes on after the next token, whatever that is if not a stop token, and stop tokens
  // may be drawn by then.
  bool GoesOnUnlessStopped() const {
    return states_.empty() && !bans_stop_tokens() && generated_ + 1 < rules_->max_tokens_;
  }

  // Shows what was held back, for a choice that ends otherwise.
  void Flush(std::string& shown);

  int generated() const { return generated_; }
  // Whether stop tokens may not be drawn yet.
  bool bans_stop_tokens() const { return generated_ < rules_->min_tokens_; }

 private:
  // Advances the automata by one byte; the longest string that is now complete, or null.
  const StopRules::StopString* Advance(char byte);

  const StopRules* rules_;
  int generated_ = 0;
  std::string held_;
  std::vector<int> states_;  // one per stop string
};

}  // namespace mneme
