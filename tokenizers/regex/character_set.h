// A set of characters, as "[^\r\n\p{L}]" or "\s" of a pattern says it.
#pragma once

#include <bitset>
#include <cstdint>
#include <utility>
#include <vector>

#include "tokenizers/unicode/character_class.h"

namespace mneme {

class CharacterSet {
 public:
  // Adds to what is there.
  void Add(char32_t c) { Add(c, c); }
  void Add(char32_t first, char32_t last);
  void AddCategories(uint32_t categories);  // bits of CategoryBit
  void AddScript(uint8_t script);           // of ScriptNumber
  void AddFlag(CharacterFlags flag);
  void Add(CharacterSet set);  // a set of its own, such as a negated one
  // Everything that was not in it.
  void Negate();

  bool Contains(char32_t c) const { return c < kAscii ? ascii_[c] : ContainsBeyondAscii(c); }

  // The characters of ASCII in it.
  const std::bitset<128>& ascii() const { return ascii_; }

 private:
  static constexpr char32_t kAscii = 128;

  bool ContainsBeyondAscii(char32_t c) const;
  template <typename Predicate>
  void AddAscii(const Predicate& predicate);

  std::bitset<kAscii> ascii_;  // as it is, negated or not
  bool negated_ = false;       // what follows
  std::vector<std::pair<char32_t, char32_t>> ranges_;
  uint32_t categories_ = 0;
  uint8_t flags_ = 0;
  std::vector<uint8_t> scripts_;
  std::vector<CharacterSet> sets_;
};

}  // namespace mneme
