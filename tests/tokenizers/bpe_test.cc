#include "tokenizers/huggingface/bpe.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/subword_model_of.h"
#include "tokenizers/huggingface/symbol_merger.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

// Expected ids are those of tokenizers 0.23.3 for these models.
TEST(BpeTest, GivesWhatTheReferenceGives) {
  struct Case {
    absl::string_view model, piece;
    std::vector<int32_t> ids;
  };
  const Case cases[] = {
      // The lowest rank first, wherever it is; of equals the leftmost.
      {R"({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}, "merges": ["b c", "a b"]})",
       "abc",
       {0, 4}},
      {R"({"vocab": {"a": 0, "aa": 1, "aaa": 2}, "merges": ["a a", "aa a"]})", "aaaaa", {1, 2}},
      // A merge that comes up later may have a lower rank.
      {R"({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5},
           "merges": ["ab c", "a b", "b c"]})",
       "abcabc",
       {4, 4}},
      // The later of two merges of the same pair counts.
      {R"({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}, "merges": ["a b", "b c", "a b"]})",
       "abc",
       {0, 4}},
      // A token that merging does not reach.
      {R"({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []})", "ab", {0, 1}},
      {R"({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [], "ignore_merges": true})", "ab", {2}},
      // Without an unknown token what is unknown is dropped.
      {R"({"vocab": {"a": 0}, "merges": []})", "xaxx", {0}},
      {R"({"vocab": {"a": 0, "?": 1}, "merges": [], "unk_token": "?"})", "xaxx", {1, 0, 1, 1}},
      {R"({"vocab": {"a": 0, "?": 1}, "merges": [], "unk_token": "?", "fuse_unk": true})",
       "xaxx",
       {1, 0, 1}},
      // The tokens of bytes, only if there are all of them; unknown ones go behind bytes.
      {R"({"vocab": {"<0xC3>": 0, "<0xA9>": 1, "?": 2, "a": 3}, "merges": [], "unk_token": "?",
           "byte_fallback": true})",
       "éxéa",
       {0, 1, 0, 1, 2, 3}},
      {R"({"vocab": {"<0xC3>": 0, "?": 2}, "merges": [], "unk_token": "?",
           "byte_fallback": true})",
       "é",
       {2}},
      // Tokens of bytes merge as others do.
      {R"({"vocab": {"<0xC3>": 0, "<0xA9>": 1, "<0xC3><0xA9>": 2}, "merges": ["<0xC3> <0xA9>"],
           "byte_fallback": true})",
       "éé",
       {2, 2}},
      {R"({"vocab": {"a": 0, "##a": 1, "b": 2, "##b": 3, "ab": 4}, "merges": ["a ##b"],
           "continuing_subword_prefix": "##"})",
       "aba",
       {4, 1}},
      {R"({"vocab": {"a": 0, "a</w>": 1, "b": 2, "ba</w>": 3}, "merges": ["b a</w>"],
           "end_of_word_suffix": "</w>"})",
       "aba",
       {0, 3}},
      {R"({"vocab": {"a": 0, "a</w>": 1, "b": 2, "ba</w>": 3}, "merges": ["b a</w>"],
           "end_of_word_suffix": "</w>"})",
       "ba",
       {3}},
      {R"({"vocab": {"a": 0, "a</w>": 1, "b": 2, "ba</w>": 3, "ba": 4}, "merges": ["b a</w>"],
           "end_of_word_suffix": "</w>", "ignore_merges": true})",
       "ba",
       {4}},
  };
  for (const auto& [json, piece, ids] : cases) {
    const auto model = SubwordModelOf(json);
    ASSERT_TRUE(model.ok()) << model.status();
    for (int time = 0; time < 2; ++time) {  // the second finds what the first found out
      const auto found = IdsOf(**model, piece);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(*found, ids) << json << " " << piece;
    }
  }
}

TEST(BpeTest, FindsBytesThatTheVocabularySpellsInTheByteAlphabet) {
  const auto model = SubwordModelOf(
      R"({"vocab": {"Ġ": 0, "Ã": 1, "©": 2, "Ã©": 3, "ĠÃ©": 4, "é": 5, "中": 6, "Ġ中": 7},
          "merges": ["Ã ©", "Ġ Ã©", "Ġ 中"]})",
      PieceAlphabet::kBytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*IdsOf(**model, " é"), (std::vector<int32_t>{4}));
  EXPECT_EQ(*IdsOf(**model, "éé "), (std::vector<int32_t>{3, 3, 0}));
  EXPECT_EQ(*IdsOf(**model, " \xC3"), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(*IdsOf(**model, "\xE9"), (std::vector<int32_t>{5}));
  EXPECT_EQ(*IdsOf(**model, " 中"), (std::vector<int32_t>{0}));  // the alphabet cannot write it
  EXPECT_EQ((*model)->tokens()[4], "ĠÃ©");
}

TEST(BpeTest, AnUnknownTokenThatIsNoTokenIsAnErrorOnceItIsNeeded) {
  const auto model = SubwordModelOf(R"({"vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->unk_id(), std::nullopt);
  EXPECT_EQ(*IdsOf(**model, "aa"), (std::vector<int32_t>{0, 0}));
  EXPECT_THAT(std::string(IdsOf(**model, "axa").status().message()),
              HasSubstr("cannot spell \"x\", and has no unknown token: \"<unk>\" is not in it"));
}

TEST(BpeTest, WorkOnALongPieceIsLinear) {
  const auto model = SubwordModelOf(
      R"({"vocab": {"a": 0, "aa": 1, "aaaa": 2, "aaaaaaaa": 3, "b": 4},
          "merges": ["a a", "aa aa", "aaaa aaaa"]})");
  ASSERT_TRUE(model.ok()) << model.status();
  for (const std::string unit : {"a", "ab", "aab", "x"}) {
    std::string small, large;
    while (small.size() < 100'000) small += unit;
    while (large.size() < 1'000'000) large += unit;
    EXPECT_LE(WorkOf(**model, large), 15 * WorkOf(**model, small)) << unit;
  }
}

TEST(BpeTest, RefusesWhatItCannotUseAndSaysWhy) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {R"({"type": "BPE", "vocab": {}, "merges": []})", "t.json: model: vocab is empty"},
      {R"({"type": "BPE", "merges": []})", "t.json: model: has no key \"vocab\""},
      {R"({"type": "BPE", "vocab": {"a": 0}})", "t.json: model: has no key \"merges\""},
      {R"({"type": "BPE", "vocab": [["a", 0]], "merges": []})", "key \"vocab\" is a list, expec"},
      {R"({"type": "bpe", "vocab": {"a": 0}, "merges": []})", "key \"type\" is \"bpe\", which is"},
      {R"({"vocab": {"a": 0, "b": 0}, "merges": []})", "token \"b\" has the id 0, which token \"a"},
      {R"({"vocab": {"a": 0, "a": 1}, "merges": []})", "vocab: token \"a\" occurs twice"},
      {R"({"vocab": {"a": 4194304}, "merges": []})", "token \"a\" has the id 4194304, expected on"},
      {R"({"vocab": {"a": 0}, "merges": ["a a", "a b"]})",
       "merges[0] is \"a\" and \"a\"; \"aa\", "},
      {R"({"vocab": {"a": 0}, "merges": ["a b"]})", "merges[0] is \"a\" and \"b\"; \"b\" is not i"},
      {R"({"vocab": {"a": 0}, "merges": ["b a"]})", "merges[0] is \"b\" and \"a\"; \"b\" is not i"},
      {R"({"vocab": {"a": 0, "": 1}, "merges": ["a "]})", "expected two tokens that are not empty"},
      {R"({"vocab": {"a": 0, "": 1}, "merges": [["", "a"]]})", "two tokens that are not empty"},
      {R"({"vocab": {"a": 0, "##": 1}, "merges": [["a", "##"]],
           "continuing_subword_prefix": "##"})",
       "merges[0] is \"a\" and \"##\"; expected two tokens, and more than continuing_subword_pre"},
      {R"({"vocab": {"a": 0}, "merges": [], "dropout": 0.1})", "key \"dropout\" is 0.1, which is"},
      {R"({"vocab": {"a": 0}, "merges": [], "dropout": "x"})", "key \"dropout\" is \"x\", expecte"},
      {R"({"vocab": {"a": 0}, "merges": [], "unk_token": 1})", "key \"unk_token\" is 1, expected "},
      {R"({"vocab": {"a": 0}, "merges": [], "fuse_unk": 1})", "key \"fuse_unk\" is 1, expected tr"},
  };
  for (const auto& [json, error] : cases) {
    const auto model = SubwordModelOf(json);
    ASSERT_FALSE(model.ok()) << json;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(std::string(error))) << json;
  }
  EXPECT_TRUE(SubwordModelOf(R"({"vocab": {"a": 0}, "merges": [], "dropout": 0.0})").ok());
}

// Seeded merges among a few symbols, in which nearly everything merges in many ways.
MergeTable RandomMerges(std::mt19937_64& random, int symbols, int merges) {
  std::vector<std::string> spelled;
  std::map<std::string, int32_t> ids;
  const auto id_of = [&](const std::string& text) {
    const auto [it, is_new] = ids.try_emplace(text, static_cast<int32_t>(ids.size()));
    if (is_new) spelled.push_back(text);
    return it->second;
  };
  for (int i = 0; i < symbols; ++i) id_of(std::string(1, static_cast<char>('a' + i)));
  MergeTable table(static_cast<size_t>(merges));
  for (int i = 0; i < merges; ++i) {
    const auto left = static_cast<int32_t>(random() % spelled.size());
    const auto right = static_cast<int32_t>(random() % spelled.size());
    const std::string whole = spelled[left] + spelled[right];
    if (whole.size() > 12) continue;
    table.Set(left, right, {.rank = static_cast<uint32_t>(i), .id = id_of(whole)});
  }
  return table;
}

TEST(SymbolMergerTest, BothWaysGiveTheSame) {
  std::mt19937_64 random(19);
  for (int round = 0; round < 2000; ++round) {
    const int symbols = 1 + static_cast<int>(random() % 4);
    const MergeTable merges = RandomMerges(random, symbols, static_cast<int>(random() % 60));
    SymbolBuffer few, many;
    const size_t count = 1 + random() % kFewSymbols;
    for (size_t i = 0; i < count; ++i) few.push_back(static_cast<int32_t>(random() % symbols));
    many = few;
    few.resize(MergeFewSymbols(merges, {few.data(), few.size()}));
    WorkMeter meter;
    ASSERT_TRUE(MergeManySymbols(merges, meter, many).ok());
    ASSERT_EQ(few, many) << "round " << round;
  }
}

TEST(SymbolMergerTest, WorkIsLinearInTheSymbolsAndEndsOnceItIsNotWanted) {
  MergeTable merges(20);
  for (int32_t i = 0; i < 20; ++i) {
    merges.Set(i, i, {.rank = static_cast<uint32_t>(i), .id = i + 1});
  }
  const auto work = [&](size_t count) {
    SymbolBuffer symbols(count, 0);
    WorkMeter meter;
    EXPECT_TRUE(MergeManySymbols(merges, meter, symbols).ok());
    EXPECT_LT(symbols.size(), 20u + count / (1 << 20));
    return meter.done();
  };
  EXPECT_LE(work(1'000'000), 15 * work(100'000));
  SymbolBuffer symbols(1'000'000, 0);
  WorkMeter meter([] { return absl::CancelledError("nobody waits"); });
  EXPECT_EQ(MergeManySymbols(merges, meter, symbols).code(), absl::StatusCode::kCancelled);
  EXPECT_LT(meter.done(), 2'000'000);
}

}  // namespace
}  // namespace mneme
