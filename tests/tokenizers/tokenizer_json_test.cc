#include "tokenizers/huggingface/tokenizer_json.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tokenizers/huggingface/reference_number.h"
#include "tokenizers/huggingface/vocabulary_files.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text) {
  const auto parsed = ParseTokenizerJson(text, "t.json");
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(parsed.status().message().size(), 500u);
  return std::string(parsed.status().message());
}

TEST(TokenizerJsonTest, KeepsVocabAndMergesApartFromTheRest) {
  const auto parsed = ParseTokenizerJson(
      R"({"version": "1.0", "added_tokens": [{"id": 3, "content": "<s>"}], "normalizer": null,
          "model": {"type": "BPE", "unk_token": null, "vocab": {"a": 0, "b": 7, "ab": 2147483647},
                    "merges": [["a", "b"], ["a", "b c"]], "dropout": 0.5}, "decoder": {"type": "X"}})",
      "t.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rest.dump(),
            R"({"added_tokens":[{"content":"<s>","id":3}],"decoder":{"type":"X"},)"
            R"("normalizer":null,"version":"1.0"})");
  const auto& model = parsed->model;
  EXPECT_EQ(model.options.dump(), R"({"dropout":0.5,"type":"BPE","unk_token":null})");
  EXPECT_TRUE(model.has_vocab && model.has_merges);
  EXPECT_FALSE(model.has_scores);
  ASSERT_EQ(model.vocab.size(), 3u);
  EXPECT_EQ(model.vocab[1].text, "b");
  EXPECT_EQ(model.vocab[1].id, 7);
  EXPECT_EQ(model.vocab[2].id, 2147483647);
  ASSERT_EQ(model.merges.size(), 2u);
  EXPECT_EQ(model.merges[1].left, "a");
  EXPECT_EQ(model.merges[1].right, "b c");
}

TEST(TokenizerJsonTest, ReadsMergesThatAreStringsAndLeavesOutTheirHeadLine) {
  const auto parsed = ParseTokenizerJson(
      R"({"model": {"vocab": {}, "merges": ["#version: 0.2", "a b", "\u00e9 \ud83d\ude00", " b"]}})",
      "t.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->model.merges.size(), 3u);
  EXPECT_EQ(parsed->model.merges[0].left, "a");
  EXPECT_EQ(parsed->model.merges[1].left, "é");
  EXPECT_EQ(parsed->model.merges[1].right, "😀");
  EXPECT_EQ(parsed->model.merges[2].left, "");
}

TEST(TokenizerJsonTest, ReadsAListOfScoresWithTheIndexAsId) {
  const auto parsed = ParseTokenizerJson(
      R"({"model": {"vocab": [["<unk>", 0], ["a", -2.5], ["b", -1e1]]}})", "t.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->model.has_scores);
  ASSERT_EQ(parsed->model.vocab.size(), 3u);
  EXPECT_EQ(parsed->model.vocab[1].id, 1);
  EXPECT_EQ(parsed->model.vocab[1].score, -2.5);
  EXPECT_EQ(parsed->model.vocab[2].score, -10.0);
}

TEST(TokenizerJsonTest, TextsStayWhenTheResultMoves) {
  std::string vocab, merges;
  for (int i = 0; i < 50000; ++i) {
    absl::StrAppend(&vocab, i == 0 ? "" : ",", "\"token", i, "\":", i);
    absl::StrAppend(&merges, i == 0 ? "" : ",", "\"token", i, " x\"");
  }
  auto parsed = ParseTokenizerJson(
      absl::StrCat(R"({"model":{"vocab":{)", vocab, R"(},"merges":[)", merges, "]}}"), "t.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const TokenizerJson::Model model = std::move(parsed->model);
  ASSERT_EQ(model.vocab.size(), 50000u);
  for (int i = 0; i < 50000; ++i) {
    ASSERT_EQ(model.vocab[i].text, absl::StrCat("token", i));
    ASSERT_EQ(model.merges[i].left, absl::StrCat("token", i));
  }
}

TEST(TokenizerJsonTest, ErrorsNameFileKeyWhatItHoldsAndWhatWasExpected) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {"", "t.json:1:1: not valid JSON: it is empty"},
      {"[1]", "t.json: is a list, expected an object"},
      {"null", "t.json: is null, expected an object"},
      {"{}", "t.json: has no key \"model\""},
      {"{\"model\": {\n  \"vocab\": {\"a\": 0,}}}",
       "t.json:2:20: not valid JSON: unexpected \"}\""},
      {"{\"model\": {}} x", "not valid JSON"},
      {"{\"model\": {\"vocab\": {\"\xFF\": 0}}}", "byte 0xff is not UTF-8"},
      {R"({"model": {"vocab": {"\ud800": 0}}})", "not valid JSON"},
      {R"({"model": null})", "t.json: key \"model\" is null, expected an object"},
      {R"({"model": []})", "t.json: key \"model\" is a list, expected an object"},
      {R"({"model": {}, "model": {}})", "t.json: key \"model\" occurs twice"},
      {R"({"a": 1, "a": 2})", "t.json: key \"a\" occurs twice"},
      {R"({"a": [{"b": 1, "b": 2}]})", "t.json: \"a\": key \"b\" occurs twice"},
      {R"({"model": {"vocab": {}, "vocab": {}}})", "t.json: model: key \"vocab\" occurs twice"},
      {R"({"model": {"merges": [], "merges": []}})", "t.json: model: key \"merges\" occurs twice"},
      {R"({"model": {"type": 1, "type": 2}})", "t.json: model: key \"type\" occurs twice"},
      {R"({"model": {"vocab": 1}})", "t.json: model: key \"vocab\" is 1, expected an object from"},
      {R"({"model": {"vocab": {"a": -1}}})", "vocab: token \"a\" is -1, expected an id from 0 to"},
      {R"({"model": {"vocab": {"a": 2147483648}}})", "token \"a\" is 2147483648, expected an id"},
      {R"({"model": {"vocab": {"a": 1.0}}})", "token \"a\" is 1.0, expected an id"},
      {R"({"model": {"vocab": {"a": "1"}}})", "token \"a\" is \"1\", expected an id"},
      {R"({"model": {"vocab": {"a": {}}}})", "token \"a\" is an object, expected an id"},
      {R"({"model": {"vocab": ["a"]}})", "model: vocab[0] is \"a\", expected [token, score]"},
      {R"({"model": {"vocab": [["a", 1], ["b"]]}})", "vocab[1] holds a list of 1, expected [token"},
      {R"({"model": {"vocab": [["a", 1, 2]]}})",
       "model: vocab[0] holds 2, expected [token, score]"},
      {R"({"model": {"vocab": [["a", "b"]]}})", "vocab[0] holds \"b\", expected [token, score]"},
      {R"({"model": {"vocab": [[1.5, "b"]]}})", "expected [token, score]"},
      {R"({"model": {"merges": {}}})", "model: key \"merges\" is an object, expected a list"},
      {R"({"model": {"merges": null}})", "model: key \"merges\" is null, expected a list"},
      {R"({"model": {"merges": ["a b", "ab"]}})", "merges[1] is \"ab\", expected two tokens with"},
      {R"({"model": {"merges": ["a b c"]}})", "merges[0] is \"a b c\", expected two tokens with"},
      {R"({"model": {"merges": ["a b", ["a", "b"]]}})", "merges[1] is a list after strings, expec"},
      {R"({"model": {"merges": [["a", "b"], "a b"]}})", "expected a pair of tokens as the others"},
      {R"({"model": {"merges": [["a"]]}})", "merges[0] holds a list of 1, expected two tokens"},
      {R"({"model": {"merges": [["a", "b", "c"]]}})", "merges[0] holds more than two, expected"},
      {R"({"model": {"merges": [["a", 3]]}})", "merges[0] holds 3, expected two tokens"},
      {R"({"model": {"merges": [["a", "b"], "a b"]}})",
       "merges[1] is \"a b\", expected a pair of to"},
      {R"({"model": {"merges": [["a", "b"], ["a", "c"], 3]}})",
       "merges[2] is 3, expected a pair of t"},
      {R"({"model": {"merges": [7]}})", "merges[0] is 7, expected a pair of tokens, or a string"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(std::string(error))) << text;
  }
}

TEST(TokenizerJsonTest, RefusesDeepAndWideTrees) {
  const std::string deep = absl::StrCat(R"({"model": {"x": )", std::string(100000, '['));
  EXPECT_THAT(ErrorOf(deep), HasSubstr("t.json: model: \"x\": is nested deeper than 32 levels"));
  std::string wide = R"({"y": [0)";
  for (int i = 0; i < (1 << 20); ++i) wide += ",0";
  EXPECT_THAT(ErrorOf(wide + "]}"), HasSubstr("more than 1048576 values beside the vocabulary"));
}

TEST(TokenizerJsonTest, RefusesFilesBeyondTheLimit) {
  const std::string text(static_cast<size_t>(kMaxTokenizerFileBytes) + 1, ' ');
  EXPECT_THAT(ErrorOf(text), HasSubstr("t.json: 268435457 bytes, expected at most 268435456"));
}

// Numbers as tokenizers 0.23 reads them: where it differs from the nearest double, by a bit.
TEST(TokenizerJsonTest, ReadsNumbersAsTheReferenceDoes) {
  EXPECT_EQ(ReferenceNumber("-2.0154635906219482"), -2.015463590621948);
  EXPECT_EQ(ReferenceNumber("-9.773894309997559"), -9.77389430999756);
  EXPECT_EQ(ReferenceNumber("-11.830850601196289"), -11.830850601196287);
  EXPECT_EQ(ReferenceNumber("-1.4078937768936157"), -1.4078937768936155);
  EXPECT_EQ(ReferenceNumber("0.1"), 0.1);
  EXPECT_EQ(ReferenceNumber("-0.0"), 0.0);
  EXPECT_EQ(ReferenceNumber("1.5E+3"), 1500.0);
  EXPECT_EQ(ReferenceNumber("5e-324"), 5e-324);
  EXPECT_EQ(ReferenceNumber("1e-400"), 0.0);
  EXPECT_EQ(ReferenceNumber("1e308"), 1e308);
}

TEST(VocabAndMergesTest, ReadsGpt2sFiles) {
  const auto model = ParseVocabAndMerges(R"({"a": 0, "b": 1, "ab": 2})", "vocab.json",
                                         "#version: 0.2\r\na b\r\n", "merges.txt");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->options.dump(), R"({"type":"BPE"})");
  EXPECT_EQ(model->vocab.size(), 3u);
  ASSERT_EQ(model->merges.size(), 1u);
  EXPECT_EQ(model->merges[0].left, "a");
  EXPECT_EQ(model->merges[0].right, "b");
}

TEST(VocabAndMergesTest, ErrorsNameTheFileAndTheLine) {
  const auto error = [](absl::string_view vocab, absl::string_view merges) {
    return std::string(
        ParseVocabAndMerges(vocab, "vocab.json", merges, "merges.txt").status().message());
  };
  EXPECT_THAT(error("[]", ""), HasSubstr("vocab.json: is a list, expected an object from tokens"));
  EXPECT_THAT(error("{\"a\": null}", ""), HasSubstr("vocab.json: vocab: token \"a\" is null"));
  EXPECT_THAT(error("{\"a\": 1", ""), HasSubstr("vocab.json:1:8: not valid JSON"));
  EXPECT_THAT(error("{}", "a b\n\nb c\n"), HasSubstr("merges.txt:2: is \"\", expected two tokens"));
  EXPECT_THAT(error("{}", "a b\nb c d"), HasSubstr("merges.txt:2: is \"b c d\", expected two"));
  EXPECT_THAT(error("{}", "a b\n\xFF b"), HasSubstr("merges.txt:2:1: not UTF-8 at byte offset 4"));
}

TEST(VocabTextTest, LineNumbersAreIdsAndTheLastOfEqualLinesCounts) {
  const auto model = ParseVocabText("[PAD]\r\n[UNK] \u3000\na\n##b\na\nc", "vocab.txt");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->options.dump(),
            R"({"continuing_subword_prefix":"##","max_input_chars_per_word":100,)"
            R"("type":"WordPiece","unk_token":"[UNK]"})");
  std::string found;
  for (const auto& token : model->vocab) absl::StrAppend(&found, token.text, "=", token.id, ";");
  EXPECT_EQ(found, "[PAD]=0;[UNK]=1;a=4;##b=3;c=5;");
  EXPECT_THAT(std::string(ParseVocabText("a\n\xC3", "vocab.txt").status().message()),
              HasSubstr("vocab.txt:2:1: not UTF-8 at byte offset 2"));
}

}  // namespace
}  // namespace mneme
