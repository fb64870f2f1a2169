#include "tokenizers/huggingface/word_piece.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/subword_model_of.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr absl::string_view kModel =
    R"({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 6,
        "vocab": {"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3, "##a": 4, "unaf": 5, "é": 6,
                  "##é": 7, "##f": 9, "##": 10}})";

// Expected ids are those of tokenizers 0.23.3 for this model.
TEST(WordPieceTest, TakesTheLongestTokenAndTheUnknownOneForAllThatIsLeftWithARest) {
  const auto model = SubwordModelOf(kModel);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::pair<absl::string_view, Ids> cases[] = {
      {"un", {1}},      {"unaf", {5}},   {"unaff", {5, 9}}, {"unable", {1, 3}},
      {"unaxe", {0}},   {"able", {0}},   {"##a", {4}},      {"éééééé", {6, 7, 7, 7, 7, 7}},
      {"ééééééé", {0}}, {"una", {1, 4}}, {"unablef", {0}},  {"unaf#", {0}},
      {"[UNK]", {0}},   {"##unaf", {0}}, {"###f", {0}},     {"##", {10}},
  };
  for (const auto& [piece, ids] : cases) EXPECT_EQ(*IdsOf(**model, piece), ids) << piece;
  EXPECT_EQ((*model)->unk_id(), 0);
  EXPECT_EQ((*model)->tokens().size(), 11u);
  EXPECT_EQ((*model)->tokens()[8], "");
}

TEST(WordPieceTest, CountsBytesWhereThePiecesAreBytes) {
  const auto model = SubwordModelOf(
      R"({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "#",
          "max_input_chars_per_word": 3, "vocab": {"Ã": 0, "#©": 1, "?": 2, "Ġ": 3}})",
      PieceAlphabet::kBytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*IdsOf(**model, "é"), (Ids{0, 1}));
  EXPECT_EQ(*IdsOf(**model, " "), (Ids{3}));
  EXPECT_EQ(*IdsOf(**model, "éé"), (Ids{2}));
}

TEST(WordPieceTest, WorkOnAHostileWordIsLinear) {
  std::string vocab = R"("[UNK]": 0, "a": 1, "##a": 2, "##)" + std::string(50, 'a') + R"(b": 3)";
  const auto model = SubwordModelOf(
      R"({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
          "max_input_chars_per_word": 2147483647, "vocab": {)" +
      vocab + "}}");
  ASSERT_TRUE(model.ok()) << model.status();
  const int64_t work = WorkOf(**model, std::string(10'000, 'a'));
  EXPECT_GT(work, 10'000);
  EXPECT_LE(WorkOf(**model, std::string(100'000, 'a')), 15 * work);
}

TEST(WordPieceTest, RefusesWhatItCannotUseAndSaysWhy) {
  const auto error = [](absl::string_view json) {
    return std::string(SubwordModelOf(json).status().message());
  };
  EXPECT_THAT(error(R"({"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 1,
                        "continuing_subword_prefix": ""})"),
              HasSubstr("t.json: model: key \"unk_token\" is null, expected a string"));
  EXPECT_THAT(error(R"({"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 1,
                        "unk_token": "a"})"),
              HasSubstr("key \"continuing_subword_prefix\" is null, expected a string"));
  EXPECT_THAT(error(R"({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
                        "continuing_subword_prefix": ""})"),
              HasSubstr("key \"max_input_chars_per_word\" is null, expected an integer"));
  EXPECT_THAT(error(R"({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
                        "continuing_subword_prefix": "", "max_input_chars_per_word": -1})"),
              HasSubstr("key \"max_input_chars_per_word\" is -1, expected an integer from 0"));
  EXPECT_THAT(error(R"({"type": "WordPiece", "vocab": [["a", 0]], "unk_token": "a",
                        "continuing_subword_prefix": "", "max_input_chars_per_word": 1})"),
              HasSubstr("key \"vocab\" is a list, expected an object from tokens to ids"));
  const auto model = SubwordModelOf(
      R"({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]",
          "continuing_subword_prefix": "", "max_input_chars_per_word": 1})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(std::string(IdsOf(**model, "b").status().message()),
              HasSubstr("cannot spell \"b\", and has no unknown token: \"[UNK]\" is not in it"));
}

TEST(WordLevelTest, APieceIsATokenOrTheUnknownOne) {
  const auto model = SubwordModelOf(
      R"({"type": "WordLevel", "unk_token": "?", "vocab": {"a": 3, "ab": 1, "?": 0}})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*IdsOf(**model, "ab"), (Ids{1}));
  EXPECT_EQ(*IdsOf(**model, "aba"), (Ids{0}));
  EXPECT_EQ(*IdsOf(**model, "a"), (Ids{3}));
  const auto without = SubwordModelOf(R"({"unk_token": "?", "vocab": {"a": 0}})");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(std::string(IdsOf(**without, "b").status().message()),
              HasSubstr("cannot spell \"b\", and has no unknown token: \"?\" is not in it"));
  EXPECT_THAT(
      std::string(SubwordModelOf(R"({"type": "WordLevel", "vocab": {"a": 0}})").status().message()),
      HasSubstr("key \"unk_token\" is null, expected a string"));
}

}  // namespace
}  // namespace mneme
