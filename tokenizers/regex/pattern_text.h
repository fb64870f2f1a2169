// The text of a pattern as it is read, and what is said of a place in it.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {

// Base of what parses patterns (SetSyntax, and syntax.cc).
class PatternText {
 protected:
  // Groups and classes in one another are read by recursion, whose stack this bounds.
  static constexpr int kMaxDepth = 64;

  explicit PatternText(absl::string_view pattern) : pattern_(pattern) {}

  std::string Where() const { return absl::StrCat(" at byte ", at_); }
  absl::Status Invalid(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("it has ", what, Where()));
  }
  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat("it has ", what, Where(), ", which is not supported"));
  }

  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  // The next character, to show it.
  absl::string_view Next() const {
    return AtEnd() ? "" : pattern_.substr(at_, CodePointAt(pattern_, at_).length);
  }
  bool Take(absl::string_view what) {
    if (!absl::StartsWith(pattern_.substr(at_), what)) return false;
    at_ += what.size();
    return true;
  }
  char32_t TakeCharacter() {
    const CodePoint c = CodePointAt(pattern_, at_);
    at_ += c.length;
    return c.value;
  }

  const absl::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace mneme
