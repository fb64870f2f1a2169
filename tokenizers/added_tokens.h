// The tokens of a vocabulary that are found in a text by their spelling, before anything else is
// done to it: "</s>", "<|im_end|>", "<think>".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tokenizers/byte_trie.h"
#include "tokenizers/rules_digest.h"

namespace mneme {

// As AddedToken of the transformers package.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  // A control token: found only where texts may spell these, and left out of decoded text.
  bool special = true;
  // White space before and behind it belongs to it.
  bool strips_left = false;
  bool strips_right = false;
  // Found only where no word character stands on either side.
  bool single_word = false;
};

// In whatever order they are.
void AddToDigest(std::vector<AddedToken> tokens, RulesDigest& digest);

// Made once for a model; immutable. Work is linear in the text, at most the longest spelling for
// each character.
class AddedTokens {
 public:
  // U+FDD0, a noncharacter: splits a spelling that is text (Broken).
  static constexpr absl::string_view kBreak = "\xEF\xB7\x90";

  AddedTokens() = default;
  // The first of two that are spelled the same counts; empty ones are left out.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }

  struct Found {
    size_t bytes = 0;  // 0: none begins here
    const AddedToken* token = nullptr;
  };
  // The longest one that `text` begins with.
  Found At(absl::string_view text) const;

  // `text`, which is valid UTF-8, with a mark inside of the spelling of each special token, or in
  // front of it if it is one character. Marks are taken out again by
  // TakeOutBreaks, before texts are encoded.
  std::string Broken(absl::string_view text) const;
  // Where it puts them, as offsets in `text`, sorted.
  std::vector<size_t> BreaksIn(absl::string_view text) const;

  struct Part {
    absl::string_view text;             // of the argument; empty if it is a token
    const AddedToken* token = nullptr;  // null: text
  };
  // `text` in its order, less the white space that tokens strip. Where several spellings overlap,
  // the one that begins first counts, and the longest of those; one that does not count for
  // another reason hides those it overlaps, all as the tokenizers package does it.
  //
  // Special tokens are found with `parse_special` only, and never across one of `breaks`, which
  // are sorted offsets in `text`.
  std::vector<Part> Split(absl::string_view text, bool parse_special,
                          std::span<const size_t> breaks) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie by_spelling_;  // indices of tokens_
};

struct UnbrokenText {
  std::string text;
  std::vector<size_t> breaks;  // where marks stood, as offsets in `text`, sorted
};
UnbrokenText TakeOutBreaks(absl::string_view text);

}  // namespace mneme
