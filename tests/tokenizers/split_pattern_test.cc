#include "tokenizers/huggingface/split_pattern.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/random_text.h"
#include "tokenizers/huggingface/word_scanner.h"
#include "tokenizers/regex/program.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Matches = std::vector<std::string>;

// The patterns that have scanners, as checkpoints write them.
const char* const kWordPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

template <typename Pattern>
Matches Found(const Pattern& pattern, absl::string_view text) {
  Matches matches;
  WorkMeter meter;
  const absl::Status status = pattern.FindAll(text, meter, [&](size_t begin, size_t end) {
    matches.push_back(std::string(text.substr(begin, end - begin)));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return matches;
}

Matches Found(const char* pattern, absl::string_view text) {
  const auto program = PatternProgram::Compile(pattern);
  EXPECT_TRUE(program.ok()) << pattern << ": " << program.status();
  return program.ok() ? Found(*program, text) : Matches();
}

TEST(WordScanner, FindsWhatThePatternFinds) {
  std::mt19937_64 random(1);
  for (const char* const pattern : kWordPatterns) {
    const auto scanner = MakeWordScanner(pattern);
    ASSERT_NE(scanner, nullptr) << pattern;
    const auto program = PatternProgram::Compile(pattern);
    ASSERT_TRUE(program.ok()) << program.status();
    for (int i = 0; i < 3000; ++i) {
      const std::string text = RandomText(random, 16);
      ASSERT_EQ(Found(*scanner, text), Found(*program, text)) << pattern << "\n" << text;
    }
  }
  EXPECT_EQ(MakeWordScanner(R"(\p{L}+)"), nullptr);
}

// The tokenizers package 0.23 gives the same pieces.
TEST(WordScanner, CutsAsTheModelsThatAreNamed) {
  const std::string text =
      "It's I'LL'\u017F  e\u0301\u0928\u093F HTTPServer's 1234\u00BD!?\n\n\t x \n ";
  const auto cut = [&](int pattern) {
    return Found(*MakeWordScanner(kWordPatterns[pattern]), text);
  };
  EXPECT_THAT(cut(0), ElementsAre("It", "'s", " I", "'", "LL", "'", "\u017F", " ", " e", "\u0301",
                                  "\u0928", "\u093F", " HTTPServer", "'s", " 1234\u00BD", "!?",
                                  "\n\n\t", " x", " \n "));
  EXPECT_THAT(cut(5), ElementsAre("It", "'s", " I", "'LL", "'\u017F", " ", " e", "\u0301\u0928",
                                  "\u093F", " HTTPServer", "'s", " ", "1", "2", "3", "4", "\u00BD",
                                  "!?\n\n", "\t", " x", " \n", " "));
  EXPECT_THAT(cut(6), ElementsAre("It", "'s", " I", "'LL", "'\u017F", " ", " e\u0301\u0928\u093F",
                                  " HTTPServer", "'s", " ", "1", "2", "3", "4", "\u00BD", "!?\n\n",
                                  "\t", " x", " \n", " "));
  EXPECT_THAT(cut(7),
              ElementsAre("It's", " I'LL", "'\u017F", " ", " e\u0301\u0928\u093F", " HTTPServer's",
                          " ", "123", "4\u00BD", "!?\n\n", "\t", " x", " \n", " "));
}

// Expected pieces are those of Oniguruma, which the tokenizers package 0.23 takes.
TEST(Pattern, MeansWhatOnigurumaMeans) {
  EXPECT_THAT(Found("^.", "ab\nc\n"), ElementsAre("a", "c"));
  EXPECT_THAT(Found("a$", "a\na"), ElementsAre("a", "a"));
  EXPECT_THAT(Found("\\s+\\z|\\A.", "a b \n"), ElementsAre("a", " \n"));
  EXPECT_THAT(Found("a*", "baac"), ElementsAre("", "aa", ""));
  EXPECT_THAT(Found("\\p{N}{1,3}+", "12345678"), ElementsAre("12345678"));
  EXPECT_THAT(Found("\\p{N}{1,3}", "12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(Found("a{,2}", "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(Found("a{1,2}?", "aaa"), ElementsAre("a", "a", "a"));
  EXPECT_THAT(Found("(?>a+)b|a", "aab a"), ElementsAre("aab", "a"));
  EXPECT_THAT(Found("(?>a+)a|b", "aab"), ElementsAre("b"));
  EXPECT_THAT(Found("a++a|b", "aab"), ElementsAre("b"));
  EXPECT_THAT(Found("(?:a|ab)c", "abc"), ElementsAre("abc"));
  EXPECT_THAT(Found("a|ab", "ab"), ElementsAre("a"));
  EXPECT_THAT(Found("(?<=a|bb)c", "ac bc bbc"), ElementsAre("c", "c"));
  EXPECT_THAT(Found("(?<!\\S)\\w", "ab c"), ElementsAre("a", "c"));
  EXPECT_THAT(Found("\\s+(?!\\S)|\\s+", "a   b "), ElementsAre("  ", " ", " "));
  EXPECT_THAT(Found("\\b\\w", "ab \u00BDc"), ElementsAre("a", "\u00BD"));
  EXPECT_THAT(Found("\\w+", "a\u00BDb"), ElementsAre("a\u00BDb"));
  EXPECT_THAT(Found("[\\w]+", "a\u00BDb"), ElementsAre("a", "b"));  // a quirk, but theirs
  EXPECT_THAT(Found("\\h+", "xfF0g"), ElementsAre("fF0"));
  EXPECT_THAT(Found("[[a-c]x]+", "abxd"), ElementsAre("abx"));
  EXPECT_THAT(Found("[^[a-c]x]+", "abxd"), ElementsAre("d"));
  EXPECT_THAT(Found("[]a-]+", "]a-b"), ElementsAre("]a-"));
  EXPECT_THAT(Found("(?i:k|'s)", "kK\u212A's'S'\u017F"),
              ElementsAre("k", "K", "\u212A", "'s", "'S", "'\u017F"));
  EXPECT_THAT(Found("(?i)[a-z]+", "aK\u017FZ"), ElementsAre("aK\u017FZ"));
  EXPECT_THAT(Found("(?m:a.b)|c.", "a\nbc\n"), ElementsAre("a\nb"));
  EXPECT_THAT(Found("\\p{Han}+|\\p{^Latin}", "a\u6F22\u5B57b1"), ElementsAre("\u6F22\u5B57", "1"));
  EXPECT_THAT(Found("\\u4E00|\\x41|\\x{1F600}", "\u4E00A\U0001F600"),
              ElementsAre("\u4E00", "A", "\U0001F600"));
  EXPECT_THAT(Found(" ?[^(\\s|[.,!?])]+", "ab(c) d,e|f"), ElementsAre("ab", "c", " d", "e", "f"));
  EXPECT_THAT(Found("\\s", "\u180E\u200B\u00A0\u0085"), ElementsAre("\u00A0", "\u0085"));
  EXPECT_THAT(Found("(a)(?<name>b)?(?#no)", "aba"), ElementsAre("ab", "a"));
  EXPECT_THAT(Found("", "\u00E9"), ElementsAre("", ""));
  EXPECT_THAT(Found("x", ""), IsEmpty());
}

TEST(Pattern, IsRefusedByNameWhereItMayMeanSomethingElse) {
  const auto refusal = [](const char* pattern) {
    return PatternProgram::Compile(pattern).status().ToString();
  };
  const auto unsupported = [](const char* what) {
    return AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr(what));
  };
  EXPECT_THAT(refusal("(a)\\1"), unsupported("an escape \"\\1\" at byte 5"));
  EXPECT_THAT(refusal("a\\K"), unsupported("an escape \"\\K\""));
  EXPECT_THAT(refusal("\\G\\d"), unsupported("an escape \"\\G\""));
  EXPECT_THAT(refusal("[a&&b]"), unsupported("an intersection \"&&\""));
  EXPECT_THAT(refusal("[[:alpha:]]"), unsupported("a class \"[:...:]\""));
  EXPECT_THAT(refusal("(?(1)a|b)"), unsupported("a group \"(?(\""));
  EXPECT_THAT(refusal("(?x:a)"), unsupported("a group \"(?x\""));
  EXPECT_THAT(refusal("a(?i)b"), unsupported("a \"(?i)\" that does not stand first"));
  EXPECT_THAT(refusal("(?i:stra\u00DFe)"), unsupported("\"st\" in any case"));
  EXPECT_THAT(refusal("(?i:\u00E9)"), unsupported("characters beyond ASCII in any case"));
  EXPECT_THAT(refusal("(?i:\\p{Lu})"), unsupported("a property in any case"));
  EXPECT_THAT(refusal("\\p{Emoji}"), unsupported("a property \"Emoji\""));
  EXPECT_THAT(refusal("(a*)*"), unsupported("a repeat of what can match nothing"));
  EXPECT_THAT(refusal("(?:^)?a"), unsupported("a quantifier of an assertion"));
  EXPECT_THAT(refusal("a**"), unsupported("a quantifier of a quantifier"));
  EXPECT_THAT(refusal("\\b.*b"), unsupported("\".*\" behind an assertion"));
  EXPECT_THAT(refusal("a{2}?"), unsupported("a quantifier \"{n}?\""));
  EXPECT_THAT(refusal("x{a}"), unsupported("a \"{\" that no backslash precedes"));
  EXPECT_THAT(refusal("(?<=a+)b"), unsupported("a look-behind of no fixed length"));
  EXPECT_THAT(refusal("a{100000}"), unsupported("a quantifier of more than 1000"));
  EXPECT_THAT(refusal("((a{1000}){1000}){1000}"), unsupported("too large"));
  EXPECT_THAT(refusal(std::string(1000, '(').c_str()), unsupported("groups that deep"));
  const auto invalid = [](const char* what) {
    return AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(what));
  };
  EXPECT_THAT(refusal("(a"), invalid("a \"(\" without a \")\" at byte 2"));
  EXPECT_THAT(refusal("a)"), invalid("\")\" without a \"(\""));
  EXPECT_THAT(refusal("[a"), invalid("a \"[\" without a \"]\""));
  EXPECT_THAT(refusal("+"), invalid("a quantifier of nothing"));
  EXPECT_THAT(refusal("[b-a]"), invalid("a range whose end comes before its beginning"));
  EXPECT_THAT(refusal("a\\"), invalid("a backslash at its end"));
  EXPECT_THAT(refusal("\xFF"), invalid("not valid UTF-8"));
}

int64_t WorkOf(const SplitPattern& pattern, absl::string_view text) {
  WorkMeter meter;
  const absl::Status status =
      pattern.FindAll(text, meter, [](size_t, size_t) { return absl::OkStatus(); });
  EXPECT_TRUE(status.ok()) << status;
  return meter.done();
}

TEST(Pattern, WorkIsLinearInTextsThatAreAllAlike) {
  std::vector<std::string> patterns(std::begin(kWordPatterns), std::end(kWordPatterns));
  for (const char* const pattern : kWordPatterns) {
    patterns.push_back(absl::StrCat("(?:", pattern, ")"));  // no scanner
  }
  patterns.push_back("\\s+(?!\\S)|\\s+");
  patterns.push_back(" ?[^\\s\\p{L}\\p{N}]+");
  patterns.push_back("\\p{N}{1,3}");
  // They find nothing, at any of a million beginnings and ends.
  patterns.push_back("a+[bc]");
  patterns.push_back(" ?[^\\s\\p{N}]+$x|\\s+\\zx|(?:\\s*[\\r\\n]+)?\\s+y");
  for (const std::string& pattern : patterns) {
    const auto compiled = CompileSplitPattern(pattern);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    for (const char* const unit : {" ", "\n", " \n", "a", "A", "Aa", "\u3042A", "a\u0301", "1", "!",
                                   "'", "\u4E00", " a", "\u00A0 "}) {
      std::string text;
      for (int i = 0; i < 3000; ++i) text += unit;
      const int64_t work = WorkOf(**compiled, text);
      for (int i = 0; i < 27000; ++i) text += unit;
      EXPECT_LE(WorkOf(**compiled, text), 15 * work) << pattern << " on " << unit;
    }
  }
}

TEST(Pattern, ThatTriesTheSameAgainAndAgainIsGivenUpOn) {
  const auto error = [](const char* pattern, const std::string& text) {
    const auto compiled = CompileSplitPattern(pattern);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    WorkMeter meter;
    return (*compiled)
        ->FindAll(text, meter, [](size_t, size_t) { return absl::OkStatus(); })
        .ToString();
  };
  EXPECT_THAT(
      error("(a+)+$", std::string(64, 'a') + "b"),
      AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("the pattern \"(a+)+$\" took more than"),
            HasSubstr("on a text of 65 bytes")));
  EXPECT_THAT(error("(?:a|aa)+[bc]", std::string(1000, 'a')), HasSubstr("took more than"));
  EXPECT_THAT(error("(?=(a+)+b)a", std::string(64, 'a')), HasSubstr("took more than"));
  EXPECT_THAT(error("(?:a+,?)+[bc]", std::string(1000, 'a')), HasSubstr("took more than"));
}

TEST(Pattern, StopsWhenNobodyWaits) {
  const auto compiled = CompileSplitPattern("a+b|a+c");
  ASSERT_TRUE(compiled.ok());
  WorkMeter meter([] { return absl::CancelledError("gone"); });
  EXPECT_EQ((*compiled)->FindAll(std::string(1 << 20, 'a'), meter,
                                 [](size_t, size_t) { return absl::OkStatus(); }),
            absl::CancelledError("gone"));
}

}  // namespace
}  // namespace mneme
