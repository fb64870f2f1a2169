#include "tokenizers/sentencepiece/charsmap.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace mneme {
namespace {

// Published tables have 350 KB or less; the check takes time in proportion.
constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr int kMaxMatches = 32;

uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
uint32_t Label(uint32_t unit) { return unit & ((1u << 31) | 0xFF); }
bool HasLeaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & ((1u << 31) - 1); }

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("broken normalisation table: ", what));
}

// Depth-first walk over the bases that some text reaches, each visited once. Subtrees may be
// shared.
class TrieWalk {
 public:
  TrieWalk(const std::vector<uint32_t>& units, absl::string_view replacements)
      : units_(units), replacements_(replacements), matches_(units.size(), kUnvisited) {}

  absl::Status Run() {
    if (absl::Status status = Enter(Offset(units_[0])); !status.ok()) return status;
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      if (frame.next_byte == 256) {
        const Frame done = frame;
        matches_[done.base] = static_cast<int8_t>(done.most_matches);
        stack_.pop_back();
        if (!stack_.empty()) {
          if (absl::Status status = Count(stack_.back(), done.base); !status.ok()) return status;
          ++stack_.back().next_byte;
        }
        continue;
      }
      const auto byte = static_cast<uint32_t>(frame.next_byte);
      const uint32_t index = frame.base ^ byte;
      const uint32_t unit = units_[index];
      if (Label(unit) != byte) {
        ++frame.next_byte;
        continue;
      }
      const uint32_t child = index ^ Offset(unit);
      frame.child_has_leaf = HasLeaf(unit);
      if (child < units_.size() && matches_[child] >= 0) {
        if (absl::Status status = Count(frame, child); !status.ok()) return status;
        ++frame.next_byte;
        continue;
      }
      if (absl::Status status = Enter(child); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int8_t kUnvisited = -1, kOnStack = -2;

  struct Frame {
    uint32_t base;
    int next_byte = 0;
    int most_matches = 0;  // on any path below this base
    bool child_has_leaf = false;
  };

  absl::Status Enter(uint32_t base) {
    if ((base | 0xFFu) >= units_.size()) {
      return Broken(absl::StrCat("a node at ", base, " of ", units_.size()));
    }
    if (matches_[base] == kOnStack) return Broken("a cycle");
    matches_[base] = kOnStack;
    stack_.push_back({base});
    return absl::OkStatus();
  }

  // `frame`'s current byte leads to `child`, which is done.
  absl::Status Count(Frame& frame, uint32_t child) {
    if (frame.child_has_leaf) {
      if (absl::Status status = CheckValue(child); !status.ok()) return status;
    }
    frame.most_matches =
        std::max(frame.most_matches, matches_[child] + (frame.child_has_leaf ? 1 : 0));
    return frame.most_matches <= kMaxMatches ? absl::OkStatus()
                                             : Broken("too many entries within one another");
  }

  absl::Status CheckValue(uint32_t base) const {
    const uint32_t value = Value(units_[base]);
    if (value >= replacements_.size()) {
      return Broken(absl::StrCat("a replacement at ", value, " of ", replacements_.size()));
    }
    if ((static_cast<uint8_t>(replacements_[value]) & 0xC0) == 0x80) {
      return Broken(absl::StrCat("a replacement at ", value, " inside a character"));
    }
    return absl::OkStatus();
  }

  const std::vector<uint32_t>& units_;
  const absl::string_view replacements_;
  std::vector<int8_t> matches_;  // by base: kUnvisited, kOnStack or most matches below
  std::vector<Frame> stack_;
};

// A table in its two parts.
struct CharsmapParts {
  std::vector<uint32_t> units;
  absl::string_view replacements;
};

absl::StatusOr<CharsmapParts> ReadCharsmap(absl::string_view charsmap) {
  if (charsmap.size() > kMaxBytes) {
    return Broken(absl::StrCat("it has ", charsmap.size(), " bytes, expected at most ", kMaxBytes));
  }
  uint32_t trie_bytes = 0;
  if (charsmap.size() <= sizeof(trie_bytes)) return Broken("truncated");
  std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
  charsmap.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes >= charsmap.size() || trie_bytes % sizeof(uint32_t) != 0) {
    return Broken(absl::StrCat("a trie of ", trie_bytes, " bytes in ", charsmap.size()));
  }
  CharsmapParts parts{.replacements = charsmap.substr(trie_bytes)};
  if (parts.replacements.back() != '\0') return Broken("the last replacement does not end");
  if (!IsValidUtf8(parts.replacements)) return Broken("a replacement is not valid UTF-8");
  parts.units.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(parts.units.data(), charsmap.data(), trie_bytes);
  if (absl::Status status = TrieWalk(parts.units, parts.replacements).Run(); !status.ok()) {
    return status;
  }
  return parts;
}

}  // namespace

absl::Status CheckCharsmap(absl::string_view charsmap) {
  return charsmap.empty() ? absl::OkStatus() : ReadCharsmap(charsmap).status();
}

absl::StatusOr<Charsmap> Charsmap::Parse(absl::string_view charsmap) {
  Charsmap result;
  if (charsmap.empty()) return result;
  absl::StatusOr<CharsmapParts> parts = ReadCharsmap(charsmap);
  if (!parts.ok()) return parts.status();
  result.units_ = std::move(parts->units);
  result.replacements_ = std::string(parts->replacements);
  return result;
}

std::optional<absl::string_view> Charsmap::ShortestMatch(absl::string_view text) const {
  if (units_.empty()) return std::nullopt;
  uint32_t base = Offset(units_[0]);
  for (const char c : text) {
    if (c == '\0') break;
    const uint32_t index = base ^ static_cast<unsigned char>(c);
    const uint32_t unit = units_[index];
    if (Label(unit) != static_cast<unsigned char>(c)) break;
    base = index ^ Offset(unit);
    if (HasLeaf(unit)) {
      // Up to its NUL.
      return absl::string_view(replacements_.data() + Value(units_[base]));
    }
  }
  return std::nullopt;
}

}  // namespace mneme
