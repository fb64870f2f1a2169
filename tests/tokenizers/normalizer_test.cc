// Expected texts are those of the tokenizers package 0.23 for the same normalizer and text.
#include "tokenizers/huggingface/normalizer.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/random_text.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Made by SentencePiece from the rules a to X, U+0915 to K, U+00A9 to C.
constexpr char kSmallCharsmap[] =
    "AAQAAACAAQBhDQAABAAAgKkdAAAAAACApFgCAJUFAAACAACACQAAAAgAAAALAAAACgAAAA0AAAAMAAAADwAA"
    "AA4AAAARAAAAEAAAABMAAAASAAAAFQAAABQAAAAXAAAAFgAAABkAAAAYAAAAGwAAABoAAAAdAAAAHAAAAB8A"
    "AAAeAAAAIQAAACAAAAAjAAAAIgAAACUAAAAkAAAAJwAAACYAAAApAAAAKAAAACsAAAAqAAAALQAAACwAAAAv"
    "AAAALgAAADEAAAAwAAAAMwAAADIAAAA1AAAANAAAADcAAAA2AAAAOQAAADgAAAA7AAAAOgAAAD0AAAA8AAAA"
    "PwAAAD4AAABBAAAAQAAAAEMAAABCAAAARQAAAEQAAABHAAAARgAAAEkAAABIAAAASwAAAEoAAABNAAAATAAA"
    "AE8AAABOAAAAUQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAAWAAAAFsAAABaAAAAXQAAAFwA"
    "AABfAAAAXgAAAGEAAABgAAAAYwAAAGIAAABlAAAAZAAAAGcAAABmAAAAaQAAAGgAAABrAAAAagAAAG0AAABs"
    "AAAAbwAAAG4AAABxAAAAcAAAAHMAAAByAAAAdQAAAHQAAAB3AAAAdgAAAHkAAAB4AAAAewAAAHoAAAB9AAAA"
    "fAAAAH8AAAB+AAAA4IQAAIAAAACDAAAAggAAAIUAAACEAAAAhwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAA"
    "AIwAAACPAAAAjgAAAJEAAACQAAAAkwAAAJIAAACVAAAAlAAAAJcAAACWAAAAmQAAAJgAAACbAAAAmgAAAJ0A"
    "AACcAAAAnwAAAJ4AAAChAAAAoAAAAMIgAACiAAAApQAAAKQAAACnAAAApgAAAKkAAACoAAAAqwAAAKoAAACt"
    "AAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAAsgAAALUAAAC0AAAAtwAAALYAAAC5AAAAuAAAALsAAAC6AAAA"
    "vQAAALwAAAC/AAAAvgAAAMEAAADAAAAAwwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMgAAADLAAAAygAA"
    "AM0AAADMAAAAzwAAAM4AAADRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2wAAANoA"
    "AADdAAAA3AAAAN8AAADeAAAA4QAAAOAAAADjAAAA4gAAAOUAAADkAAAA5wAAAOYAAADpAAAA6AAAAOsAAADq"
    "AAAA7QAAAOwAAADvAAAA7gAAAPEAAADwAAAA8wAAAPIAAAD1AAAA9AAAAPcAAAD2AAAA+QAAAPgAAAD7AAAA"
    "+gAAAP0AAAD8AAAA/wAAAP4AAABDAEsAWAA=";

class NormalizerTest : public ::testing::Test {
 protected:
  static std::string Normalized(absl::string_view config, absl::string_view text,
                                SectionContext context = {}) {
    auto normalizer = MakeNormalizer(nlohmann::json::parse(config), "f/tokenizer.json");
    if (!normalizer.ok()) return std::string(normalizer.status().message());
    WorkMeter meter;
    std::string storage;
    const auto result = (*normalizer)->Normalize(text, context, meter, storage);
    return std::string(result.ok() ? *result : result.status().message());
  }

  static absl::Status Refusal(absl::string_view config) {
    return MakeNormalizer(nlohmann::json::parse(config), "f/tokenizer.json").status();
  }
};

TEST_F(NormalizerTest, EachTypeDoesAsThePackage) {
  const struct {
    const char* config;
    std::string text, expected;
  } kCases[] = {
      {R"({"type": "NFC"})", "e\u0301", "\u00E9"},
      {R"({"type": "NFKD"})", "\uFB01", "fi"},
      {R"({"type": "Lowercase"})", "\u0130X", "i\u0307x"},
      {R"({"type": "StripAccents"})", "e\u0301\u00E9\u0903\u08D4\u07FD", "e\u00E9\u07FD"},
      {R"({"type": "Nmt"})", std::string("a\x01") + "b\tc\u200Bd\u2581\uFEFF\x7F\u0085",
       "ab c d  \u0085"},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", "\u3000\u0085 a b\u2028\n",
       "a b"},
      {R"({"type": "Strip", "strip_left": false, "strip_right": true})", "  a  ", "  a"},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", " \n", ""},
      {R"({"type": "ByteLevel"})", "\u00E9 \n\u00AD", "\u00C3\u00A9\u0120\u010A\u00C2\u0143"},
      {R"({"type": "Prepend", "prepend": "_"})", "a", "_a"},
      {R"({"type": "Prepend", "prepend": "_"})", "", ""},
      {R"({"type": "Replace", "pattern": {"String": "''"}, "content": "\""})", "''a'''", "\"a\"'"},
      {R"({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "$1"})", "a   b ", "a$1b "},
      {R"({"type": "Replace", "pattern": {"Regex": "a*"}, "content": "-"})", "baac", "-b-c-"},
      {R"({"type": "Replace", "pattern": {"String": ""}, "content": "-"})", "a\u00E9",
       "-a-\u00E9-"},
  };
  for (const auto& each : kCases) {
    EXPECT_EQ(Normalized(each.config, each.text), each.expected) << each.config;
  }
}

TEST_F(NormalizerTest, BertCleansSpacesStripsAndLowers) {
  const std::string text = "\u00DCn\u00EFcode\u0007 \u6F22\u5B57\u00A0x\uFFFD\u3000\u1B6B \u0130";
  const auto config = [](const char* strip_accents) {
    return std::string(R"({"type": "BertNormalizer", "clean_text": true, "lowercase": true,
        "handle_chinese_chars": true, "strip_accents": )") +
           strip_accents + "}";
  };
  EXPECT_EQ(Normalized(config("null"), text), "unicode  \u6F22  \u5B57  x  i");
  EXPECT_EQ(Normalized(config("false"), "\u00DCn\u00EFcode"), "\u00FCn\u00EFcode");
}

TEST_F(NormalizerTest, SequencesRunInTheirOrder) {
  constexpr absl::string_view kLlama = R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  EXPECT_EQ(Normalized(kLlama, "a b"), "▁a▁b");
  EXPECT_EQ(Normalized(kLlama, ""), "");
  EXPECT_EQ(Normalized(R"({"type": "Sequence", "normalizers": [
      {"type": "Strip", "strip_left": true, "strip_right": true},
      {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
      {"type": "Sequence", "normalizers": []},
      {"type": "Strip", "strip_left": true, "strip_right": true},
      {"type": "Prepend", "prepend": "x"}]})",
                       "  \u0301 \u00C9A "),
            "xea");
}

TEST_F(NormalizerTest, NothingIsPutInFrontOfAContinuation) {
  const SectionContext continuation{.at_text_start = false, .continuation = true};
  EXPECT_EQ(Normalized(R"({"type": "Prepend", "prepend": "▁"})", "a", continuation), "a");
}

TEST_F(NormalizerTest, SentencePiecesTableReplacesShortClustersWhole) {
  const std::string config =
      std::string(R"({"type": "Precompiled", "precompiled_charsmap": ")") + kSmallCharsmap + "\"}";
  EXPECT_EQ(Normalized(config, "abc \u0915\u0916"), "Xbc K\u0916");
  EXPECT_EQ(Normalized(config, "a\u0301b\u0301"), "Xb\u0301");
  // Six bytes or more: each character alone.
  EXPECT_EQ(Normalized(config, "a\u0301\u0301\u0301"), "X\u0301\u0301\u0301");
  EXPECT_EQ(Normalized(config, "\u00A9\u200D\u00A9 \u00A9\u200D"), "C\u200DC C");
}

TEST_F(NormalizerTest, WorkIsLinearInMarksAndCounted) {
  auto normalizer = MakeNormalizer(nlohmann::json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+$"}, "content": ""}]})"),
                                   "f");
  ASSERT_TRUE(normalizer.ok()) << normalizer.status();
  const auto work = [&](int marks) {
    std::string text = "a";
    for (int i = 0; i < marks; ++i) text += i % 2 == 0 ? "\u0301" : "\u0316";
    WorkMeter meter;
    std::string storage;
    EXPECT_TRUE((*normalizer)->Normalize(text, {}, meter, storage).ok());
    return meter.done();
  };
  EXPECT_LE(work(100000), 15 * work(10000));
}

TEST_F(NormalizerTest, SaysWhichKeyIsWrongAndWhatWasExpected) {
  EXPECT_THAT(Refusal(R"({"type": "NFX"})").ToString(),
              AllOf(HasSubstr("UNIMPLEMENTED"),
                    HasSubstr("f/tokenizer.json: normalizer.type is \"NFX\", expected one of")));
  EXPECT_THAT(
      Refusal(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]})")
          .message(),
      HasSubstr("normalizer.normalizers[1].strip_left absent, expected true or false"));
  EXPECT_THAT(Refusal(R"({"type": "Sequence", "normalizers": {}})").message(),
              HasSubstr("normalizer.normalizers is {}, expected a list"));
  EXPECT_THAT(Refusal(R"({"type": "Replace", "pattern": " ", "content": ""})").message(),
              HasSubstr("normalizer.pattern is \" \", expected {\"String\": ...}"));
  EXPECT_THAT(
      Refusal(R"({"type": "Replace", "pattern": {"Regex": "(a"}, "content": ""})").message(),
      HasSubstr("normalizer.pattern.Regex is \"(a\", expected a pattern: it has a \"(\""));
  EXPECT_THAT(Refusal(R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})").message(),
              HasSubstr("normalizer.precompiled_charsmap"));
  EXPECT_THAT(Refusal(R"([])").message(), HasSubstr("normalizer is [], expected an object"));
  nlohmann::json nested = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  EXPECT_THAT(MakeNormalizer(nested, "f").status().message(), HasSubstr("no deeper"));
}

}  // namespace
}  // namespace mneme
