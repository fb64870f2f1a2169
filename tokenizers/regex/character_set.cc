#include "tokenizers/regex/character_set.h"

#include <algorithm>

namespace mneme {

template <typename Predicate>
void CharacterSet::AddAscii(const Predicate& predicate) {
  for (char32_t c = 0; c < kAscii; ++c) ascii_[c] = ascii_[c] || predicate(c);
}

void CharacterSet::Add(char32_t first, char32_t last) {
  AddAscii([&](char32_t c) { return c >= first && c <= last; });
  if (last >= kAscii) ranges_.emplace_back(first, last);
}

void CharacterSet::AddCategories(uint32_t categories) {
  AddAscii([&](char32_t c) { return (categories >> CategoryTable()[c] & 1) != 0; });
  categories_ |= categories;
}

void CharacterSet::AddScript(uint8_t script) {
  AddAscii([&](char32_t c) { return ScriptTable()[c] == script; });
  scripts_.push_back(script);
}

void CharacterSet::AddFlag(CharacterFlags flag) {
  AddAscii([&](char32_t c) { return HasFlag(c, flag); });
  flags_ |= flag;
}

void CharacterSet::Add(CharacterSet set) {
  ascii_ |= set.ascii_;
  sets_.push_back(std::move(set));
}

void CharacterSet::Negate() {
  if (negated_) {
    CharacterSet inner = std::move(*this);
    *this = CharacterSet();
    Add(std::move(inner));
  }
  ascii_.flip();
  negated_ = true;
}

bool CharacterSet::ContainsBeyondAscii(char32_t c) const {
  const bool found =
      (categories_ >> CategoryTable()[c] & 1) != 0 ||
      (flags_ != 0 && (FlagTable()[c] & flags_) != 0) ||
      std::any_of(ranges_.begin(), ranges_.end(),
                  [c](const auto& range) { return c >= range.first && c <= range.second; }) ||
      std::any_of(scripts_.begin(), scripts_.end(),
                  [c](uint8_t script) { return ScriptTable()[c] == script; }) ||
      std::any_of(sets_.begin(), sets_.end(),
                  [c](const CharacterSet& set) { return set.Contains(c); });
  return found != negated_;
}

}  // namespace mneme
