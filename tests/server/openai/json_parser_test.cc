#include "server/openai/json_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<Json> Parse(const std::string& text, const JsonLimits& limits = {}) {
  WorkMeter meter;
  return ParseJson(text, limits, meter);
}

std::string Fault(const std::string& text, const JsonLimits& limits = {}) {
  const absl::StatusOr<Json> json = Parse(text, limits);
  EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
  return std::string(json.status().message());
}

TEST(JsonParserTest, GivesWhatTheLibraryGives) {
  for (const std::string text :
       {R"({"b": [1, -2, 3.5, 1e3, 18446744073709551615], "a": {"x": null, "y": [[], {}, ""]}})",
        R"([])", R"({})", R"("\u00e4\ud83d\ude00\n")", R"(-0)", R"( [true , false] )",
        R"({"": {"": ""}})", R"([[[{"a": [{"b": 1}, 2]}]], 3])"}) {
    const absl::StatusOr<Json> json = Parse(text);
    ASSERT_TRUE(json.ok()) << text << json.status();
    EXPECT_EQ(*json, Json::parse(text)) << text;
    EXPECT_EQ(json->dump(), Json::parse(text).dump());  // the order of fields, too
  }
}

TEST(JsonParserTest, NamesLimitsAndWhereTheyWereReached) {
  EXPECT_EQ(Fault(R"({"a": {"b": [[1]]}})", {.depth = 3}),
            "the body, at a.b, is nested deeper than 3 levels");
  EXPECT_EQ(Fault("[1, 2, 3]", {.values = 3}), "the body has more than 3 values");
  EXPECT_EQ(Fault(R"({"evil": [{}, {}, {}]})", {.lists_and_objects = 4}),
            "the body, at evil, has more than 4 lists and objects");
  EXPECT_THAT(Fault(R"({"a": {"b": 1, "c": 2, "d": 3}})", {.fields = 2}),
              HasSubstr("a has more than 2 fields"));
  EXPECT_THAT(Fault(R"({"a": 1, "b": 2, "c": 3})", {.fields = 2}),
              HasSubstr("the body has more than 2 fields"));
  EXPECT_THAT(Fault(R"({"a": {"b": 1, "b": 2}})"), HasSubstr("a.b is there twice"));
  EXPECT_EQ(FieldOf(Parse(R"({"a": {"b": 1, "b": 2}})").status()), "a.b");
}

TEST(JsonParserTest, ShowsLittleOfWhatIsLong) {
  const std::string digits(1'000'000, '9');
  for (const std::string& text :
       {digits, absl::StrCat("{\"temperature\": ", digits, "}"), absl::StrCat("[", digits, "x"),
        absl::StrCat("\"", digits), absl::StrCat("{\"", digits, "\": 1, \"", digits, "\": 2}")}) {
    EXPECT_LT(Fault(text).size(), 400);
  }
  EXPECT_THAT(Fault("{\"a\": tru}"), AllOf(HasSubstr("the body is not JSON"), HasSubstr("tru}")));
}

TEST(JsonParserTest, EndsOnceNobodyWaits) {
  int64_t looks = 0;
  WorkMeter meter([&looks]() -> absl::Status {
    return ++looks < 3 ? absl::OkStatus() : absl::CancelledError("left");
  });
  std::string text = "[0";
  for (int i = 0; i < 500'000; ++i) text += ",{}";
  const absl::StatusOr<Json> json = ParseJson(text + "]", {.lists_and_objects = 1 << 20}, meter);
  EXPECT_EQ(json.status().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(meter.done(), 100'000);
}

}  // namespace
}  // namespace mneme
