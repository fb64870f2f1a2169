#include "tokenizers/unicode/normal_form.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tokenizers/unicode/code_point.h"
#include "tokenizers/unicode/code_point_table.h"
#include "tokenizers/unicode/tables.h"

namespace mneme {
namespace {

// Hangul's syllables, chapter 3.12 of the Unicode standard.
constexpr char32_t kLeadBase = 0x1100, kVowelBase = 0x1161, kTrailBase = 0x11A7,
                   kSyllableBase = 0xAC00;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28, kSyllables = kLeads * kVowels * kTrails;

constexpr bool IsSyllable(char32_t c) { return c - kSyllableBase < kSyllables; }

// The properties of a character that the quick checks and the steps ask for.
enum Property : uint8_t {
  kHasClass = 1 << 0,           // its combining class is not 0
  kDecomposes = 1 << 1,         // canonically
  kDecomposesFully = 1 << 2,    // canonically or by compatibility
  kDecomposesForGood = 1 << 3,  // canonically, and NFC does not put it together again
  kComposesBackward = 1 << 4,   // with what stands before it
  kChangesFully = 1 << 5,       // its complete decompositions differ
};

class NormalFormTables {
 public:
  static const NormalFormTables& Get() {
    static const auto* const tables = new NormalFormTables();
    return *tables;
  }

  uint8_t properties(char32_t c) const { return properties_[c]; }
  uint8_t combining_class(char32_t c) const { return classes_[c]; }

  // Calls `put` for each character of the complete decomposition.
  template <typename Put>
  void Decompose(char32_t c, bool compatibility, const Put& put) const {
    const uint8_t wanted = compatibility ? kDecomposesFully : kDecomposes;
    if ((properties_[c] & wanted) == 0) {
      put(c);
    } else if (IsSyllable(c)) {
      const char32_t index = c - kSyllableBase;
      put(kLeadBase + index / (kVowels * kTrails));
      put(kVowelBase + index / kTrails % kVowels);
      if (index % kTrails != 0) put(kTrailBase + index % kTrails);
    } else if (compatibility && full_.contains(c)) {
      const auto mapping = unicode_tables::CompatibilityMappings().subspan(full_.at(c));
      for (const uint32_t part : mapping.subspan(1, mapping[0] & 0xFF)) put(part);
    } else {
      // At most four steps, as decompositions nest that deep.
      const auto& row = unicode_tables::CanonicalRows()[steps_.at(c)];
      Decompose(row.first, compatibility, put);
      if (row.second != 0) Decompose(row.second, compatibility, put);
    }
  }

  // The composition under NFC of two characters next to one another.
  std::optional<char32_t> Compose(char32_t first, char32_t second) const {
    if (first - kLeadBase < kLeads && second - kVowelBase < kVowels) {
      return kSyllableBase + ((first - kLeadBase) * kVowels + second - kVowelBase) * kTrails;
    }
    if (IsSyllable(first) && (first - kSyllableBase) % kTrails == 0 && second > kTrailBase &&
        second < kTrailBase + kTrails) {
      return first + (second - kTrailBase);
    }
    if ((properties_[second] & kComposesBackward) == 0) return std::nullopt;
    const auto found = pairs_.find({first, second});
    if (found == pairs_.end()) return std::nullopt;
    return found->second;
  }

 private:
  NormalFormTables() : classes_(unicode_tables::CombiningClassRuns()) {
    absl::flat_hash_map<char32_t, uint8_t> properties;
    const auto rows = unicode_tables::CanonicalRows();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto& row = rows[i];
      steps_[row.from] = static_cast<uint16_t>(i);
      properties[row.from] |= kDecomposes | kDecomposesFully;
      if (row.composes) {
        pairs_[{row.first, row.second}] = row.from;
        properties[row.second] |= kComposesBackward;
      } else {
        properties[row.from] |= kDecomposesForGood;
      }
    }
    const auto full = unicode_tables::CompatibilityMappings();
    for (size_t i = 0; i < full.size(); i += 1 + (full[i] & 0xFF)) {
      full_[full[i] >> 8] = static_cast<uint16_t>(i);
      properties[full[i] >> 8] |= kDecomposesFully | kChangesFully;
    }
    for (const auto& row : rows) {
      if (PartsChangeFully(row.from)) properties[row.from] |= kChangesFully;
    }
    for (char32_t i = 0; i < kVowels; ++i) properties[kVowelBase + i] |= kComposesBackward;
    for (char32_t i = 1; i < kTrails; ++i) properties[kTrailBase + i] |= kComposesBackward;
    std::vector<char32_t> changes = {kSyllableBase, kSyllableBase + kSyllables};
    AppendChanges(unicode_tables::CombiningClassRuns(), changes);
    for (const auto& [c, bits] : properties) changes.insert(changes.end(), {c, c + 1});
    properties_ = CodePointTable::Of(std::move(changes), [&](char32_t c) -> uint8_t {
      uint8_t value = classes_[c] != 0 ? kHasClass : 0;
      if (IsSyllable(c)) value |= kDecomposes | kDecomposesFully;
      const auto found = properties.find(c);
      return found == properties.end() ? value : value | found->second;
    });
  }

  bool PartsChangeFully(char32_t c) const {
    if (full_.contains(c)) return true;
    const auto step = steps_.find(c);
    if (step == steps_.end()) return false;
    const auto& row = unicode_tables::CanonicalRows()[step->second];
    return PartsChangeFully(row.first) || (row.second != 0 && PartsChangeFully(row.second));
  }

  CodePointTable classes_;
  CodePointTable properties_{std::span<const uint32_t>()};
  absl::flat_hash_map<char32_t, uint16_t> steps_;  // rows of CanonicalRows()
  absl::flat_hash_map<char32_t, uint16_t> full_;   // where in CompatibilityMappings()
  absl::flat_hash_map<std::pair<char32_t, char32_t>, char32_t> pairs_;
};

// One stretch of text that begins with a character that nothing before it touches.
class Stretch {
 public:
  Stretch(const NormalFormTables& tables, NormalForm form)
      : tables_(tables),
        compose_(form == NormalForm::kNfc || form == NormalForm::kNfkc),
        compatibility_(form == NormalForm::kNfkc || form == NormalForm::kNfkd) {}

  void Add(char32_t c) {
    tables_.Decompose(c, compatibility_, [this](char32_t part) {
      characters_.push_back({part, tables_.combining_class(part)});
    });
  }

  void AppendTo(std::string& text) {
    Reorder();
    if (compose_) Compose();
    for (const Character& c : characters_) AppendUtf8(c.value, text);
    characters_.clear();
  }

 private:
  struct Character {
    char32_t value;
    uint8_t combining_class;
  };

  // Each run of marks in order of their classes, equal ones as they were.
  void Reorder() {
    const auto by_class = [](const Character& a, const Character& b) {
      return a.combining_class < b.combining_class;
    };
    auto begin = characters_.begin();
    while (begin != characters_.end()) {
      if (begin->combining_class == 0) {
        ++begin;
        continue;
      }
      const auto end = std::find_if(begin, characters_.end(),
                                    [](const Character& c) { return c.combining_class == 0; });
      if (end - begin <= kFew) {
        // Insertion: no memory of its own.
        for (auto at = begin; at != end; ++at) {
          std::rotate(std::upper_bound(begin, at, *at, by_class), at, at + 1);
        }
      } else {
        CountingSort({begin, end});
      }
      begin = end;
    }
  }

  static void CountingSort(std::span<Character> marks) {
    std::array<size_t, 257> begins = {};
    for (const Character& mark : marks) ++begins[mark.combining_class + 1];
    for (size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
    std::vector<Character> sorted(marks.size());
    for (const Character& mark : marks) sorted[begins[mark.combining_class]++] = mark;
    std::copy(sorted.begin(), sorted.end(), marks.begin());
  }

  // The canonical composition algorithm of UAX #15.
  void Compose() {
    size_t kept = 0;
    std::optional<size_t> starter;
    int last_class = -1;  // of what stands between the starter and here; -1: nothing
    for (const Character& c : characters_) {
      if (starter.has_value() && last_class < static_cast<int>(c.combining_class)) {
        const auto together = tables_.Compose(characters_[*starter].value, c.value);
        if (together.has_value()) {
          characters_[*starter].value = *together;
          continue;
        }
      }
      if (c.combining_class == 0) {
        starter = kept;
        last_class = -1;
      } else {
        last_class = c.combining_class;
      }
      characters_[kept++] = c;
    }
    characters_.resize(kept);
  }

  static constexpr ptrdiff_t kFew = 16;

  const NormalFormTables& tables_;
  const bool compose_, compatibility_;
  std::vector<Character> characters_;
};

// Finds where a text is not in its form.
class QuickCheck {
 public:
  QuickCheck(const NormalFormTables& tables, NormalForm form) : tables_(tables) {
    switch (form) {
      case NormalForm::kNfc:
        changes_ = kDecomposesForGood | kComposesBackward;
        break;
      case NormalForm::kNfd:
        changes_ = kDecomposes;
        break;
      case NormalForm::kNfkc:
        changes_ = kDecomposesForGood | kComposesBackward | kChangesFully;
        break;
      case NormalForm::kNfkd:
        changes_ = kDecomposesFully;
        break;
    }
  }

  // Whether nothing that stands before the character changes with it, and the character alone is in
  // the form.
  bool IsBoundary(char32_t c) const {
    const uint8_t properties = tables_.properties(c);
    return properties == 0 || ((properties & kHasClass) == 0 && !Changes(properties));
  }

  // The first boundary at or after `at` with something behind it, before the next boundary, that
  // may not be in the form; text.size() if there is none. `at` is a boundary.
  size_t NextStretch(absl::string_view text, size_t at) const {
    size_t boundary = at;
    uint8_t last_class = 0;
    while (at < text.size()) {
      if (static_cast<unsigned char>(text[at]) < 0x80) {
        const size_t end = SkipAscii(text, at);
        boundary = end - 1;
        last_class = 0;
        at = end;
        continue;
      }
      const CodePoint c = CodePointAt(text, at);
      const uint8_t properties = tables_.properties(c.value);
      if (properties == 0) {
        boundary = at;
        last_class = 0;
      } else {
        if (Changes(properties)) return boundary;
        if ((properties & kHasClass) == 0) {
          boundary = at;
          last_class = 0;
        } else {
          const uint8_t combining_class = tables_.combining_class(c.value);
          if (combining_class < last_class) return boundary;
          last_class = combining_class;
        }
      }
      at += c.length;
    }
    return text.size();
  }

 private:
  bool Changes(uint8_t properties) const { return (properties & changes_) != 0; }

  const NormalFormTables& tables_;
  uint8_t changes_ = 0;
};

}  // namespace

absl::string_view Normalize(NormalForm form, absl::string_view text, std::string& storage) {
  if (SkipAscii(text, 0) == text.size()) return text;
  const NormalFormTables& tables = NormalFormTables::Get();
  const QuickCheck check(tables, form);
  size_t begin = check.NextStretch(text, 0);
  if (begin == text.size()) return text;
  Stretch stretch(tables, form);
  storage.clear();
  storage.reserve(text.size() + text.size() / 8);
  size_t done = 0;
  while (begin < text.size()) {
    storage.append(text.data() + done, begin - done);
    size_t end = begin;
    do {
      const CodePoint c = CodePointAt(text, end);
      stretch.Add(c.value);
      end += c.length;
    } while (end < text.size() && !check.IsBoundary(CodePointAt(text, end).value));
    stretch.AppendTo(storage);
    done = end;
    begin = check.NextStretch(text, end);
  }
  storage.append(text.data() + done, text.size() - done);
  return storage;
}

}  // namespace mneme
