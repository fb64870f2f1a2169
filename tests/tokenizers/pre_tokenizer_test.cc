// Expected pieces are those of the tokenizers package 0.23 for the same pre-tokenizer and text.
#include "tokenizers/huggingface/pre_tokenizer.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/random_text.h"
#include "tokenizers/huggingface/byte_alphabet.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Pieces = std::vector<std::string>;

PreTokenization MakeFrom(absl::string_view config) {
  auto made = MakePreTokenizer(nlohmann::json::parse(config), "f/tokenizer.json");
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : PreTokenization();
}

// As the vocabulary spells them.
Pieces Cut(absl::string_view config, absl::string_view text, SectionContext context = {}) {
  const PreTokenization made = MakeFrom(config);
  if (made.pre_tokenizer == nullptr) return {std::string(text)};
  Pieces pieces;
  WorkMeter meter;
  const absl::Status status =
      made.pre_tokenizer->Split(text, context, meter, [&](absl::string_view piece, SectionContext) {
        pieces.push_back(made.alphabet == PieceAlphabet::kBytes ? InByteAlphabet(piece)
                                                                : std::string(piece));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

TEST(PreTokenizer, EachTypeCutsAsThePackageDoes) {
  const struct {
    const char *config, *text;
    Pieces expected;
  } kCases[] = {
      {R"({"type": "Whitespace"})",
       "Hey, don't: a_b \u00BDx\u0301",
       {"Hey", ",", "don", "'", "t", ":", "a_b", "\u00BD", "x\u0301"}},
      {R"({"type": "WhitespaceSplit"})", " Hey,\u3000you\n", {"Hey,", "you"}},
      {R"({"type": "BertPreTokenizer"})",
       "Hey, $5 a-b\u2026\u061Dx",
       {"Hey", ",", "$", "5", "a", "-", "b", "\u2026", "\u061Dx"}},
      {R"({"type": "Digits", "individual_digits": true})",
       "a1\u00B2\U00011DE0b",
       {"a", "1", "\u00B2", "\U00011DE0", "b"}},
      {R"({"type": "Digits", "individual_digits": false})", "a12b", {"a", "12", "b"}},
      {R"({"type": "Punctuation"})", "a,,b.", {"a", ",", ",", "b", "."}},
      {R"({"type": "Punctuation", "behavior": "Contiguous"})",
       "a,,b.c",
       {"a", ",,", "b", ".", "c"}},
      {R"({"type": "Punctuation", "behavior": "MergedWithNext"})",
       "a,,b.c.",
       {"a", ",", ",b", ".c", "."}},
      {R"({"type": "Punctuation", "behavior": "MergedWithPrevious"})",
       "a,,b.c.",
       {"a,", ",", "b.", "c."}},
      {R"({"type": "Punctuation", "behavior": "Removed"})", "a,,b.c.", {"a", "b", "c"}},
      {R"({"type": "CharDelimiterSplit", "delimiter": "|"})", "a||b|", {"a", "b"}},
      {R"({"type": "FixedLength", "length": 2})", "a\u00E9bcd", {"a\u00E9", "bc", "d"}},
      // Kana go with Han, spaces with anything; the space in front goes with nothing.
      {R"({"type": "UnicodeScripts"})",
       " a\u30A2\u6F22\u3042 \u30FC!\u042F \u0431",
       {"a", "\u30A2\u6F22\u3042 \u30FC", "!", "\u042F \u0431"}},
      {R"({"type": "Metaspace", "replacement": "_"})", "a  b", {"_a", "_", "_b"}},
      {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"})",
       "a  b ",
       {"a", "_", "_b", "_"}},
      {R"({"type": "Metaspace", "replacement": "_", "split": false})", " a b", {"_a_b"}},
      {R"({"type": "ByteLevel", "add_prefix_space": true})",
       "Hello  world's \u00E9\n",
       {"\u0120Hello", "\u0120", "\u0120world", "'s", "\u0120\u00C3\u00A9", "\u010A"}},
      {R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})",
       "a b",
       {"a\u0120b"}},
      {R"({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
           "invert": false})",
       "a b  c",
       {"a ", "b ", " ", "c"}},
      {R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Removed", "invert": true})",
       "a b, c",
       {"a", "b", "c"}},
      {R"({"type": "Sequence", "pretokenizers": []})", "a b", {"a b"}},
  };
  for (const auto& each : kCases)
    EXPECT_EQ(Cut(each.config, each.text), each.expected) << each.config;
}

TEST(PreTokenizer, StepsBehindByteLevelSeeItsAlphabet) {
  // Falcon's. U+00B2 is two bytes, of which one looks like a digit by then, and one like a letter.
  constexpr char kFalcon[] = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Punctuation", "behavior": "Contiguous"},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
      {"type": "Digits", "individual_digits": false},
      {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
       "invert": false}]})";
  EXPECT_EQ(MakeFrom(kFalcon).alphabet, PieceAlphabet::kBytes);
  EXPECT_THAT(Cut(kFalcon, "Hi 12345!? \u00E9"),
              ElementsAre("Hi", "\u0120", "123", "45", "!?", "\u0120\u00C3\u00A9"));
  EXPECT_THAT(Cut(kFalcon, "a\u00B2"), ElementsAre("a", "\u00C2", "\u00B2"));
}

TEST(PreTokenizer, MetaspacesFirstIsTheTextsFirst) {
  constexpr char kFirst[] =
      R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})";
  EXPECT_THAT(Cut(kFirst, "a b"), ElementsAre("_a", "_b"));
  EXPECT_THAT(Cut(kFirst, "a b", {.at_text_start = false}), ElementsAre("a", "_b"));
  constexpr char kWords[] = R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
      {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]})";
  EXPECT_THAT(Cut(kWords, "ab cd"), ElementsAre("_ab", "cd"));
  EXPECT_THAT(Cut(kWords, " ab cd"), ElementsAre("ab", "cd"));
}

TEST(PreTokenizer, NothingIsPutInFrontOfAContinuation) {
  constexpr SectionContext kContinuation{.at_text_start = false, .continuation = true};
  EXPECT_THAT(Cut(R"({"type": "Metaspace", "replacement": "_"})", "a b", kContinuation),
              ElementsAre("a", "_b"));
  EXPECT_THAT(Cut(R"({"type": "ByteLevel", "add_prefix_space": true})", "a b", kContinuation),
              ElementsAre("a", "\u0120b"));
  // The first of several pieces continues, the others are words of their own.
  constexpr char kWords[] = R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
      {"type": "Metaspace", "replacement": "_"}]})";
  EXPECT_THAT(Cut(kWords, "ab cd", kContinuation), ElementsAre("ab", "_cd"));
  EXPECT_THAT(Cut(kWords, " ab cd", kContinuation), ElementsAre("_ab", "_cd"));
}

TEST(PreTokenizer, PiecesThatAreIsolatedMakeTheText) {
  std::mt19937_64 random(1);
  const char* const kConfigs[] = {
      R"({"type": "Punctuation"})", R"({"type": "Digits", "individual_digits": true})",
      R"({"type": "ByteLevel", "add_prefix_space": false})",
      R"({"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\p{L}+|."}, "behavior": "Isolated",
          "invert": false})",
      R"({"type": "Split", "pattern": {"Regex": "\\p{N}|x*"}, "behavior": "Contiguous",
          "invert": true})"};
  for (const char* const config : kConfigs) {
    const PreTokenization made = MakeFrom(config);
    for (int i = 0; i < 500; ++i) {
      const std::string text = "x" + RandomText(random, 20);
      const std::string joined = absl::StrJoin(Cut(config, text), "");
      ASSERT_EQ(made.alphabet == PieceAlphabet::kBytes ? *FromByteAlphabet(joined) : joined, text)
          << config;
    }
  }
}

TEST(PreTokenizer, SinkAndMeterEndTheCutting) {
  const PreTokenization made = MakeFrom(R"({"type": "Sequence", "pretokenizers": [
      {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": true}]})");
  int pieces = 0;
  WorkMeter meter;
  EXPECT_EQ(made.pre_tokenizer->Split("a 1 b", {}, meter,
                                      [&](absl::string_view, SectionContext) {
                                        return ++pieces == 2 ? absl::AbortedError("enough")
                                                             : absl::OkStatus();
                                      }),
            absl::AbortedError("enough"));
  EXPECT_EQ(pieces, 2);
  WorkMeter unwanted([] { return absl::CancelledError("gone"); });
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(
      made.pre_tokenizer->Split(text, {}, unwanted,
                                [](absl::string_view, SectionContext) { return absl::OkStatus(); }),
      absl::CancelledError("gone"));
}

TEST(PreTokenizer, SaysWhichKeyIsWrongAndWhatWasExpected) {
  const auto refusal = [](absl::string_view config) {
    return MakePreTokenizer(nlohmann::json::parse(config), "f/tokenizer.json").status().ToString();
  };
  EXPECT_THAT(
      refusal(R"({"type": "Mystery"})"),
      AllOf(HasSubstr("UNIMPLEMENTED"),
            HasSubstr("f/tokenizer.json: pre_tokenizer.type is \"Mystery\", expected one")));
  EXPECT_THAT(refusal(R"({"type": "Sequence", "pretokenizers": [{"type": "Split",
                          "pattern": {"Regex": "a(?R)b"}, "behavior": "Isolated",
                          "invert": false}]})"),
              AllOf(HasSubstr("UNIMPLEMENTED"),
                    HasSubstr("pre_tokenizer.pretokenizers[0].pattern.Regex is \"a(?R)b\"")));
  EXPECT_THAT(refusal(R"({"type": "Split", "pattern": {"String": " "}, "invert": false,
                          "behavior": "isolated"})"),
              HasSubstr("pre_tokenizer.behavior is \"isolated\", expected one of Removed"));
  EXPECT_THAT(refusal(R"({"type": "Metaspace", "replacement": "__"})"),
              HasSubstr("pre_tokenizer.replacement is \"__\", expected a text of one character"));
  EXPECT_THAT(refusal(R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})"),
              HasSubstr("pre_tokenizer.add_prefix_space is false"));
  EXPECT_THAT(refusal(R"({"type": "FixedLength", "length": 0})"),
              HasSubstr("pre_tokenizer.length is 0, expected at least 1"));
  EXPECT_THAT(refusal(R"({"type": "Digits"})"),
              HasSubstr("pre_tokenizer.individual_digits absent, expected true or false"));
  EXPECT_THAT(refusal(R"({"type": "Sequence", "pretokenizers": [
                  {"type": "ByteLevel", "add_prefix_space": false},
                  {"type": "Metaspace", "replacement": "_"}]})"),
              HasSubstr("pre_tokenizer.pretokenizers[1].type is \"Metaspace\""));
}

}  // namespace
}  // namespace mneme
