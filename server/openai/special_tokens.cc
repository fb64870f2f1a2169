#include "server/openai/special_tokens.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"

namespace mneme {

SpecialTokens::SpecialTokens(const Tokenizer& tokenizer, const std::vector<std::string>& added) {
  const std::set<absl::string_view> added_set(added.begin(), added.end());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenEntry& entry = tokenizer.entry(id);
    if (entry.kind == TokenKind::kPadding || entry.kind == TokenKind::kByte) continue;
    const bool is_special = entry.kind == TokenKind::kControl || added_set.count(entry.piece) > 0;
    if (is_special && !entry.piece.empty()) {
      by_first_byte_[static_cast<uint8_t>(entry.piece[0])].emplace_back(entry.piece, id);
    }
  }
  for (auto& tokens : by_first_byte_) {
    std::sort(tokens.begin(), tokens.end(),
              [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  }
}

SpecialTokens::Found SpecialTokens::At(absl::string_view text) const {
  for (const auto& [spelling, id] : by_first_byte_[static_cast<uint8_t>(text[0])]) {
    if (absl::StartsWith(text, spelling)) return {spelling.size(), id};
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

}  // namespace mneme
