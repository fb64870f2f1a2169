// A pattern as a tree: what syntax.h reads and program.h runs.
#pragma once

#include <optional>
#include <vector>

#include "tokenizers/regex/character_set.h"

namespace mneme {

struct PatternNode {
  enum Kind {
    kSet,        // one character of `set`
    kSequence,   // `children` one after another; none: nothing
    kChoice,     // the first of `children` that leads to a match
    kRepeat,     // `children[0]`, at least `min` times and at most `max`
    kAtomic,     // `children[0]`, whose first match is the only one
    kAhead,      // `children[0]` matches what follows, or with `negated` does not
    kBehind,     // the same of what stands before: a choice of sequences of fixed length
    kLineStart,  // assertions
    kLineEnd,
    kTextStart,
    kTextEnd,
    kLastLineEnd,
    kWordBoundary,  // with `negated`: none
  };
  enum Greed { kGreedy, kLazy, kPossessive };

  Kind kind = kSequence;
  std::vector<PatternNode> children;
  CharacterSet set;
  int min = 0;
  std::optional<int> max;  // none: any number
  Greed greed = kGreedy;
  bool negated = false;
  bool is_dot = false;  // of kSet: "."
};

// The number of characters that it always matches, if there is one.
std::optional<int> FixedLength(const PatternNode& node);
bool CanMatchNothing(const PatternNode& node);

}  // namespace mneme
