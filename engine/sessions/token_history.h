// The last tokens of a conversation, for penalties: bounded, and forked with its session.
#pragma once

#include <cstdint>
#include <optional>
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
  int size() const { return static_cast<int>(ring_.size()); }

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
