#include "engine/sessions/conversation_digest.h"

#include <algorithm>
#include <array>
#include <string>

namespace mneme {
namespace {

// FNV-1a's prime and a shift, so that the last bytes reach all bits.
void AddByte(ConversationDigest& digest, uint8_t byte) {
  digest.hash = (digest.hash ^ byte) * 0x100000001b3u;
  digest.hash ^= digest.hash >> 29;
  ++digest.bytes;
}

// Calls `visit(byte)` for each byte of the token, until that returns false.
template <typename Visit>
void ForEachByte(const Tokenizer* tokenizer, int32_t token, Visit visit) {
  if (tokenizer != nullptr && tokenizer->contains(token)) {
    const TokenEntry& entry = tokenizer->entry(token);
    if (entry.kind == TokenKind::kText || entry.kind == TokenKind::kBytes) {
      for (const char c : entry.text) {
        if (!visit(static_cast<uint8_t>(c))) return;
      }
      return;
    }
  }
  const auto id = static_cast<uint32_t>(token);
  for (const uint32_t byte : std::array<uint32_t, 5>{0xff, id, id >> 8, id >> 16, id >> 24}) {
    if (!visit(static_cast<uint8_t>(byte))) return;
  }
}

}  // namespace

void ConversationDigest::Add(const Tokenizer* tokenizer, int32_t token) {
  ForEachByte(tokenizer, token, [this](uint8_t byte) {
    AddByte(*this, byte);
    return true;
  });
}

HistoryMatch MatchHistory(const Tokenizer* tokenizer, std::span<const int32_t> history,
                          const ConversationDigest& session) {
  ConversationDigest digest;
  HistoryMatch match;
  for (const int32_t token : history) {
    if (digest.bytes == session.bytes) break;
    bool whole = true;
    ForEachByte(tokenizer, token, [&](uint8_t byte) {
      whole = digest.bytes < session.bytes;
      if (whole) AddByte(digest, byte);
      return whole;
    });
    match.cuts_token = !whole;
    if (whole) ++match.tokens;
  }
  match.matches = digest == session;
  return match;
}

CommonText MatchTexts(const Tokenizer* tokenizer, std::span<const int32_t> a,
                      std::span<const int32_t> b) {
  CommonText common;
  size_t i = 0, j = 0;                 // tokens that are taken apart
  std::string ahead_of_a, ahead_of_b;  // bytes of theirs that the other has not matched
  const auto append = [&](std::string& bytes, int32_t token) {
    ForEachByte(tokenizer, token, [&](uint8_t byte) {
      bytes.push_back(static_cast<char>(byte));
      return true;
    });
  };
  for (;;) {
    const size_t both = std::min(ahead_of_a.size(), ahead_of_b.size());
    if (ahead_of_a.compare(0, both, ahead_of_b, 0, both) != 0) return common;
    ahead_of_a.erase(0, both);
    ahead_of_b.erase(0, both);
    if (ahead_of_a.empty() && ahead_of_b.empty()) {
      common = {static_cast<int64_t>(i), static_cast<int64_t>(j)};
    }
    if (ahead_of_a.empty()) {
      if (i == a.size()) return common;
      append(ahead_of_a, a[i++]);
    } else {
      if (j == b.size()) return common;
      append(ahead_of_b, b[j++]);
    }
  }
}

}  // namespace mneme
