#include "tokenizers/huggingface/token_table.h"

#include <bit>
#include <cstring>

#include "absl/hash/hash.h"

namespace mneme {
namespace {

template <typename T>
uint64_t Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;  // 2^64 over the golden ratio

// Differs between runs, so that no file can be made whose keys meet.
const uint64_t kSeed = absl::HashOf(kOdd) | 1;

uint64_t Mix(uint64_t low, uint64_t high, uint64_t bytes) {
  using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(low ^ kSeed) * (high ^ (kSeed * kOdd + bytes));
  return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) * kOdd;
}

}  // namespace

TokenTable::TokenTable(size_t count) {
  const size_t slots = std::bit_ceil(count + count / 2 + 2);
  slots_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
}

TokenTable::Key TokenTable::MakeKey(absl::string_view key) {
  const char* const begin = key.data();
  const size_t bytes = key.size();
  Key made;
  made.bytes = static_cast<uint32_t>(bytes);
  // Two words that overlap hold every byte, and with the length they tell keys apart.
  if (bytes > kInlineBytes) {
    made.low = absl::HashOf(key);
  } else if (bytes >= 8) {
    made.low = Load<uint64_t>(begin);
    made.high = Load<uint64_t>(begin + bytes - 8);
  } else if (bytes >= 4) {
    made.low = Load<uint32_t>(begin);
    made.high = Load<uint32_t>(begin + bytes - 4);
  } else if (bytes > 0) {
    made.low = Load<uint8_t>(begin) | Load<uint8_t>(begin + bytes / 2) << 8 |
               Load<uint8_t>(begin + bytes - 1) << 16;
  }
  return made;
}

size_t TokenTable::HomeOf(const Key& key) const {
  return Mix(key.low, key.high, key.bytes) >> shift_;
}

size_t TokenTable::SlotOf(const Key& wanted, absl::string_view key) const {
  const size_t mask = slots_.size() - 1;
  for (size_t at = HomeOf(wanted);; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.id < 0) return at;
    if (slot.low != wanted.low || slot.bytes != wanted.bytes) continue;
    if (wanted.bytes <= kInlineBytes ? slot.high == wanted.high
                                     : std::memcmp(slot.text, key.data(), key.size()) == 0) {
      return at;
    }
  }
}

bool TokenTable::Insert(absl::string_view key, int32_t id) {
  const Key made = MakeKey(key);
  Slot& slot = slots_[SlotOf(made, key)];
  if (slot.id >= 0) return false;
  slot.low = made.low;
  slot.bytes = made.bytes;
  slot.id = id;
  if (made.bytes <= kInlineBytes) {
    slot.high = made.high;
  } else {
    slot.text = long_keys_.Add(key).data();
  }
  return true;
}

void TokenTable::InsertOrAssign(absl::string_view key, int32_t id) {
  if (!Insert(key, id)) slots_[SlotOf(MakeKey(key), key)].id = id;
}

}  // namespace mneme
