#include "tokenizers/tokenizer_loader.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/tokenizers/tokenizer_golden.h"
#include "tokenizers/tokenizer_config.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Ids = std::vector<int32_t>;

class TokenizerLoaderTest : public testing::Test {
 protected:
  static constexpr int kBpeSize = 560;

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() {
    return LoadTokenizer(folder_.path(), facts_);
  }

  std::unique_ptr<Tokenizer> MustLoad() {
    auto tokenizer = Load();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }
  std::string LoadError(absl::StatusCode code) {
    const auto tokenizer = Load();
    EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status().ToString();
    return std::string(tokenizer.status().message());
  }
  void WriteBpeModel() { folder_.Write("tokenizer.model", bpe_); }
  void WriteConfig(const std::string& json) { folder_.Write("tokenizer_config.json", json); }

  const std::string bpe_ = ReadBytes(GoldenPath("bpe.model"));
  TestFolder folder_;
  TokenizerFacts facts_{.vocab_size = kBpeSize,
                        .bos_token_id = {},
                        .eos_token_id = {},
                        .tokenizer_class = {},
                        .model_type = {}};
};

// As AutoTokenizer does it.
TEST_F(TokenizerLoaderTest, TokenizerJsonWinsOverTokenizerModel) {
  WriteBpeModel();
  folder_.Write("tokenizer.json",
                R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})");
  EXPECT_EQ(MustLoad()->kind(), "wordlevel");
}

TEST_F(TokenizerLoaderTest, FolderWithAnotherTokenizerOnlyIsRefusedByName) {
  facts_.vocab_size = 256;  // would fit the byte tokenizer
  for (const char* name :
       {"vocab.json", "merges.txt", "tekken.json", "spiece.model", "special_tokens_map.json"}) {
    TestFolder folder;
    folder.Write(name, "{}");
    const auto tokenizer = LoadTokenizer(folder.path(), facts_);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(tokenizer.status().message()),
                AllOf(HasSubstr(name), HasSubstr(folder.path()), HasSubstr("tokenizer.model")));
  }
  WriteConfig(R"({"tokenizer_class": "ByT5Tokenizer"})");
  EXPECT_THAT(LoadError(absl::StatusCode::kUnimplemented), HasSubstr("ByT5Tokenizer"));
}

TEST_F(TokenizerLoaderTest, FolderWithoutTokenizerIsNotFoundUnlessBytesFit) {
  for (const int size : {1, 255, 321, 32000}) {
    facts_.vocab_size = size;
    EXPECT_THAT(LoadError(absl::StatusCode::kNotFound), HasSubstr(absl::StrCat(size)));
  }
  for (const int size : {256, 260, 320}) {
    facts_.vocab_size = size;
    const auto tokenizer = MustLoad();
    EXPECT_EQ(tokenizer->kind(), "bytes");
    EXPECT_EQ(tokenizer->vocab_size(), size);
    EXPECT_THAT(tokenizer->notes(), Contains(HasSubstr("byte tokenizer")));
  }
}

TEST_F(TokenizerLoaderTest, ByteTokenizerIsUsedWhereAskedFor) {
  facts_ = {.vocab_size = 258,
            .bos_token_id = 256,
            .eos_token_id = 257,
            .tokenizer_class = {},
            .model_type = {}};
  WriteConfig(R"({"tokenizer_class": "ByteTokenizer"})");
  folder_.Write("special_tokens_map.json", "{}");
  const auto tokenizer = MustLoad();
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_THAT(tokenizer->notes(), ElementsAre());
  EXPECT_EQ(*tokenizer->Encode("h\xC3\xA9\n", {.add_bos = true}),
            Ids({256, 'h', 0xC3, 0xA9, '\n'}));
  EXPECT_EQ(*tokenizer->Decode(Ids{256, ' ', 'h', 0xC3, 0xA9, 257, 0xC3}),
            " h\xC3\xA9\xEF\xBF\xBD");
  EXPECT_EQ(*tokenizer->Encode(" b", {.continuation = true}), Ids({' ', 'b'}));
  EXPECT_EQ(tokenizer->Decode(Ids{258}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tokenizer->Encode("\xC3").status().code(), absl::StatusCode::kInvalidArgument);

  facts_.vocab_size = 1000;
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument), HasSubstr("1000"));
  WriteBpeModel();
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument), HasSubstr("remove one"));
}

TEST_F(TokenizerLoaderTest, ConfigJsonMayAskForTheByteTokenizerToo) {
  facts_.vocab_size = 256;
  facts_.tokenizer_class = "ByteTokenizer";
  EXPECT_EQ(MustLoad()->kind(), "bytes");
  WriteConfig(R"({"tokenizer_class": "LlamaTokenizer"})");
  EXPECT_THAT(LoadError(absl::StatusCode::kUnimplemented), HasSubstr("LlamaTokenizer"));
}

TEST_F(TokenizerLoaderTest, ByteIdsAreNoSpecialTokens) {
  facts_ = {.vocab_size = 256,
            .bos_token_id = 1,
            .eos_token_id = 2,
            .tokenizer_class = {},
            .model_type = {}};
  const auto tokenizer = MustLoad();
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(*tokenizer->Encode("a", {.add_bos = true}), Ids({'a'}));
  EXPECT_THAT(tokenizer->notes(), Contains(HasSubstr("bos_token_id 1")));
}

TEST_F(TokenizerLoaderTest, VocabularyLargerThanTheModelIsAnError) {
  WriteBpeModel();
  facts_.vocab_size = kBpeSize - 1;
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("560"), HasSubstr("559"), HasSubstr("tokenizer.model")));
}

TEST_F(TokenizerLoaderTest, RowsBeyondTheVocabularyDecodeToNothing) {
  WriteBpeModel();
  facts_.vocab_size = kBpeSize + 8;
  const auto tokenizer = MustLoad();
  EXPECT_EQ(tokenizer->vocab_size(), kBpeSize + 8);
  EXPECT_THAT(tokenizer->notes(), ElementsAre(AllOf(HasSubstr("568"), HasSubstr("the other 8"))));
  EXPECT_EQ(*tokenizer->Decode(Ids{350, kBpeSize, kBpeSize + 7}), "a");
  EXPECT_EQ(tokenizer->Decode(Ids{kBpeSize + 8}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(TokenizerLoaderTest, AddedTokensDecodeAndMayBeSpecial) {
  WriteBpeModel();
  facts_.vocab_size = kBpeSize + 3;
  WriteConfig(R"({"eos_token": {"content": "<|im_end|>"}, "added_tokens_decoder": {
    "2": {"content": "</s>", "special": true},
    "560": {"content": "<|im_end|>", "special": true},
    "561": {"content": "<tool>", "special": false}}})");
  const auto tokenizer = MustLoad();
  EXPECT_EQ(tokenizer->eos_id(), 560);
  EXPECT_EQ(*tokenizer->Decode(Ids{350, 561, 560, 562}), "a<tool>");
  EXPECT_THAT(tokenizer->notes(), ElementsAre(HasSubstr("the other 1 ")));

  facts_.vocab_size = kBpeSize + 1;
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("<tool>"), HasSubstr("561"), HasSubstr("561")));
}

TEST_F(TokenizerLoaderTest, AddedTokensSpellSpacesAsOthersDo) {
  WriteBpeModel();
  facts_.vocab_size = kBpeSize + 1;
  WriteConfig(
      "{\"added_tokens_decoder\": {\"560\": {\"content\": \"\xE2\x96\x81go\xE2\x96\x81on\"}}}");
  const auto tokenizer = MustLoad();
  EXPECT_EQ(*tokenizer->Decode(Ids{350, 560}), "a go on");
  EXPECT_EQ(*tokenizer->Decode(Ids{560}), "go on") << "without the dummy prefix";
}

// Ids of transformers 4.46.3, LlamaTokenizer and LlamaTokenizerFast alike.
TEST_F(TokenizerLoaderTest, SpellingsOfSpecialTokensAreReadAsTransformersReadsThem) {
  struct Case {
    const char* text;
    Ids legacy;  // what is meant where the file does not say
    Ids not_legacy;
  };
  const std::vector<Case> cases = {
      {"</s>", {2}, {2}},
      {"Hello</s>World",
       {489, 77, 490, 307, 496, 2, 489, 92, 263, 499, 507},
       {489, 77, 490, 307, 496, 2, 92, 263, 499, 507}},
      {"<s>Hello", {1, 489, 77, 490, 307, 496}, {1, 77, 490, 307, 496}},
      {"a <unk> b", {350, 489, 0, 489, 281}, {350, 489, 0, 281}},
      {"a</s> b", {350, 2, 489, 281}, {350, 2, 281}},
      {"the state</s>\nthe memory",
       {284, 369, 2, 489, 15, 492, 280, 374},
       {284, 369, 2, 15, 492, 280, 374}},
      {"</s></s>x", {2, 2, 489, 550}, {2, 2, 550}},
      {"x<mask> y", {489, 550, 560, 489, 403}, {489, 550, 560, 403}},
      {"x <mask>  y", {489, 550, 560, 489, 489, 403}, {489, 550, 560, 489, 403}},
      {"x <sep> y", {489, 550, 489, 561, 403}, {489, 550, 489, 561, 518}},
      {"the<s>", {284, 1}, {284, 1}},
  };
  facts_.vocab_size = kBpeSize + 2;
  WriteBpeModel();
  const auto with_legacy = [this](absl::string_view legacy) {
    WriteConfig(absl::StrCat(R"({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",)",
                             legacy, R"("added_tokens_decoder": {
      "560": {"content": "<mask>", "special": true, "lstrip": true},
      "561": {"content": "<sep>", "rstrip": true}}})"));
    return MustLoad();
  };
  const auto unsaid = with_legacy("");
  const auto legacy = with_legacy("\"legacy\": true,");
  const auto not_legacy = with_legacy("\"legacy\": false,");
  for (const Case& c : cases) {
    const EncodeOptions options{.parse_special = true};
    EXPECT_EQ(*unsaid->Encode(c.text, options), c.legacy) << c.text;
    EXPECT_EQ(*legacy->Encode(c.text, options), c.legacy) << c.text;
    EXPECT_EQ(*not_legacy->Encode(c.text, options), c.not_legacy) << c.text;
  }
  EXPECT_EQ(*legacy->Encode("<s>the", {.add_bos = true, .parse_special = true}), Ids({1, 1, 284}))
      << "as there: BOS is added whatever the text has";
  EXPECT_EQ(*not_legacy->Encode("World</s>", {.continuation = true, .parse_special = true}),
            Ids({92, 263, 499, 507, 2}))
      << "no prefix in the middle of a session";
  const Ids literal = *legacy->Encode("a</s><mask>");
  for (const int32_t id : literal) {
    EXPECT_LT(id, kBpeSize) << "unless asked for, spellings are text";
    EXPECT_NE(id, 2);
  }
  EXPECT_THAT(*legacy->Encode("x <sep> y"), Contains(561)) << "it is not special";
}

TEST_F(TokenizerLoaderTest, OfManySpecialTokensTheLongestThatIsSpelledIsFound) {
  WriteBpeModel();
  constexpr int kTokens = 2000;
  facts_.vocab_size = kBpeSize + kTokens;
  std::string added;
  for (int i = 0; i < kTokens; ++i) {
    absl::StrAppend(&added, i == 0 ? "" : ",", "\"", kBpeSize + i, "\": {\"content\": \"<<", i,
                    "\", \"special\": true}");
  }
  WriteConfig(absl::StrCat("{\"added_tokens_decoder\": {", added, "}}"));
  const auto tokenizer = MustLoad();
  const AddedTokens& added_tokens = tokenizer->added_tokens();
  const std::string text(1000, '<');
  EXPECT_EQ(added_tokens.Split(text, true, {}).size(), 1u);
  const std::string ending = text + "1999</s>";
  const auto parts = added_tokens.Split(ending, true, {});
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].text.size(), text.size() - 2);
  EXPECT_EQ(parts[1].token->id, kBpeSize + 1999) << "not 1, 19 or 199";
  EXPECT_EQ(parts[2].token->id, 2);
  const UnbrokenText unbroken = TakeOutBreaks(added_tokens.Broken(ending));
  EXPECT_EQ(unbroken.text, ending);
  EXPECT_THAT(added_tokens.Split(ending, true, unbroken.breaks), testing::SizeIs(1));
}

TEST_F(TokenizerLoaderTest, SpecialTokensComeFromTheTokenizerBeforeTheModel) {
  WriteBpeModel();
  facts_.bos_token_id = 5;
  const auto own = MustLoad();
  EXPECT_EQ(own->bos_id(), 1);
  EXPECT_THAT(own->notes(), ElementsAre(HasSubstr("id 5")));

  WriteConfig(R"({"bos_token": "</s>", "add_bos_token": false, "add_eos_token": true})");
  const auto configured = MustLoad();
  EXPECT_EQ(configured->bos_id(), 2);
  EXPECT_FALSE(configured->adds_bos());
  EXPECT_EQ(configured->Encode("a", {.add_bos = true})->front(), 2) << "only the default is off";
  EXPECT_THAT(configured->notes(), Contains(HasSubstr("add_eos_token")));

  WriteConfig(R"({"bos_token": null})");
  EXPECT_EQ(MustLoad()->bos_id(), std::nullopt);

  WriteConfig(R"({"bos_token": "<nowhere>"})");
  const auto unknown = MustLoad();
  EXPECT_EQ(unknown->bos_id(), 1);
  EXPECT_THAT(unknown->notes(), Contains(HasSubstr("<nowhere>")));
}

TEST_F(TokenizerLoaderTest, BrokenTokenizerModelNamesTheFile) {
  std::vector<std::string> broken = {"",
                                     "x",
                                     "not a model at all",
                                     std::string(100, '\0'),
                                     std::string(100, '\xFF'),
                                     "{\"model\": {}}"};
  for (size_t size = 1; size < bpe_.size(); size += 97) broken.push_back(bpe_.substr(0, size));
  for (const std::string& bytes : broken) {
    folder_.Write("tokenizer.model", bytes);
    EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument),
                HasSubstr(folder_.path() + "/tokenizer.model"))
        << bytes.size() << " bytes";
  }
}

TEST_F(TokenizerLoaderTest, TokenizerModelThatIsAFolderIsRefused) {
  std::filesystem::create_directory(folder_.path() + "/tokenizer.model");
  EXPECT_THAT(LoadError(absl::StatusCode::kFailedPrecondition), HasSubstr("tokenizer.model"));
}

TEST_F(TokenizerLoaderTest, BrokenTokenizerConfigNamesFileAndKey) {
  WriteBpeModel();
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", "JSON"},
           {"[]", "is [], expected an object"},
           {R"({"bos_token": 5})", "key \"bos_token\" is 5"},
           {R"({"eos_token": {"contents": "x"}})", "eos_token"},
           {R"({"add_bos_token": "yes"})", "key \"add_bos_token\" is \"yes\""},
           {R"({"tokenizer_class": 7})", "key \"tokenizer_class\" is 7"},
           {R"({"added_tokens_decoder": {"x": "y"}})", "added_tokens_decoder"},
           {R"({"added_tokens_decoder": {"-1": "y"}})", "added_tokens_decoder"},
           {R"({"added_tokens_decoder": {"3": 4}})", "added_tokens_decoder: key \"3\" is 4"},
           {R"({"added_tokens_decoder": []})", "added_tokens_decoder"}}) {
    WriteConfig(json);
    EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument),
                AllOf(HasSubstr("tokenizer_config.json"), HasSubstr(message)));
  }
}

TEST_F(TokenizerLoaderTest, ADeeplyNestedTokenizerConfigIsRefused) {
  WriteBpeModel();
  WriteConfig(
      absl::StrCat("{\"bos_token\":", std::string(100'000, '['), std::string(100'000, ']'), "}"));
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument), HasSubstr("nested deeper"));
}

TEST_F(TokenizerLoaderTest, MissingFolderAndBadFactsAreInvalid) {
  EXPECT_EQ(LoadTokenizer("/nowhere/at/all", facts_).status().code(),
            absl::StatusCode::kInvalidArgument);
  WriteBpeModel();
  facts_.bos_token_id = kBpeSize;
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("bos_token_id is 560"), HasSubstr("559")));
  facts_ = {};
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument), HasSubstr("vocab_size is 0"));
}

// Unigram finds whatever its vocabulary has, special tokens too.
TEST_F(TokenizerLoaderTest, SpellingsThatAreTextAreNoSpecialTokensOfTheModelEither) {
  folder_.Write("tokenizer.json", R"({
    "added_tokens": [{"id": 0, "content": "</s>", "special": true}],
    "model": {"type": "Unigram", "unk_id": 1, "vocab": [
      ["</s>", 0], ["<unk>", 0], ["<", -2], ["/", -2], ["s", -2], [">", -2], ["a", -2]]}})");
  facts_.vocab_size = 7;
  const auto tokenizer = MustLoad();
  EXPECT_EQ(*tokenizer->Encode("a</s>a", {.parse_special = true}), Ids({6, 0, 6}));
  EXPECT_EQ(*tokenizer->Encode("a</s>a"), Ids({6, 2, 3, 4, 5, 6}));
  const EncodeOptions with_breaks{.parse_special = true, .has_breaks = true};
  EXPECT_EQ(*tokenizer->Encode(tokenizer->Broken("</s>") + "</s>", with_breaks),
            Ids({2, 3, 4, 5, 0}));
}

TEST_F(TokenizerLoaderTest, AnEmptyTokenIsCountedWhereAddedTokensGetTheirIds) {
  folder_.Write("tokenizer.json", R"({
    "added_tokens": [{"id": 3, "content": "<x>", "special": true}],
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"": 0, "a": 1, "b": 2}}})");
  facts_.vocab_size = 4;
  const auto tokenizer = MustLoad();
  EXPECT_EQ(tokenizer->entry(2).piece, "b");
  EXPECT_EQ(*tokenizer->Encode("<x>", {.parse_special = true}), Ids({3}));
}

TEST_F(TokenizerLoaderTest, OldFilesOfAnotherClassAreRefusedByName) {
  folder_.Write("vocab.json", R"({"a": 0})");
  folder_.Write("merges.txt", "#version: 0.2\n");
  WriteConfig(R"({"tokenizer_class": "WhisperTokenizer"})");
  EXPECT_THAT(LoadError(absl::StatusCode::kUnimplemented), HasSubstr("WhisperTokenizer"));
}

TEST_F(TokenizerLoaderTest, TokensAroundTextsAreTokensOfTheModel) {
  folder_.Write("tokenizer.json", R"({
    "post_processor": {"type": "BertProcessing", "sep": ["c", 777], "cls": ["c", 1]},
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "c": 1}}})");
  facts_.vocab_size = 100;
  EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument), HasSubstr("777"));
}

// A vocabulary that is padded has room for one that is added behind it.
TEST_F(TokenizerLoaderTest, TokensAroundTextsAreInTheFolder) {
  facts_.vocab_size = 100;
  folder_.Write("vocab.txt", "[PAD]\n[UNK]\n[SEP]\na\n");
  for (const char* config : {R"({"tokenizer_class": "BertTokenizer"})",
                             R"({"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]"})",
                             R"({"tokenizer_class": "BertTokenizer",
            "added_tokens_decoder": {"2": {"content": "[CLS]", "special": true}}})"}) {
    WriteConfig(config);
    EXPECT_THAT(LoadError(absl::StatusCode::kInvalidArgument),
                AllOf(HasSubstr("vocab.txt: BertTokenizer puts cls_token \"[CLS]\""),
                      HasSubstr("expected it there")));
  }
  WriteConfig(R"({"tokenizer_class": "BertTokenizer",
                  "added_tokens_decoder": {"4": {"content": "[CLS]", "special": true}}})");
  EXPECT_EQ(*MustLoad()->Encode("a", {.add_bos = true, .add_eos = true}), Ids({4, 3, 2}));

  TestFolder folder;
  folder.Write("tokenizer.json", R"({
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}},
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}})");
  const absl::Status refused = LoadTokenizer(folder.path(), facts_).status();
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("tokenizer.json: post_processor puts \"[CLS]\" (id 1)"),
                    HasSubstr("neither in model.vocab nor in added_tokens")));
}

// Work that is not linear would take minutes.
TEST_F(TokenizerLoaderTest, WhiteSpaceThatTokensStripIsLookedAtOnce) {
  folder_.Write("tokenizer.json", R"({
    "added_tokens": [{"id": 1, "content": "\n", "special": false, "rstrip": true}],
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})");
  facts_.vocab_size = 2;
  EXPECT_TRUE(MustLoad()->Encode(std::string(1 << 20, '\n')).ok());
}

}  // namespace
}  // namespace mneme
