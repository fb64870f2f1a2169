// Positions that a model puts between the tokens of a session.
#pragma once

#include <cstdint>

namespace mneme {

// `count` positions in front of every token whose number in its session, from 0, is a positive
// multiple of `every`. They are fed with that token, so that where they are follows from what a
// session was fed.
struct InsertedPositions {
  int64_t every = 0;  // 0: none are inserted
  int64_t count = 0;

  constexpr bool exist() const { return every > 0 && count > 0; }
  // Positions that the first `tokens` tokens of a session take.
  constexpr int64_t Of(int64_t tokens) const {
    return exist() && tokens > 0 ? tokens + (tokens - 1) / every * count : tokens;
  }
  // Those inserted in front of the tokens [first, end).
  constexpr int64_t Between(int64_t first, int64_t end) const {
    return Of(end) - Of(first) - (end - first);
  }
  // No step of so many tokens in so many rows has more.
  constexpr int64_t Most(int64_t tokens, int64_t rows) const {
    return exist() && tokens > 0 ? (rows + tokens / every) * count : 0;
  }
  // No row of so many tokens has more.
  constexpr int64_t MostOfRow(int64_t tokens) const { return Most(tokens, tokens > 0 ? 1 : 0); }

  friend constexpr bool operator==(const InsertedPositions&, const InsertedPositions&) = default;
};

}  // namespace mneme
