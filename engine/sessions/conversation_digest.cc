#include "engine/sessions/conversation_digest.h"

#include <array>

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

}  // namespace mneme
