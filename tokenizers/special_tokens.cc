#include "tokenizers/special_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace mneme {

SpecialTokens::SpecialTokens(std::vector<Spelling> spellings) {
  for (Spelling& spelling : spellings) {
    if (spelling.text.empty()) continue;
    std::vector<size_t>& lengths = lengths_[static_cast<uint8_t>(spelling.text[0])];
    const size_t length = spelling.text.size();
    const auto at = std::lower_bound(lengths.begin(), lengths.end(), length, std::greater<>());
    if (at == lengths.end() || *at != length) lengths.insert(at, length);
    by_spelling_.try_emplace(std::move(spelling.text), spelling.token);
  }
}

SpecialTokens::Found SpecialTokens::At(absl::string_view text) const {
  for (const size_t length : lengths_[static_cast<uint8_t>(text[0])]) {
    if (length > text.size()) continue;
    const auto it = by_spelling_.find(text.substr(0, length));
    if (it != by_spelling_.end()) return {length, it->second};
  }
  return {};
}

std::string SpecialTokens::Broken(absl::string_view text) const {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const Found found = At(text.substr(i));
    out.push_back(text[i]);
    if (found.bytes == 0) continue;
    while (i + 1 < text.size() && (text[i + 1] & 0xc0) == 0x80) out.push_back(text[++i]);
    out.append(kBreak.data(), kBreak.size());
  }
  return out;
}

std::vector<SpecialTokens::Part> SpecialTokens::Split(absl::string_view text,
                                                      bool has_breaks) const {
  std::vector<Part> parts;
  size_t begin = 0;
  bool strips = false;  // the white space that `begin` stands at
  const auto text_until = [&](size_t end) {
    const absl::string_view part = text.substr(begin, end - begin);
    return std::exchange(strips, false) ? absl::StripLeadingAsciiWhitespace(part) : part;
  };
  for (size_t i = 0; i < text.size();) {
    if (has_breaks && absl::StartsWith(text.substr(i), kBreak)) {
      const absl::string_view part = text_until(i);
      if (!part.empty()) parts.push_back({.text = part});
      begin = i += kBreak.size();
      continue;
    }
    const Found found = At(text.substr(i));
    if (found.bytes == 0) {
      ++i;
      continue;
    }
    absl::string_view part = text_until(i);
    if (found.token.strips_left) part = absl::StripTrailingAsciiWhitespace(part);
    parts.push_back({.text = part, .has_token = true, .token = found.token});
    begin = i += found.bytes;
    strips = found.token.strips_right;
  }
  const absl::string_view rest = text_until(text.size());
  if (!rest.empty()) parts.push_back({.text = rest});
  return parts;
}

}  // namespace mneme
