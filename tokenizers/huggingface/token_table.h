// Spellings to tokens: one look-up for each piece of a text.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/text_arena.h"

namespace mneme {

// Open addressing. Keys of up to sixteen bytes, nearly all, lie in the slots themselves, so that
// finding one touches one line of memory. After it is filled any thread may call Find.
class TokenTable {
 public:
  // How many rounds ahead is soon enough for Prefetch, and not too soon.
  static constexpr size_t kAhead = 8;

  // For at most `count` keys.
  explicit TokenTable(size_t count = 0);

  // Keeps the first id of a key that is there already, and returns false.
  bool Insert(absl::string_view key, int32_t id);
  // The last id of a key counts.
  void InsertOrAssign(absl::string_view key, int32_t id);

  // Asks for the memory that Insert and Find of `key` will look at: for loops that know some rounds
  // ahead what they will look for.
  void Prefetch(absl::string_view key) const { __builtin_prefetch(&slots_[HomeOf(MakeKey(key))]); }

  // The id of `key`; -1: none.
  int32_t Find(absl::string_view key) const { return slots_[SlotOf(MakeKey(key), key)].id; }

 private:
  struct Key {
    uint64_t low = 0, high = 0;  // all of its bytes, if they fit; else hash and 0
    uint32_t bytes = 0;
  };
  struct Slot {
    uint64_t low = 0;
    union {
      uint64_t high = 0;
      const char* text;  // of long keys
    };
    uint32_t bytes = 0;
    int32_t id = -1;  // -1: free
  };
  static constexpr size_t kInlineBytes = 16;

  static Key MakeKey(absl::string_view key);
  size_t HomeOf(const Key& key) const;  // where it is unless others were there before
  // Where `key` is, or the free slot where it would be.
  size_t SlotOf(const Key& wanted, absl::string_view key) const;

  std::vector<Slot> slots_;  // their number is a power of two
  int shift_ = 0;            // from 64 bits of hash to a slot
  TextArena long_keys_;
};

}  // namespace mneme
