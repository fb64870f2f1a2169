#include "base/utf8.h"

#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

// The definition, for all of Unicode.
std::string Encode(uint32_t code_point) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | (code_point >> shift & 0x3F));
  };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) {
    return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  }
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8Test, EveryCodePointButSurrogatesIsValid) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(IsValidUtf8(Encode(c)), !surrogate) << std::hex << c;
  }
  for (const uint32_t c : {0x110000u, 0x13FFFFu, 0x1FFFFFu}) EXPECT_FALSE(IsValidUtf8(Encode(c)));
}

TEST(Utf8Test, OverlongFormsAndStrayBytesAreInvalid) {
  for (const char* text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF", "\x80", "\xBF", "\xFE", "\xFF", "\xF5\x80\x80\x80", "\xC3", "\xC3(",
        "\xE2\x82", "\xE2\x28\xA1", "\xF0\x9F\x98"}) {
    EXPECT_FALSE(IsValidUtf8(text)) << absl::CHexEscape(text);
    EXPECT_EQ(FirstInvalidUtf8(std::string("ab\xC3\xA9") + text), 4u) << absl::CHexEscape(text);
  }
}

TEST(Utf8Test, NulAndEmptyTextAreValid) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8(absl::string_view("a\0b", 3)));
}

// The suffix is what may still become a character: every proper prefix of every character.
TEST(Utf8Test, ProperPrefixesOfCharactersAreIncompleteSuffixes) {
  for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x1000 ? 1 : 7) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string character = Encode(c);
    for (size_t length = 0; length <= character.size(); ++length) {
      const std::string text = "x\xC3\xA9" + character.substr(0, length);
      const size_t want = length == character.size() ? 0 : length;
      ASSERT_EQ(IncompleteUtf8Suffix(text), want) << std::hex << c << " cut to " << length;
      ASSERT_EQ(CompleteUtf8Prefix(text), text.size() - want);
    }
  }
}

TEST(Utf8Test, BytesThatCannotBecomeACharacterAreNotHeldBack) {
  for (const char* text : {"\xE0\x80", "\xED\xA0", "\xF0\x8F", "\xF4\x90", "\xF5", "\xC1", "\x80",
                           "\x80\x80\x80", "\xF0\x9F\x28", "\xF8\x88\x80"}) {
    EXPECT_EQ(IncompleteUtf8Suffix(text), 0u) << absl::CHexEscape(text);
  }
}

// Expectations from Python: bytes.decode("utf-8", errors="replace").
TEST(Utf8Test, SanitizingReplacesMaximalIllFormedParts) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(SanitizeUtf8("plain \xC3\xA9"), "plain \xC3\xA9");
  EXPECT_EQ(SanitizeUtf8("a\xF0\x9F\x98z"), "a" + r + "z");
  EXPECT_EQ(SanitizeUtf8("\xE2\x82"), r);
  EXPECT_EQ(SanitizeUtf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(SanitizeUtf8("\xC0\xAF"), r + r);
  EXPECT_EQ(SanitizeUtf8("\xF0\x80\x80\x41"), r + r + r + "A");
  EXPECT_EQ(SanitizeUtf8("\xF1\x80\x80\xE1\x80\xC2\x62\x80"), r + r + r + "b" + r);
}

// Seed 1: random bytes from the ranges where the rules change.
TEST(Utf8Test, SplittingAStreamAtTheCompletePrefixChangesNothing) {
  const std::string bytes("\x24\x41\x80\x8F\x90\x9F\xA0\xBF\xC2\xE0\xE2\xED\xF0\xF4\xF5\xFF", 16);
  uint64_t draw = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    const int length = static_cast<int>(UniformFloat(1, 0, draw++) * 16);
    for (int i = 0; i < length; ++i) {
      text.push_back(bytes[static_cast<size_t>(UniformFloat(1, 0, draw++) * 16)]);
    }
    const std::string whole = SanitizeUtf8(text);
    ASSERT_TRUE(IsValidUtf8(whole));
    ASSERT_EQ(whole == text, IsValidUtf8(text)) << absl::CHexEscape(text);
    std::string streamed;
    std::string held;
    for (const char c : text) {
      held.push_back(c);
      const size_t ready = CompleteUtf8Prefix(held);
      streamed += SanitizeUtf8(held.substr(0, ready));
      held.erase(0, ready);
      ASSERT_LE(held.size(), 3u);
    }
    streamed += SanitizeUtf8(held);
    ASSERT_EQ(streamed, whole) << absl::CHexEscape(text);
  }
}

}  // namespace
}  // namespace mneme
