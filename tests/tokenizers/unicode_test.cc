// The result of the tokenizers package 0.23 stands beside its text, where a version of Unicode
// decides.
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/random_text.h"
#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/code_point.h"
#include "tokenizers/unicode/grapheme.h"
#include "tokenizers/unicode/lowercase.h"
#include "tokenizers/unicode/normal_form.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

std::string InForm(NormalForm form, absl::string_view text) {
  std::string storage;
  return std::string(Normalize(form, text, storage));
}

TEST(NormalForms, AreThoseOfUnicode9) {
  EXPECT_EQ(InForm(NormalForm::kNfc, "e\u0301\u0323 \u1100\u1161\u11A8 \u0958 \u212B"),
            "\u1EB9\u0301 \uAC01 \u0915\u093C \u00C5");
  EXPECT_EQ(InForm(NormalForm::kNfd, "\u1E69\uAC01"), "s\u0323\u0307\u1100\u1161\u11A8");
  EXPECT_EQ(InForm(NormalForm::kNfkc, "\uFB01\u2460\uFF21\u1E9B\u0323"), "fi1A\u1E69");
  EXPECT_EQ(InForm(NormalForm::kNfkd, "\u01C4\u1E9B"), "DZ\u030Cs\u0307");
  // Decompositions of Unicode 12.1 and 13.
  EXPECT_EQ(InForm(NormalForm::kNfkc, "\u32FF"), "\u32FF");
  EXPECT_EQ(InForm(NormalForm::kNfd, "\U00011938"), "\U00011938");
  EXPECT_EQ(InForm(NormalForm::kNfc, "\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(NormalForms, LeaveWhatIsInThemWhereItIs) {
  const std::string text = "plain ASCII, d\u00E9j\u00E0 vu, \u4E16\u754C, \uD55C\uAD6D\uC5B4";
  std::string storage;
  EXPECT_EQ(Normalize(NormalForm::kNfc, text, storage).data(), text.data());
  EXPECT_EQ(Normalize(NormalForm::kNfkc, text, storage).data(), text.data());
  EXPECT_EQ(Normalize(NormalForm::kNfd, "ASCII", storage), "ASCII");
  EXPECT_EQ(Normalize(NormalForm::kNfkd, "", storage), "");
}

TEST(NormalForms, AreReachedInOneStep) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = RandomText(random, 20);
    const std::string nfd = InForm(NormalForm::kNfd, text);
    const std::string nfc = InForm(NormalForm::kNfc, text);
    const std::string nfkd = InForm(NormalForm::kNfkd, text);
    const std::string nfkc = InForm(NormalForm::kNfkc, text);
    ASSERT_EQ(InForm(NormalForm::kNfd, nfd), nfd);
    ASSERT_EQ(InForm(NormalForm::kNfc, nfc), nfc);
    ASSERT_EQ(InForm(NormalForm::kNfd, nfc), nfd);
    ASSERT_EQ(InForm(NormalForm::kNfc, nfd), nfc);
    ASSERT_EQ(InForm(NormalForm::kNfkd, nfkc), nfkd);
    ASSERT_EQ(InForm(NormalForm::kNfkc, nfkd), nfkc);
  }
}

TEST(NormalForms, OrderLongRunsOfMarksAsShortOnes) {
  // Classes 230, 220 and 1, so many that they are counted and not inserted.
  std::string text = "a";
  std::string low, middle, high;
  for (int i = 0; i < 300000; ++i) {
    text += "\u0308\u0316\u0334";
    low += "\u0334";
    middle += "\u0316";
    high += "\u0308";
  }
  EXPECT_TRUE(InForm(NormalForm::kNfd, text) == "a" + low + middle + high);
}

TEST(LowercaseTest, GoesCharacterByCharacterAsOfUnicode17) {
  std::string storage;
  EXPECT_EQ(Lowercase("A\u03A3\u0130\u01C5\u1E9E\U00010400\U00016EA0", storage),
            "a\u03C3i\u0307\u01C6\u00DF\U00010428\U00016EBB");
  const std::string lower = "lower \u00E9\u03C2";
  EXPECT_EQ(Lowercase(lower, storage).data(), lower.data());
}

TEST(CharacterClasses, KnowWhatTheirVersionKnows) {
  const auto category = [](char32_t c) { return static_cast<GeneralCategory>(CategoryTable()[c]); };
  EXPECT_EQ(category('a'), GeneralCategory::kLl);
  EXPECT_EQ(category(0x1C89), GeneralCategory::kLu);  // Unicode 16
  EXPECT_EQ(category(0xA7CE), GeneralCategory::kCn);  // Unicode 17
  EXPECT_EQ(category(0x10FFFF), GeneralCategory::kCn);
  EXPECT_TRUE(HasFlag(0x11DE0, kNumericFlag));  // Unicode 17
  EXPECT_TRUE(HasFlag('$', kPunctuationFlag));
  EXPECT_TRUE(HasFlag(0x2026, kPunctuationFlag));
  EXPECT_FALSE(HasFlag(0x061D, kPunctuationFlag));  // Unicode 14
  EXPECT_TRUE(HasFlag(0x08D4, kMarkFlag));          // Unicode 9
  EXPECT_FALSE(HasFlag(0x07FD, kMarkFlag));         // Unicode 11
  EXPECT_FALSE(HasFlag(0x08D4, kBertMarkFlag));
  EXPECT_FALSE(HasFlag(0x0903, kBertMarkFlag));  // Mc
  EXPECT_TRUE(HasFlag(0x00AD, kBertControlFlag));
  EXPECT_FALSE(HasFlag(0x0378, kBertControlFlag));  // assigned nowhere, and yet left alone
  std::vector<char32_t> spaces;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (HasFlag(c, kWhiteSpaceFlag)) spaces.push_back(c);
  }
  EXPECT_THAT(spaces, ElementsAre(9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680, 0x2000, 0x2001,
                                  0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009,
                                  0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000));
}

TEST(CharacterClasses, OfPatternsHaveTheSizesOfUnicode16) {
  // Counts over all code points but surrogates, as the package counts them.
  const auto count = [](absl::string_view name) {
    int found = 0;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      found += static_cast<int>(*CategorySet(name) >> CategoryTable()[c] & 1);
    }
    return found;
  };
  EXPECT_EQ(count("L"), 141028);
  EXPECT_EQ(count("N"), 1911);
  EXPECT_EQ(count("M"), 2501);
  EXPECT_EQ(count("P"), 855);
  EXPECT_EQ(count("S"), 8514);
  EXPECT_EQ(count("Lu"), 1858);
  EXPECT_EQ(count("Ll"), 2258);
}

TEST(Graphemes, EndWhereAReaderSeesThemEnd) {
  const auto cut = [](absl::string_view text) {
    std::vector<std::string> parts;
    for (size_t at = 0; at < text.size();) {
      const size_t end = GraphemeEnd(text, at);
      parts.emplace_back(text.substr(at, end - at));
      at = end;
    }
    return parts;
  };
  EXPECT_THAT(cut("ae\u0301\r\n\n"), ElementsAre("a", "e\u0301", "\r\n", "\n"));
  EXPECT_THAT(cut("\u1112\u1161\u11AB\uAC00\u11A8\uAC01\u1161"),
              ElementsAre("\u1112\u1161\u11AB", "\uAC00\u11A8", "\uAC01", "\u1161"));
  EXPECT_THAT(cut("\U0001F1E9\U0001F1EA\U0001F1EB"),
              ElementsAre("\U0001F1E9\U0001F1EA", "\U0001F1EB"));
  EXPECT_THAT(cut("\u00A9\u200D\u00A9a\u200D\u00A9"),
              ElementsAre("\u00A9\u200D\u00A9", "a\u200D", "\u00A9"));
  EXPECT_THAT(cut("\u0915\u094D\u0937\u093F\u0915"),
              ElementsAre("\u0915\u094D\u0937\u093F", "\u0915"));
  EXPECT_THAT(cut("\u0600a"), ElementsAre("\u0600a"));
}

}  // namespace
}  // namespace mneme
