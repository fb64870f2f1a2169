// Patterns of tokenizer.json, run. Matches are those of Oniguruma: the leftmost, and there the one
// that trying alternatives in their order finds first.
//
// A library would do for the matching, but not for what has to hold here: work is counted,
// character by character, so that a pattern that tries the same again and again is given up on
// after a multiple of the text's length; and characters have the properties of one version of
// Unicode (tokenizers/unicode/tables.h), whichever version a library was built with. What is read
// is small (syntax.h), and patterns in wide use have scanners of their own (word_scanner.h).
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "tokenizers/regex/character_set.h"

namespace mneme {

// Immutable: any thread may call const members at any time.
class PatternProgram {
 public:
  // Takes where a match begins and ends; an error ends the search.
  using MatchSink = absl::FunctionRef<absl::Status(size_t begin, size_t end)>;

  // Errors as of ParsePattern; UNIMPLEMENTED also for a pattern that gets too large.
  static absl::StatusOr<PatternProgram> Compile(absl::string_view pattern);

  // Gives the matches in `text`, which is valid UTF-8, in their order. None overlap; a match of
  // nothing does not begin where another one ended. Errors are those of `meter` and `sink`, and
  // INVALID_ARGUMENT, which names the pattern, once it took too many steps for a text that long.
  absl::Status FindAll(absl::string_view text, WorkMeter& meter, MatchSink sink) const;

 private:
  friend class PatternCompiler;
  class Search;

  static constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

  struct Op {
    enum Kind : uint8_t {
      kSet,       // one character of sets_[set]
      kRun,       // `min` to `max` characters of sets_[set], as many as possible first
      kLazyRun,   // as few as possible first
      kFixedRun,  // as many as possible, and no fewer later
      kJump,      // to `target`
      kSplit,     // goes on, and at `target` if that fails
      kSplitTo,   // goes to `target`, and on if that fails
      kAtomic,    // runs what follows up to kAccept, once; then at `target`
      kAhead,     // the same, and is where it was
      kNotAhead,  // goes to `target` if what follows does not match
      kBack,      // `min` characters back
      kLineStart,
      kLineEnd,
      kTextStart,
      kTextEnd,
      kLastLineEnd,
      kWordBoundary,
      kNotWordBoundary,
      kAccept,
    };
    Kind kind;
    uint32_t set = 0;
    uint32_t target = 0;
    uint32_t min = 0;
    uint32_t max = 0;
    // Keeps what a run found for the next time. Not in loops, where it may begin anywhere.
    bool remembers = false;
  };

  std::string pattern_;
  std::vector<Op> ops_;
  std::vector<CharacterSet> sets_;
  // ASCII characters that a match can begin with; all, if one can match nothing.
  std::bitset<128> first_;
};

}  // namespace mneme
