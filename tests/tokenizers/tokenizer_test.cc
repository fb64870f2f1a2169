#include "tokenizers/tokenizer.h"

#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "gmock/gmock.h"
#include "tests/tokenizers/tokenizer_golden.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

Ids Join(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = LoadGoldenTokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
    golden_ = ReadGolden(GetParam());
  }

  Ids Encode(const std::string& text, bool continuation = false) const {
    const auto ids = tokenizer_->Encode(text, {.continuation = continuation});
    EXPECT_TRUE(ids.ok()) << ids.status().ToString();
    return ids.value_or(Ids());
  }
  std::string Decode(const Ids& ids) const {
    const auto text = tokenizer_->Decode(ids);
    EXPECT_TRUE(text.ok()) << text.status().ToString();
    return text.value_or("");
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

TEST_P(TokenizerGoldenTest, IdsAndPiecesEqualThoseOfThePackage) {
  for (const auto& golden : golden_["cases"]) {
    const auto text = golden["text"].get<std::string>();
    const Ids ids = Encode(text);
    EXPECT_EQ(ids, golden["ids"].get<Ids>()) << absl::CHexEscape(text);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(tokenizer_->entry(ids[i]).piece, golden["pieces"][i].get<std::string>());
    }
  }
}

TEST_P(TokenizerGoldenTest, DecodedTextEqualsThatOfThePackage) {
  for (const char* list : {"cases", "decode_only"}) {
    for (const auto& golden : golden_[list]) {
      const Ids ids = golden["ids"];
      EXPECT_EQ(Decode(ids), golden["decoded"].get<std::string>()) << golden["ids"];
    }
  }
}

TEST_P(TokenizerGoldenTest, SpecialIdsAreThoseOfTheModel) {
  EXPECT_EQ(tokenizer_->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<int>());
  EXPECT_EQ(tokenizer_->bos_id(), golden_["bos_id"].get<int>());
  EXPECT_EQ(tokenizer_->eos_id(), golden_["eos_id"].get<int>());
  EXPECT_EQ(tokenizer_->unk_id(), golden_["unk_id"].get<int>());
  EXPECT_TRUE(tokenizer_->adds_bos());
  EXPECT_THAT(tokenizer_->notes(), ElementsAre());
}

TEST_P(TokenizerGoldenTest, BosIsAddedOnRequestOnlyAndEosNever) {
  const Ids plain = Encode("state");
  EXPECT_EQ(*tokenizer_->Encode("state", {.add_bos = true}), Join({1}, plain));
  EXPECT_EQ(*tokenizer_->Encode("", {.add_bos = true}), Ids({1}));
  EXPECT_EQ(*tokenizer_->Encode(""), Ids());
  EXPECT_EQ(Decode(Join({1}, plain)), "state");
}

TEST_P(TokenizerGoldenTest, ControlTokensAreNotFoundInTextUnlessAskedFor) {
  for (const int32_t id : Encode("<s>a</s>")) {
    EXPECT_NE(tokenizer_->entry(id).kind, TokenKind::kControl) << id;
  }
}

TEST_P(TokenizerGoldenTest, SpecialTokensAreSpelledOutOnRequest) {
  const Ids ids = Join(Join({1}, Encode("state")), {2});
  EXPECT_EQ(*tokenizer_->Decode(ids, {.skip_special_tokens = false}), "<s> state</s>");
}

TEST_P(TokenizerGoldenTest, ContinuationJoinsWithoutASpace) {
  EXPECT_EQ(Decode(Join(Encode("mem"), Encode("ory", true))), "memory");
  EXPECT_EQ(Decode(Join(Encode("mem"), Encode("ory"))), "mem ory");
  EXPECT_NE(Encode("ory", true), Encode("ory"));
  EXPECT_EQ(Encode("", true), Ids());
}

TEST_P(TokenizerGoldenTest, ContinuationKeepsTheSpaceBetweenWords) {
  EXPECT_EQ(Join(Encode("the memory"), Encode(" keeps state", true)),
            Encode("the memory keeps state"));
  EXPECT_EQ(Decode(Join(Encode("the"), Encode("\xE2\x80\x8B\xE2\x80\x8B x", true))).back(), 'x');
}

TEST_P(TokenizerGoldenTest, IdsOutsideTheVocabularyAreNamed) {
  const int size = tokenizer_->vocab_size();
  for (const int32_t id : {-1, size, INT32_MAX, INT32_MIN}) {
    const auto text = tokenizer_->Decode(Ids{5, id});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(text.status().message(),
              absl::StrCat("token id ", id, " at index 1 is outside the vocabulary, expected 0 to ",
                           size - 1));
  }
}

TEST_P(TokenizerGoldenTest, InvalidUtf8IsRefusedWithItsOffset) {
  for (const auto& [text, offset] : std::vector<std::pair<std::string, int>>{
           {"\xFF", 0}, {"ab\xC3", 2}, {"\xE2\x82\xAC\x80", 3}, {"ok\xED\xA0\x80", 2}}) {
    const auto ids = tokenizer_->Encode(text);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()),
                HasSubstr(absl::StrCat("offset ", offset, " ")))
        << absl::CHexEscape(text);
  }
}

TEST_P(TokenizerGoldenTest, TooLongTextIsRefused) {
  const std::string text(Tokenizer::kMaxTextBytes + 1, 'a');
  const auto ids = tokenizer_->Encode(text);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("expected at most"));
}

TEST_P(TokenizerGoldenTest, AMillionBytesEncodeAsTheirWordsDo) {
  std::string text = "the";
  Ids want = Encode("the");
  const Ids words = Encode(" memory keeps state", true);
  while (text.size() < 1'000'000) {
    text += " memory keeps state";
    want.insert(want.end(), words.begin(), words.end());
  }
  EXPECT_EQ(Encode(text), want);
  EXPECT_EQ(Decode(want), text);
}

TEST_P(TokenizerGoldenTest, ThreadsShareOneTokenizer) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (const auto& golden : golden_["cases"]) {
        const auto ids = tokenizer_->Encode(golden["text"].get<std::string>());
        EXPECT_EQ(*ids, golden["ids"].get<Ids>());
        EXPECT_EQ(*tokenizer_->Decode(*ids), golden["decoded"].get<std::string>());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGoldenTest, testing::Values("bpe", "unigram"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SentencePieceContinuationTest, ModelThatKeepsWhiteSpaceKeepsEveryByteOfEveryTurn) {
  const auto tokenizer = LoadGoldenTokenizer("bpe");
  const std::vector<std::string> turns = {"x",
                                          "  two",
                                          "\n\n three ",
                                          " ",
                                          "\t",
                                          std::string("four\0five", 9),
                                          "\xE2\x96\x81",
                                          "\xF0\x9F\x98\x80",
                                          "end  "};
  Ids ids;
  std::string text;
  for (const std::string& turn : turns) {
    ids = Join(ids, *tokenizer->Encode(turn, {.continuation = !ids.empty()}));
    // U+2581 is a space to SentencePiece.
    text += turn == "\xE2\x96\x81" ? " " : turn;
    EXPECT_EQ(*tokenizer->Decode(ids), text);
  }
}

TEST(SentencePieceContinuationTest, ModelThatSqueezesWhiteSpaceKeepsOneLeadingSpace) {
  const auto tokenizer = LoadGoldenTokenizer("unigram");
  const Ids start = *tokenizer->Encode("the");
  const auto joined = [&](const std::string& turn) {
    return *tokenizer->Decode(Join(start, *tokenizer->Encode(turn, {.continuation = true})));
  };
  EXPECT_EQ(joined("state"), "thestate");
  for (const char* space :
       {" ", "    ", "\n", "\t \r\n", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x96\x81"}) {
    EXPECT_EQ(joined(absl::StrCat(space, "state")), "the state") << absl::CHexEscape(space);
  }
  EXPECT_EQ(joined("   "), "the") << "nothing but white space is no text to this model";
  // Zero-width spaces normalise to spaces or nothing; a thousand of anything must not hide the
  // word.
  std::string controls(1000, '\x01');
  EXPECT_EQ(joined(controls + "state"), "thestate");
  EXPECT_EQ(joined(controls + " state"), "the state");
}

// Joining unknown characters takes the library quadratic time.
TEST(UnknownRunTest, OnlyAModelWithoutByteFallbackLimitsTheLengthOfUnknownText) {
  std::string run;
  for (int i = 0; i < 32768; ++i) run += "\xE9\xBE\x98";  // a character that neither model has
  const auto unigram = LoadGoldenTokenizer("unigram");
  EXPECT_EQ(unigram->Encode(run + " a " + run)->size(), 6u);
  const auto refused = unigram->Encode("a" + run + "\xE9\xBE\x98");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("32768"), HasSubstr("offset 98308")));
  EXPECT_EQ(LoadGoldenTokenizer("bpe")->Encode(run + run)->size(), 1 + 2 * 3 * 32768u);
}

}  // namespace
}  // namespace mneme
