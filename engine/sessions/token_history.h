// The last tokens of a conversation, for penalties: bounded, and forked with its session.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/kernels.h"

namespace mneme {

// A ring of `capacity` tokens, each with the mark whether the model generated it or a client sent
// it. Copyable. Memory grows with the tokens up to the capacity.
class TokenHistory {
 public:
  explicit TokenHistory(int capacity = 0) : capacity_(capacity) {}

  void Push(int32_t token, bool generated);
  // Takes the newest token back.
  void PopLast();
  // As if all of it had come with prompts.
  void TakeAsPrompt();
  int size() const { return static_cast<int>(ring_.size()); }
  // In the place of a token that was forgotten.
  static constexpr int32_t kForgotten = std::numeric_limits<int32_t>::min();
  // Forgets tokens [begin, end), counted from the end: -1 is the newest. Those that it does not
  // have any more are no matter.
  void Forget(int64_t begin, int64_t end);
  // Oldest first: tokens, ~token of those that were generated, kForgotten.
  std::vector<int32_t> Marks() const;
  // The same history again, as far as the capacity goes.
  void Restore(std::span<const int32_t> marks);

  // Appends each distinct token once, with the number of times it was generated. The first call
  // counts the ring, later ones find the counts kept.
  void AppendDistinct(std::vector<HistoryToken>& out);

 private:
  struct Count {
    int32_t seen = 0;
    int32_t generated = 0;
  };

  void Add(int32_t mark, int by);

  int capacity_;
  size_t oldest_ = 0;          // of the full ring
  std::vector<int32_t> ring_;  // token, or ~token if generated
  std::optional<absl::flat_hash_map<int32_t, Count>> counts_;
};

}  // namespace mneme
