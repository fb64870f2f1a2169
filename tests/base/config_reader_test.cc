#include "base/config_reader.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ConfigReaderTest, RemembersKeysAndTheValuesInForce) {
  const nlohmann::json object = {{"a", 1}, {"b", 2.5}, {"c", nullptr}, {"other", true}};
  ConfigReader reader(object, "file");
  EXPECT_EQ(reader.Int("a", 7, 0, 9), 1);
  EXPECT_EQ(reader.Number("b", 0, 0, 9), 2.5);
  EXPECT_EQ(reader.NullableInt("c", 0, 9), std::nullopt);
  EXPECT_EQ(reader.String("d", "x"), "x");
  EXPECT_TRUE(reader.Bool("e", true));
  for (const char* key : {"a", "b", "c", "d", "e"}) EXPECT_TRUE(reader.IsKnown(key)) << key;
  EXPECT_FALSE(reader.IsKnown("other"));
  EXPECT_EQ(reader.values(), "a 1\nb 2.5\nc null\nd \"x\"\ne true\n");
  EXPECT_TRUE(reader.status().ok());
}

TEST(ConfigReaderTest, ADefaultIsTheSameSpelledOutOrNot) {
  const nlohmann::json with = {{"a", 4}, {"b", 1}}, without = nlohmann::json::object();
  const auto values = [](const nlohmann::json& object) {
    ConfigReader reader(object, "file");
    reader.Int("a", 4, 0, 9);
    reader.Number("b", 1.0, 0, 9);
    return reader.values();
  };
  EXPECT_EQ(values(with), values(without));
}

TEST(ConfigReaderTest, ARefusedNumberIsNoneToGoOnWith) {
  for (const nlohmann::json& wrong :
       {nlohmann::json(0), nlohmann::json(-1), nlohmann::json(10), nlohmann::json("2"),
        nlohmann::json(true), nlohmann::json(2.5), nlohmann::json::array()}) {
    const nlohmann::json object = {{"heads", wrong}};
    ConfigReader reader(object, "file");
    EXPECT_EQ(reader.NullableInt("heads", 1, 9), std::nullopt) << wrong;
    EXPECT_EQ(reader.Int("heads", 7, 1, 9), 7) << wrong;
    EXPECT_THAT(reader.status().message(), testing::HasSubstr("\"heads\"")) << wrong;
  }
}

TEST(ConfigReaderTest, ValuesMayFollowFromOtherKeysOrNotCount) {
  const nlohmann::json object = {{"ratio", 2}, {"width", nullptr}, {"note", "text"}};
  ConfigReader reader(object, "file");
  reader.NullableInt("width", 1, 9);
  reader.Int("ratio", 1, 1, 9);
  reader.Keep("width", 8);
  reader.Disregard({"ratio", "note"});
  EXPECT_EQ(reader.values(), "width 8\n");
  EXPECT_TRUE(reader.IsKnown("note"));
}

TEST(ConfigReaderTest, HintsAreOfKeysThatNobodyAskedForAndLookLikeOnesThatSomebodyDid) {
  const nlohmann::json object = {{"num_head", 2}, {"lower_bound", 1}, {"entirely_else", 3}};
  ConfigReader reader(object, "file");
  reader.Int("num_heads", 1, 1, 9);
  reader.Disregard({"lower_bounds", "lower_bound"});
  EXPECT_THAT(reader.Hints(),
              ElementsAre("file: key \"num_head\" is unknown and ignored; did you mean "
                          "\"num_heads\"?"));
}

TEST(ConfigReaderTest, WhatIsWrongInAPartIsToldByTheWhole) {
  const nlohmann::json object = {{"part", {{"width", 0}, {"heigth", 3}}}};
  ConfigReader reader(object, "file");
  ConfigReader part(*reader.Find("part"), "file: \"part\"");
  part.Int("width", 1, 1, 9);
  part.Int("height", 1, 1, 9);
  reader.Adopt(part);
  EXPECT_THAT(reader.status().message(), HasSubstr("file: \"part\": key \"width\" is 0"));
  EXPECT_THAT(reader.Hints(), ElementsAre(HasSubstr("file: \"part\": key \"heigth\" is unknown")));
  EXPECT_EQ(reader.values(), "");
}

}  // namespace
}  // namespace mneme
