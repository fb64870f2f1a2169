// Tokenizer::digest(): another one wherever text would be cut another way, and only there.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/tokenizer_golden.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {
namespace {

constexpr char kBpe[] = R"({
  "added_tokens": [{"id": 5, "content": "<end>", "special": true}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Whitespace"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4},
            "merges": ["a b", "b c"]}})";
constexpr char kUnigram[] = R"({
  "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5], ["b", -2]]}})";

class TokenizerDigestTest : public testing::Test {
 protected:
  static uint64_t Digest(const TestFolder& folder, int vocab_size) {
    const auto tokenizer = LoadTokenizer(folder.path(), {.vocab_size = vocab_size});
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->digest() : 0;
  }
  static uint64_t OfJson(const std::string& json, const std::string& config = "{}") {
    TestFolder folder;
    folder.Write("tokenizer.json", json);
    folder.Write("tokenizer_config.json", config);
    return Digest(folder, 8);
  }
  static uint64_t OfModel(const std::string& model, const std::string& config = "{}") {
    TestFolder folder;
    folder.Write("tokenizer.model", model);
    folder.Write("tokenizer_config.json", config);
    return Digest(folder, 1000);
  }
};

TEST_F(TokenizerDigestTest, ChangesWithAllThatCutsText) {
  const uint64_t digest = OfJson(kBpe);
  const std::pair<const char*, const char*> changes[] = {
      {R"("a b", "b c")", R"("b c", "a b")"},      // which merge comes first
      {R"("a b", "b c")", R"("a b")"},             // the same vocabulary, a merge less
      {R"("a": 0, "b": 1)", R"("b": 0, "a": 1)"},  // ids
      {R"("NFC")", R"("NFD")"},
      {R"("Whitespace")", R"("WhitespaceSplit")"},
      {R"("<end>")", R"("<END>")"},
      {R"("special": true)", R"("special": true, "lstrip": true)"},
      {R"("special": true)", R"("special": false, "normalized": true)"},
      {R"("type": "BPE")", R"("type": "BPE", "ignore_merges": true)"},
  };
  for (const auto& [from, to] : changes) {
    const std::string changed = absl::StrReplaceAll(kBpe, {{from, to}});
    ASSERT_NE(changed, kBpe) << from;
    EXPECT_NE(OfJson(changed), digest) << to;
  }
}

TEST_F(TokenizerDigestTest, StaysWhereTextIsCutAsBefore) {
  const uint64_t digest = OfJson(kBpe);
  const std::pair<const char*, const char*> changes[] = {
      {R"("a b", "b c")", R"(["a", "b"], ["b", "c"])"},  // as newer versions write them
      {R"("a": 0, "b": 1)", R"("b": 1, "a": 0)"},        // the file's order
      {R"("type": "BPE")", R"("type": "BPE", "dropout": null, "byte_fallback": false)"},
      {R"("model")", R"("decoder": {"type": "BPEDecoder"}, "model")"},
  };
  for (const auto& [from, to] : changes) {
    const std::string changed = absl::StrReplaceAll(kBpe, {{from, to}});
    ASSERT_NE(changed, kBpe) << from;
    EXPECT_EQ(OfJson(changed), digest) << to;
  }
  EXPECT_EQ(OfJson(kBpe, R"({"chat_template": "{{ messages }}"})"), digest);
  EXPECT_EQ(OfJson(kBpe), digest);
}

TEST_F(TokenizerDigestTest, OfUnigramHasScores) {
  const std::string other = absl::StrReplaceAll(kUnigram, {{"-1.5", "-1.25"}});
  EXPECT_NE(OfJson(other), OfJson(kUnigram));
}

// The scores of a SentencePiece model are its merges.
TEST_F(TokenizerDigestTest, OfSentencePieceHasScoresAndItsRulesForSpecialTokens) {
  const std::string model = ReadBytes(GoldenPath("bpe.model"));
  const uint64_t digest = OfModel(model);
  EXPECT_EQ(OfModel(model, R"({"chat_template": "{{ messages }}"})"), digest);
  EXPECT_NE(OfModel(model, R"({"legacy": false})"), digest);
  EXPECT_NE(OfModel(model, R"({"added_tokens_decoder":
      {"560": {"content": "<think>", "special": false}}})"),
            digest);
  // A piece is "\n <size> \n <size> text \x15 <score, a float> ...".
  std::string other = model;
  const size_t score = other.find('\x15', other.size() / 3);
  ASSERT_NE(score, std::string::npos);
  other[score + 1] ^= 1;
  EXPECT_NE(OfModel(other), digest);
}

}  // namespace
}  // namespace mneme
