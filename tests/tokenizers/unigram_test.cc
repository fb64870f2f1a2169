#include "tokenizers/huggingface/unigram.h"

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

// Expected ids are those of tokenizers 0.23.3 for these models.
TEST(UnigramTest, GivesWhatTheReferenceGives) {
  struct Case {
    absl::string_view model, piece;
    Ids ids;
  };
  const Case cases[] = {
      {R"({"vocab": [["<unk>", 0], ["a", 0], ["b", 0], ["c", 0], ["d", 0], ["cd", 1], ["ab", 2],
                     ["abc", 5], ["abcd", 10]], "unk_id": 0})",
       "abcdacdxx",
       {8, 1, 5, 0}},
      // Among equal sums the path that was there first: that begins its last token first.
      {R"({"vocab": [["<unk>", -9], ["a", -1], ["b", -1], ["ab", -2]], "unk_id": 0})", "ab", {3}},
      {R"({"vocab": [["<unk>", -9], ["a", -1], ["aa", -2]], "unk_id": 0})", "aaa", {1, 2}},
      // The last of pieces that occur twice, with its score.
      {R"({"vocab": [["?", -9], ["a", -1], ["ab", -1], ["b", -1], ["ab", -5]], "unk_id": 0})",
       "ab",
       {1, 3}},
      {R"({"vocab": [["?", -9], ["a", -1], ["ab", -5], ["b", -1], ["ab", -1]], "unk_id": 0})",
       "ab",
       {4}},
      // Runs of unknown characters are one; so is the unknown token itself, where a text spells it.
      {R"({"vocab": [["<unk>", 0], ["a", -1]], "unk_id": 0})", "xyaéa中", {0, 1, 0, 1, 0}},
      {R"({"vocab": [["<unk>", 0], ["a", -1]], "unk_id": 0})", "x<unk>ya", {0, 1}},
      // A run that is a token, but scored less.
      {R"({"vocab": [["<unk>", 100], ["xx", 100], ["a", 101]], "unk_id": 0})", "axxa", {2, 1, 2}},
      {R"({"vocab": [["?", 0], ["<0xC3>", -1], ["<0xA9>", -1], ["a", -1]], "unk_id": 0,
           "byte_fallback": true})",
       "éaéxé",
       {1, 2, 3, 0}},
      {R"({"vocab": [["?", 0], ["<0xC3>", -1], ["<0xA9>", -1], ["a", -1]], "unk_id": 0})",
       "éaé",
       {0, 3, 0}},
      // A character that is no token costs ten more than the token of the lowest score.
      {R"({"vocab": [["?", 0], ["ab", -20.5], ["a", -1]], "unk_id": 0})", "ab", {1}},
      {R"({"vocab": [["?", 0], ["ab", -20.5], ["a", -1], ["b", -19.5]], "unk_id": 0})", "ab", {1}},
      // -0.1 - 0.2 is less than -0.3 in double precision.
      {R"({"vocab": [["?", 0], ["a", -0.1], ["b", -0.2], ["ab", -0.3]], "unk_id": 0})", "ab", {3}},
      {R"({"vocab": [["?", 0], ["a", -0.1], ["b", -0.7], ["ab", -0.8]], "unk_id": 0})",
       "ab",
       {1, 2}},
  };
  for (const auto& [json, piece, ids] : cases) {
    const auto model = SubwordModelOf(json);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto found = IdsOf(**model, piece);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, ids) << json << " " << piece;
  }
}

TEST(UnigramTest, WithoutAnUnknownTokenOnlyWhatItCanSpell) {
  const auto model = SubwordModelOf(R"({"type": "Unigram", "vocab": [["a", -1], ["xb", -2]]})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*IdsOf(**model, "aa"), (Ids{0, 0}));
  EXPECT_THAT(std::string(IdsOf(**model, "aéa").status().message()),
              HasSubstr("the vocabulary cannot spell \"\\u00e9\", and has no unknown token"));
  EXPECT_FALSE(IdsOf(**model, "xb").ok());  // "x" alone is looked at, too
}

TEST(UnigramTest, FindsBytesThatTheVocabularySpellsInTheByteAlphabet) {
  const auto model = SubwordModelOf(
      R"({"vocab": [["?", -9], ["Ġ", -1], ["Ã©", -1], ["<0xC4>", -1], ["<0xA2>", -1]],
          "unk_id": 0, "byte_fallback": true})",
      PieceAlphabet::kBytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*IdsOf(**model, " é "), (Ids{1, 2, 1}));
  EXPECT_EQ(*IdsOf(**model, "\x80"), (Ids{3, 4}));  // the alphabet's character has two bytes
  EXPECT_EQ(*IdsOf(**model, "\x81"), (Ids{0}));
}

TEST(UnigramTest, WorkOnALongPieceIsLinear) {
  const auto model = SubwordModelOf(
      R"({"vocab": [["<unk>", 0], ["a", -3], ["aa", -4], ["aaaaaaaaaaaaaaab", -5]], "unk_id": 0})");
  ASSERT_TRUE(model.ok()) << model.status();
  for (const std::string unit : {"a", "x", "中a"}) {
    std::string small, large;
    while (small.size() < 100'000) small += unit;
    while (large.size() < 1'000'000) large += unit;
    const int64_t work = WorkOf(**model, small);
    EXPECT_GT(work, 0);
    EXPECT_LE(WorkOf(**model, large), 15 * work) << unit;
  }
}

TEST(UnigramTest, RefusesWhatItCannotUseAndSaysWhy) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {R"({"type": "Unigram", "vocab": []})", "t.json: model: vocab is empty"},
      {R"({"type": "Unigram", "unk_id": 0})", "t.json: model: has no key \"vocab\""},
      {R"({"type": "Unigram", "vocab": {"a": 0}})", "key \"vocab\" is an object, expected a list"},
      {R"({"vocab": [["a", 0]], "unk_id": 1})",
       "key \"unk_id\" is 1, expected an integer from 0 t"},
      {R"({"vocab": [["a", 0]], "unk_id": "a"})", "key \"unk_id\" is \"a\", expected an integer"},
      {R"({"vocab": [["a", 0]], "byte_fallback": 1})", "key \"byte_fallback\" is 1, expected true"},
  };
  for (const auto& [json, error] : cases) {
    EXPECT_THAT(std::string(SubwordModelOf(json).status().message()), HasSubstr(std::string(error)))
        << json;
  }
}

}  // namespace
}  // namespace mneme
