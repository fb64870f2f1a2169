#include "base/utf8.h"

#include <string>

namespace mneme {
namespace {

struct Sequence {
  // Bytes that belong together: a character, or a maximal ill-formed part; at least 1.
  size_t length;
  enum { kComplete, kIncomplete, kInvalid } state;  // kIncomplete: well-formed until the text ended
};

// Decodes the start of `text`, which is not empty. Table 3-7 of the Unicode standard: the second
// byte of a sequence has a range of its own after E0, ED, F0 and F4, every other one is 80..BF.
Sequence NextSequence(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, Sequence::kComplete};
  size_t length;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // below: overlong
    if (lead == 0xED) high = 0x9F;  // above: surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;   // below: overlong
    if (lead == 0xF4) high = 0x8F;  // above: beyond U+10FFFF
  } else {
    return {1, Sequence::kInvalid};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, Sequence::kIncomplete};
    if (byte(i) < low || byte(i) > high) return {i, Sequence::kInvalid};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Sequence::kComplete};
}

}  // namespace

bool IsValidUtf8(absl::string_view text) { return FirstInvalidUtf8(text) == text.size(); }

size_t FirstInvalidUtf8(absl::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const Sequence sequence = NextSequence(text.substr(offset));
    if (sequence.state != Sequence::kComplete) return offset;
    offset += sequence.length;
  }
  return offset;
}

size_t IncompleteUtf8Suffix(absl::string_view text) {
  // Only the last three bytes can begin a sequence that reaches beyond the end; the first lead byte
  // found going backwards decides, since what follows it are continuation bytes.
  for (size_t length = 1; length <= 3 && length <= text.size(); ++length) {
    const absl::string_view suffix = text.substr(text.size() - length);
    const auto first = static_cast<unsigned char>(suffix[0]);
    if (first >= 0x80 && first <= 0xBF) continue;
    const Sequence sequence = NextSequence(suffix);
    return sequence.state == Sequence::kIncomplete ? length : 0;
  }
  return 0;
}

std::string Shortened(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  const absl::string_view begin = text.substr(0, max_bytes);
  return std::string(begin.substr(0, CompleteUtf8Prefix(begin))) + "...";
}

std::string SanitizeUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Sequence sequence = NextSequence(text);
    const absl::string_view part = sequence.state == Sequence::kComplete
                                       ? text.substr(0, sequence.length)
                                       : kReplacementCharacter;
    out.append(part.data(), part.size());
    text.remove_prefix(sequence.length);
  }
  return out;
}

}  // namespace mneme
