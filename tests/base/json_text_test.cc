#include "base/json_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using testing::HasSubstr;
using testing::Not;

struct BadText {
  const char* name;
  std::string text;
  std::string message;  // all of it
};
void PrintTo(const BadText& bad, std::ostream* out) { *out << bad.name; }

class BadJsonTest : public testing::TestWithParam<BadText> {};

TEST_P(BadJsonTest, SaysWhereItIsAndWhatIsWrong) {
  const auto parsed = ParseJsonObject(GetParam().text, "config.json");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(parsed.status().message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadJsonTest,
    testing::Values(
        BadText{"empty", "", "config.json:1:1: not valid JSON: it is empty"},
        BadText{"cut", "{\n  \"a\": [1,",
                "config.json:2:11: not valid JSON: it ends before it is complete"},
        BadText{"cut_string", "{\"a",
                "config.json:1:4: not valid JSON: it ends before it is complete"},
        BadText{"trailing_comma", "{\n  \"a\": 1,\n}",
                "config.json:3:1: not valid JSON: unexpected \"}\" after a comma"},
        BadText{"missing_comma", "{\n  \"a\": 1\n  \"bc\": 2\n}",
                "config.json:3:3: not valid JSON: unexpected \"bc\", expected a comma or the end"},
        BadText{"missing_value", "{\"a\": }",
                "config.json:1:7: not valid JSON: unexpected \"}\", expected a value"},
        BadText{"key_without_quotes", "{a: 1}",
                "config.json:1:2: not valid JSON: unexpected \"a\", expected a key in quotes or "
                "\"}\""},
        BadText{"comment", "{\n// none\n}",
                "config.json:2:1: not valid JSON: unexpected \"/\", expected a key in quotes or "
                "\"}\""},
        BadText{"python_literal", "{\"a\": True}",
                "config.json:1:7: not valid JSON: unexpected \"T\", expected a value"},
        BadText{"more_than_one_value", "{} {}",
                "config.json:1:4: not valid JSON: unexpected \"{\", expected a comma or the end"},
        BadText{"not_utf8", "{\"a\xff\": 1}",
                "config.json:1:4: not valid JSON: byte 0xff is not UTF-8"},
        BadText{
            "control_character", "{\"a\": \"x\ty\"}",
            "config.json:1:9: not valid JSON: control character 0x09, expected \\n, \\t and the "
            "like inside of strings"},
        BadText{"bad_escape", "{\"a\": \"\\q\"}",
                "config.json:1:9: not valid JSON: an escape that JSON does not have, expected one "
                "such as \\n or \\u00e9"},
        BadText{"after_python_numbers", "{\"a\": NaN, \"b\": -Infinity, \"c\": }",
                "config.json:1:33: not valid JSON: unexpected \"}\", expected a value"},
        BadText{"number_too_large", "{\"a\": 1e999}",
                "config.json:1:7: not valid JSON: unexpected \"1e999\", expected a value"}),
    [](const auto& info) { return info.param.name; });

// Whatever the damage is, the parser's own words, with their error numbers, stay inside.
TEST(JsonTextTest, NoErrorShowsTheLibrary) {
  const std::string good =
      R"({"a": [1, -2.5e3, true, null], "b": {"c": "\u00e9\n", "d": {}}, "e": NaN})";
  ASSERT_TRUE(ParseJsonObject(good, "x").ok());
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', '"', '}', ',', '\\', 'x', '\xc3', '\n'}) {
      std::string text = good;
      text[at] = c;
      const auto parsed = ParseJsonObject(text, "x");
      if (parsed.ok()) continue;
      EXPECT_THAT(parsed.status().message(), HasSubstr("x:")) << text;
      EXPECT_THAT(parsed.status().message(), Not(HasSubstr("json.exception"))) << text;
      EXPECT_THAT(parsed.status().message(), Not(HasSubstr("syntax error"))) << text;
    }
    EXPECT_FALSE(ParseJsonObject(good.substr(0, at), "x").ok()) << at;
  }
}

TEST(JsonTextTest, NumbersWithoutEndArriveAsStringsHoweverTheyAreWritten) {
  const auto parsed = ParseJsonObject(
      R"({"a": [0, Infinity], "b": [0, {"__float__": "Infinity"}], "c": {"__float__": "-Infinity"},
          "d": {"e": {"__float__": "NaN"}, "f": NaN}, "g": {"__float__": "1"},
          "h": {"__float__": "NaN", "i": 1}, "j": {"__float__": NaN}})",
      "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->dump(),
            R"({"a":[0,"Infinity"],"b":[0,"Infinity"],"c":"-Infinity","d":{"e":"NaN","f":"NaN"},)"
            R"("g":{"__float__":"1"},"h":{"__float__":"NaN","i":1},"j":"NaN"})");
}

}  // namespace
}  // namespace mneme
