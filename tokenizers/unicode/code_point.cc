#include "tokenizers/unicode/code_point.h"

#include <cstring>

namespace mneme {

size_t SkipAscii(absl::string_view text, size_t offset) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (text.size() - offset >= 4 * sizeof(uint64_t)) {
    uint64_t words[4];
    std::memcpy(words, text.data() + offset, sizeof(words));
    if (((words[0] | words[1] | words[2] | words[3]) & kHighBits) != 0) break;
    offset += sizeof(words);
  }
  while (offset < text.size() && static_cast<unsigned char>(text[offset]) < 0x80) ++offset;
  return offset;
}

}  // namespace mneme
