#include "tokenizers/huggingface/byte_alphabet.h"

#include <set>

#include "base/utf8.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

TEST(ByteAlphabetTest, WritesPrintableBytesAsThemselvesAndOthersFromU0100) {
  EXPECT_EQ(InByteAlphabet(" Hi\n"), "ĠHiĊ");
  EXPECT_EQ(InByteAlphabet("é"), "Ã©");
  EXPECT_EQ(InByteAlphabet(absl::string_view("\0\x7F\x80\xA0\xAD", 5)), "ĀġĢłŃ");
}

TEST(ByteAlphabetTest, EveryByteHasACharacterOfItsOwnAndComesBack) {
  std::set<std::string> characters;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    AppendInByteAlphabet(static_cast<uint8_t>(byte), character);
    EXPECT_TRUE(IsValidUtf8(character));
    EXPECT_TRUE(characters.insert(character).second) << byte;
    bytes.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(FromByteAlphabet(InByteAlphabet(bytes)), bytes);
}

TEST(ByteAlphabetTest, TextOfOtherCharactersWritesNoBytes) {
  for (const absl::string_view text :
       {" ", "a b", "\n", "\u00AD", "\u00A0", "\u0144", "▁", "中", "😀", "\xC4", "\x80", "a\xFF"}) {
    EXPECT_EQ(FromByteAlphabet(text), std::nullopt) << text;
  }
  EXPECT_EQ(FromByteAlphabet(""), "");
}

}  // namespace
}  // namespace mneme
