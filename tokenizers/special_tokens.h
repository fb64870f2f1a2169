// The tokens of a vocabulary that a text may spell, such as "</s>" or "<|im_end|>".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace mneme {

// Made once for a model; immutable. Work is linear in the text, and in how many lengths of
// spellings there are, however many tokens have them.
class SpecialTokens {
 public:
  // U+FDD0, a noncharacter: splits a spelling that is text.
  static constexpr absl::string_view kBreak = "\xEF\xB7\x90";

  struct Token {
    int32_t id = 0;
    // White space before and behind it belongs to it, as transformers' AddedToken says.
    bool strips_left = false;
    bool strips_right = false;
  };
  struct Spelling {
    std::string text;
    Token token;
  };
  // The first of several equal spellings counts, and an empty one does not.
  explicit SpecialTokens(std::vector<Spelling> spellings);

  struct Found {
    size_t bytes = 0;  // 0: none begins here
    Token token;
  };
  // The longest one that `text`, which is not empty, begins with.
  Found At(absl::string_view text) const;

  // `text` with a mark inside of each spelling, so that Split with `has_breaks` finds none in it.
  std::string Broken(absl::string_view text) const;

  struct Part {
    absl::string_view text;  // of the argument; not empty unless a token follows
    bool has_token = false;  // behind the text
    Token token;
  };
  // `text` in its order, less the white space that tokens strip. With `has_breaks` marks end parts,
  // too, and are no text; without, they are like any character.
  std::vector<Part> Split(absl::string_view text, bool has_breaks) const;

 private:
  absl::flat_hash_map<std::string, Token> by_spelling_;
  std::array<std::vector<size_t>, 256> lengths_;  // of spellings, by first byte; longest first
};

}  // namespace mneme
