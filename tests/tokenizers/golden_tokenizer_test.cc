// Every line of the goldens tokenizer_*: ids and texts that the packages give which the files were
// made for (README.md in each folder).
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/tokenizer_golden.h"
#include "tokenizers/streaming_decoder.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

struct Kind {
  const char* folder;
  const char* kind;
  // The only files that are left of the folder; empty: all.
  std::vector<std::string> files;
};

class GoldenTokenizerTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const std::string golden = std::string("tests/golden/") + GetParam().folder;
    golden_ = Json::parse(ReadBytes(golden + "/tokenizer_golden.json"));
    TestFolder some;
    for (const std::string& name : GetParam().files)
      some.Write(name, ReadBytes(golden + "/" + name));
    TokenizerFacts facts;
    facts.vocab_size = golden_["vocab_size"];
    auto tokenizer = LoadTokenizer(GetParam().files.empty() ? golden : some.path(), facts);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  void ExpectDecoded(const Json& golden, const Ids& ids, const Ids& ids_to_skip_in) const {
    EXPECT_EQ(*tokenizer_->Decode(ids, {.skip_special_tokens = false}),
              golden["decoded"].get<std::string>());
    if (golden.contains("decoded_skip_special")) {
      EXPECT_EQ(*tokenizer_->Decode(ids_to_skip_in),
                golden["decoded_skip_special"].get<std::string>());
    }
    ExpectStreamed(golden, ids);
  }

  // Where the golden says when each text is to come, it does; what comes is the whole in any case.
  void ExpectStreamed(const Json& golden, const Ids& ids) const {
    for (const bool skip : {false, true}) {
      StreamingDecoder decoder(*tokenizer_, {.skip_special_tokens = skip});
      std::string all;
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::string text = decoder.Push(ids[i]);
        if (!skip && golden.contains("incremental")) {
          EXPECT_EQ(text, golden["incremental"][i].get<std::string>()) << "at " << i;
        }
        all += text;
      }
      const std::string rest = decoder.Flush();
      if (!skip && golden.contains("flush")) {
        EXPECT_EQ(rest, golden["flush"].get<std::string>());
      }
      EXPECT_EQ(all + rest, *tokenizer_->Decode(ids, {.skip_special_tokens = skip}));
    }
  }

  Json golden_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(GoldenTokenizerTest, IsOfItsKindAndSize) {
  EXPECT_EQ(tokenizer_->kind(), GetParam().kind);
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<int>());
}

TEST_P(GoldenTokenizerTest, TextsGiveTheIdsOfThePackage) {
  for (const Json& golden : golden_["cases"]) {
    SCOPED_TRACE(golden["text"].dump());
    const auto text = golden["text"].get<std::string>();
    const auto ids = tokenizer_->Encode(text, {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, golden["ids"].get<Ids>());
    if (golden.contains("ids_with_special")) {
      EXPECT_EQ(
          *tokenizer_->Encode(text, {.add_bos = true, .add_eos = true, .parse_special = true}),
          golden["ids_with_special"].get<Ids>());
    }
    if (golden.contains("tokens")) {
      for (size_t i = 0; i < ids->size(); ++i) {
        // The golden has the text that is unknown.
        if (GetParam().kind == std::string("unigram") && (*ids)[i] == tokenizer_->unk_id())
          continue;
        EXPECT_EQ(tokenizer_->entry((*ids)[i]).piece, golden["tokens"][i].get<std::string>());
      }
    }
  }
}

TEST_P(GoldenTokenizerTest, IdsGiveTheTextsOfThePackage) {
  for (const Json& golden : golden_["cases"]) {
    SCOPED_TRACE(golden["text"].dump());
    const Ids ids = golden["ids"];
    ExpectDecoded(golden, ids, golden.value("ids_with_special", ids));
  }
  for (const Json& golden : golden_["decode_only"]) {
    SCOPED_TRACE(golden["ids"].dump());
    ExpectDecoded(golden, golden["ids"], golden["ids"]);
  }
}

TEST_P(GoldenTokenizerTest, PairsGiveTheIdsOfThePackage) {
  if (!golden_.contains("pairs")) return;
  for (const Json& golden : golden_["pairs"]) {
    SCOPED_TRACE(golden.dump());
    WorkMeter meter;
    const auto pair =
        tokenizer_->EncodePair(golden["text"].get<std::string>(), golden["pair"].get<std::string>(),
                               {.add_bos = true, .add_eos = true, .parse_special = true}, meter);
    ASSERT_TRUE(pair.ok()) << pair.status();
    EXPECT_EQ(pair->ids, golden["ids"].get<Ids>());
    EXPECT_EQ(pair->type_ids, golden["type_ids"].get<Ids>());
  }
}

// The texts are those of templates, whose control tokens are to be found.
TEST_P(GoldenTokenizerTest, RenderedChatsGiveTheIdsOfThePackage) {
  std::ifstream file(absl::StrCat("tests/golden/", GetParam().folder, "/chat_golden.json"));
  if (!file.good()) return;
  for (const Json& chat : Json::parse(file)) {
    if (!chat.contains("ids")) continue;
    SCOPED_TRACE(chat["text"].dump());
    EXPECT_EQ(*tokenizer_->Encode(chat["text"].get<std::string>(), {.parse_special = true}),
              chat["ids"].get<Ids>());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Folders, GoldenTokenizerTest,
    testing::Values(
        Kind{"tokenizer_bpe", "bpe", {}}, Kind{"tokenizer_bpe", "bpe", {"tokenizer.json"}},
        Kind{"tokenizer_bpe", "bpe", {"tokenizer.json", "tokenizer_config.json"}},
        Kind{"tokenizer_bpe", "bpe", {"vocab.json", "merges.txt", "tokenizer_config.json"}},
        Kind{"tokenizer_qwen3", "bpe", {}}, Kind{"tokenizer_qwen3", "bpe", {"tokenizer.json"}},
        Kind{"tokenizer_qwen35", "bpe", {}}, Kind{"tokenizer_rwkv", "rwkv", {}},
        Kind{"tokenizer_unigram", "unigram", {}},
        Kind{"tokenizer_unigram", "unigram", {"tokenizer.json"}},
        Kind{"tokenizer_wordpiece", "wordpiece", {}},
        Kind{"tokenizer_wordpiece", "wordpiece", {"tokenizer.json"}},
        Kind{"tokenizer_wordpiece", "wordpiece", {"vocab.txt", "tokenizer_config.json"}}),
    [](const auto& info) {
      std::string name = absl::StrCat(info.index, "_", info.param.folder);
      for (const std::string& file : info.param.files) {
        name += '_';
        for (const char c : file)
          name += absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
      }
      return name;
    });

}  // namespace
}  // namespace mneme
