#include "tokenizers/added_tokens.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tokenizers/text_edges.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

ByteTrie TrieOf(const std::vector<AddedToken>& tokens) {
  std::vector<ByteTrie::Entry> entries;
  for (size_t i = 0; i < tokens.size(); ++i) {
    entries.push_back({tokens[i].text, static_cast<int32_t>(i)});
  }
  return ByteTrie(std::move(entries));
}

size_t FirstCharacterBytes(absl::string_view text) { return CodePointAt(text, 0).length; }

// Whether a mark is in the spelling at `begin`, or in front of one that has no inside.
bool IsBroken(absl::string_view spelling, size_t begin, std::span<const size_t> breaks) {
  const bool is_one_character = FirstCharacterBytes(spelling) == spelling.size();
  const auto next = std::lower_bound(breaks.begin(), breaks.end(), begin + !is_one_character);
  return next != breaks.end() && *next < begin + spelling.size();
}

}  // namespace

void AddToDigest(std::vector<AddedToken> tokens, RulesDigest& digest) {
  std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
    return std::tie(a.text, a.id) < std::tie(b.text, b.id);
  });
  digest.Add(uint64_t{tokens.size()});
  for (const AddedToken& token : tokens) {
    const uint64_t flags = (token.special ? 1 : 0) | (token.strips_left ? 2 : 0) |
                           (token.strips_right ? 4 : 0) | (token.single_word ? 8 : 0);
    digest.Add(token.text).Add(static_cast<uint64_t>(token.id)).Add(flags);
  }
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), by_spelling_(TrieOf(tokens_)) {}

AddedTokens::Found AddedTokens::At(absl::string_view text) const {
  const ByteTrie::Match match = by_spelling_.Longest(text);
  if (match.bytes == 0) return {};
  return {match.bytes, &tokens_[match.value]};
}

std::vector<size_t> AddedTokens::BreaksIn(absl::string_view text) const {
  std::vector<size_t> breaks;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!by_spelling_.Begins(static_cast<uint8_t>(text[i]))) continue;
    const Found found = At(text.substr(i));
    if (found.bytes == 0 || !found.token->special) continue;
    const size_t first = FirstCharacterBytes(found.token->text);
    breaks.push_back(first == found.bytes ? i : i + first);
  }
  return breaks;
}

std::string AddedTokens::Broken(absl::string_view text) const {
  std::string out;
  size_t begin = 0;
  for (const size_t at : BreaksIn(text)) {
    absl::StrAppend(&out, text.substr(begin, at - begin), kBreak);
    begin = at;
  }
  absl::StrAppend(&out, text.substr(begin));
  return out;
}

std::vector<AddedTokens::Part> AddedTokens::Split(absl::string_view text, bool parse_special,
                                                  std::span<const size_t> breaks) const {
  std::vector<Part> parts;
  size_t begin = 0;                   // of the text that no part has yet
  size_t run_begin = 0, run_end = 0;  // of white space
  for (size_t i = 0; i < text.size();) {
    if (!by_spelling_.Begins(static_cast<uint8_t>(text[i]))) {
      ++i;
      continue;
    }
    const Found found = At(text.substr(i));
    if (found.bytes == 0) {
      ++i;
      continue;
    }
    const AddedToken& token = *found.token;
    size_t token_begin = i;
    size_t token_end = i + found.bytes;
    i = token_end;  // a spelling in white space that was stripped counts, too
    if (token.special && (!parse_special || IsBroken(token.text, token_begin, breaks))) continue;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, token_begin)) || StartsWithWord(text.substr(token_end)))) {
      continue;
    }
    if (token.strips_left) {
      const size_t from = std::min(begin, token_begin);
      token_begin -= TrailingWhiteSpace(text.substr(from, token_begin - from));
      token_begin = std::max(token_begin, begin);
    }
    if (token.strips_right) {
      // Within white space that was looked at before its end is known.
      if (token_end < run_begin || token_end >= run_end) {
        run_begin = token_end;
        run_end = token_end + LeadingWhiteSpace(text.substr(token_end));
      }
      token_end = run_end;
    }
    if (begin < token_begin) parts.push_back({.text = text.substr(begin, token_begin - begin)});
    // Nothing is left of one that is all white space, where both this and the one before it strip.
    if (token_begin < token_end) parts.push_back({.text = {}, .token = &token});
    begin = token_end;
  }
  if (begin < text.size()) parts.push_back({.text = text.substr(begin)});
  return parts;
}

UnbrokenText TakeOutBreaks(absl::string_view text) {
  UnbrokenText out;
  for (;;) {
    const size_t at = text.find(AddedTokens::kBreak);
    absl::StrAppend(&out.text, text.substr(0, at));
    if (at == absl::string_view::npos) return out;
    out.breaks.push_back(out.text.size());
    text.remove_prefix(at + AddedTokens::kBreak.size());
  }
}

}  // namespace mneme
