#include "tokenizers/unicode/lowercase.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tokenizers/unicode/code_point.h"
#include "tokenizers/unicode/code_point_table.h"
#include "tokenizers/unicode/tables.h"

namespace mneme {
namespace {

constexpr char32_t kCapitalIWithDotAbove = 0x130;

// Indexed by character: 0, or 1 more than the row of unicode_tables::LowercaseRows() that has it.
const CodePointTable& RowTable() {
  static const auto* const table = [] {
    const auto rows = unicode_tables::LowercaseRows();
    absl::flat_hash_map<char32_t, uint8_t> row_of;
    std::vector<char32_t> changes;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (char32_t c = rows[i].first; c <= rows[i].last; c += rows[i].stride) {
        row_of[c] = static_cast<uint8_t>(i + 1);
        changes.insert(changes.end(), {c, c + 1});
      }
    }
    return new CodePointTable(CodePointTable::Of(std::move(changes), [&](char32_t c) -> uint8_t {
      const auto found = row_of.find(c);
      return found == row_of.end() ? 0 : found->second;
    }));
  }();
  return *table;
}

constexpr bool IsAsciiUpper(char c) { return c >= 'A' && c <= 'Z'; }

// Where the first character that changes begins.
size_t FirstChange(absl::string_view text, const CodePointTable& rows) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      if (IsAsciiUpper(text[at])) return at;
      ++at;
      continue;
    }
    const CodePoint c = CodePointAt(text, at);
    if (c.value == kCapitalIWithDotAbove || rows[c.value] != 0) return at;
    at += c.length;
  }
  return at;
}

}  // namespace

absl::string_view Lowercase(absl::string_view text, std::string& storage) {
  const CodePointTable& rows = RowTable();
  size_t at = FirstChange(text, rows);
  if (at == text.size()) return text;
  storage.assign(text.data(), at);
  storage.reserve(text.size() + text.size() / 8);
  while (at < text.size()) {
    const char byte = text[at];
    if (static_cast<unsigned char>(byte) < 0x80) {
      storage += IsAsciiUpper(byte) ? static_cast<char>(byte | 0x20) : byte;
      ++at;
      continue;
    }
    const CodePoint c = CodePointAt(text, at);
    if (c.value == kCapitalIWithDotAbove) {
      storage += "i\u0307";
    } else if (const uint8_t row = rows[c.value]; row != 0) {
      AppendUtf8(static_cast<char32_t>(static_cast<int32_t>(c.value) +
                                       unicode_tables::LowercaseRows()[row - 1].difference),
                 storage);
    } else {
      storage.append(text.data() + at, c.length);
    }
    at += c.length;
  }
  return storage;
}

}  // namespace mneme
