#include "tokenizers/huggingface/json_scanner.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace mneme {
namespace {

using Json = nlohmann::json;

// Makes the value that the scanner's calls tell of.
class ValueMaker {
 public:
  bool Null() { return Put(nullptr); }
  bool Bool(bool value) { return Put(value); }
  bool Integer(uint64_t value) { return Put(value); }
  bool Number(absl::string_view, double value) { return Put(value); }
  bool String(absl::string_view value) { return Put(std::string(value)); }
  bool Key(absl::string_view key) {
    keys_.back() = std::string(key);
    return true;
  }
  bool BeginObject() { return Begin(Json::object()); }
  bool EndObject() { return End(); }
  bool BeginList() { return Begin(Json::array()); }
  bool EndList() { return End(); }

  const Json& value() const { return value_; }

 private:
  bool Begin(Json empty) {
    open_.push_back(std::move(empty));
    keys_.emplace_back();
    return true;
  }
  bool End() {
    Json ended = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return Put(std::move(ended));
  }
  bool Put(Json value) {
    if (open_.empty()) {
      value_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().push_back(std::move(value));
    } else {
      open_.back()[keys_.back()] = std::move(value);
    }
    return true;
  }

  std::vector<Json> open_;
  std::vector<std::string> keys_;
  Json value_;
};

std::optional<Json> Scanned(const std::string& text) {
  ValueMaker maker;
  JsonScanner scanner(text);
  const auto result = scanner.Scan(maker);
  EXPECT_NE(result, JsonScanner::Result::kEnded);
  EXPECT_LE(scanner.position(), text.size());
  if (result != JsonScanner::Result::kDone) return std::nullopt;
  return maker.value();
}

void ExpectAsTheParser(const std::string& text) {
  std::optional<Json> parsed;
  try {
    parsed = Json::parse(text);
  } catch (const Json::exception&) {
  }
  const std::optional<Json> scanned = Scanned(text);
  ASSERT_EQ(scanned.has_value(), parsed.has_value()) << text;
  if (!scanned.has_value()) return;
  ASSERT_EQ(*scanned, *parsed) << text;
}

TEST(JsonScannerTest, TakesWhatTheParserTakesAndRefusesWhatItRefuses) {
  for (const std::string text : {"",
                                 " ",
                                 "0",
                                 "-0",
                                 "-1",
                                 "01",
                                 "1.",
                                 ".5",
                                 "1.5e3",
                                 "1E-2",
                                 "1e",
                                 "+1",
                                 "1e999",
                                 "1e-999",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "-9223372036854775808",
                                 "null",
                                 "nul",
                                 "true",
                                 "truefalse",
                                 "[]",
                                 "[ ]",
                                 "[1,]",
                                 "[,1]",
                                 "[1 2]",
                                 "{}",
                                 "{ }",
                                 "{\"a\":1,}",
                                 "{\"a\"}",
                                 "{a:1}",
                                 "{\"a\":1}}",
                                 "[[[]],{\"b\":[{}]}]",
                                 "\"\"",
                                 "\"a",
                                 "\"\\",
                                 "\"\\u12",
                                 R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00\u0000")",
                                 R"("\ud83d")",
                                 R"("\ud83dx")",
                                 R"("\ud83d\u0041")",
                                 R"("\ude00")",
                                 R"("\x")",
                                 R"("\u12g4")",
                                 R"("\u+123")",
                                 "\"\x01\"",
                                 "\"é中😀\"",
                                 "\"\xC3\"",
                                 "\"\xED\xA0\x80\"",
                                 "\"\xF4\x90\x80\x80\"",
                                 "\"\x7F\"",
                                 "[1]x",
                                 "]",
                                 "}",
                                 ":",
                                 ",",
                                 "[}",
                                 "{]"}) {
    ExpectAsTheParser(text);
  }
}

TEST(JsonScannerTest, AgreesWithTheParserOnChangedTexts) {
  const std::string seed =
      R"({"model": {"vocab": {"a\u00e9": 0, "\"b": 12, "é": 3}, "merges": ["a b", ["a", "b"]],
          "x": [true, false, null, -1.5e-3, 0.0, 1e2]}, "empty": [{}, []]})";
  std::mt19937_64 random(19);
  const std::string spice = "\"\\{}[]:,0123456789.-+eEntfu \n\xC3\xA9\x80\x01";
  for (int round = 0; round < 5000; ++round) {
    std::string text = seed;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = spice[random() % spice.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 4);
          break;
        default:
          text.insert(at, 1, spice[random() % spice.size()]);
      }
    }
    ExpectAsTheParser(text);
  }
}

TEST(JsonScannerTest, EndsWhenTheHandlerHasEnough) {
  struct Impatient : ValueMaker {
    bool Integer(uint64_t value) { return value < 3; }
  };
  Impatient handler;
  JsonScanner scanner("[1, 2, 3, 4]");
  EXPECT_EQ(scanner.Scan(handler), JsonScanner::Result::kEnded);
  EXPECT_EQ(scanner.position(), 8u);
}

}  // namespace
}  // namespace mneme
