// A digest of the tokens that a session was fed: enough to tell whether a history that a client
// sends again is the one the session remembers, without keeping that history.
#pragma once

#include <cstdint>
#include <span>

#include "tokenizers/tokenizer.h"

namespace mneme {

// Over the bytes that tokens stand for, so that one text is one digest however it was cut into
// tokens: what a model generates need not be cut as the tokenizer would cut it. A token without
// text (BOS, padding) counts as five bytes that no UTF-8 text contains.
struct ConversationDigest {
  int64_t bytes = 0;
  uint64_t hash = 0;

  // `tokenizer` may be null: then no token has text.
  void Add(const Tokenizer* tokenizer, int32_t token);

  friend bool operator==(const ConversationDigest&, const ConversationDigest&) = default;
};

// How a history begins with what a session was fed.
struct HistoryMatch {
  bool matches = false;
  int64_t tokens = 0;       // of the history that the session holds already
  bool cuts_token = false;  // the session ends inside of token `tokens`
};
HistoryMatch MatchHistory(const Tokenizer* tokenizer, std::span<const int32_t> history,
                          const ConversationDigest& session);

// Where two token sequences stand for the same bytes so far, with a token's end in both: the last
// such place, as numbers of tokens of each.
struct CommonText {
  int64_t a = 0, b = 0;
};
CommonText MatchTexts(const Tokenizer* tokenizer, std::span<const int32_t> a,
                      std::span<const int32_t> b);

}  // namespace mneme
