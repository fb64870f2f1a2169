// The description of a model's tokenizer for clients: what its files say, as far as the server goes
// by it.
#include "server/openai/tokenizer_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "tests/server/fake_engine.h"
#include "tokenizers/byte_tokenizer.h"

namespace mneme {
namespace {

class TokenizerInfoTest : public ::testing::Test {
 protected:
  TokenizerInfoTest() {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = ::testing::TempDir() + "tokenizer_info_" + name;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~TokenizerInfoTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  Json Info(std::optional<int64_t> max_length = std::nullopt) const {
    return TokenizerInfo(folder_, *tokenizer_, max_length).value();
  }

  std::string folder_;
  const std::unique_ptr<Tokenizer> tokenizer_ = *MakeByteTokenizer(259, 256, 257);
};

TEST_F(TokenizerInfoTest, TheLengthIsTheSmallerOfTheLimits) {
  FakeEngine engine;
  EXPECT_EQ(MaxModelLength(engine), std::nullopt);
  engine.set_max_context(16);
  EXPECT_EQ(MaxModelLength(engine), 16);
  engine.set_max_request_tokens(50);
  EXPECT_EQ(MaxModelLength(engine), 16);
  engine.set_max_request_tokens(9);
  EXPECT_EQ(MaxModelLength(engine), 9);
  engine.set_max_context(0);
  EXPECT_EQ(MaxModelLength(engine), 9);
}

TEST_F(TokenizerInfoTest, AFolderWithoutFilesIsDescribedByItsTokenizer) {
  const Json info = Info();
  EXPECT_EQ(info["bos_token"], tokenizer_->entry(256).piece);
  EXPECT_EQ(info["eos_token"], tokenizer_->entry(257).piece);
  EXPECT_NE(info["eos_token"], "");
  EXPECT_EQ(info["unk_token"], nullptr);
  EXPECT_EQ(info["pad_token"], nullptr);
  EXPECT_EQ(info["chat_template"], nullptr);
  EXPECT_EQ(info["add_bos_token"], tokenizer_->adds_bos());
  EXPECT_EQ(info["add_eos_token"], false);
  EXPECT_EQ(info["tokenizer_class"], "ByteTokenizer");
  EXPECT_EQ(info["model_max_length"], 1e30);
  EXPECT_EQ(info["added_tokens_decoder"]["257"]["content"], info["eos_token"]);
  EXPECT_EQ(info["added_tokens_decoder"]["257"]["special"], true);
  EXPECT_FALSE(info["added_tokens_decoder"].contains("97"));
  EXPECT_EQ(info["vocab_size"], 259);
  EXPECT_EQ(info["bos_token_id"], 256);
  EXPECT_EQ(info["eos_token_id"], 257);
  EXPECT_EQ(Info(4096)["model_max_length"], 4096);
}

TEST_F(TokenizerInfoTest, WhatTheFileSaysIsKept) {
  Write("tokenizer_config.json", R"({
    "tokenizer_class": "LlamaTokenizer", "model_max_length": 2048, "legacy": true,
    "added_tokens_decoder": {"0": {"content": "<unk>", "special": true}},
    "pad_token": {"content": "<pad>", "lstrip": false},
    "additional_special_tokens": ["<a>", {"content": "<b>"}],
    "chat_template": "{{ messages }}", "sp_model_kwargs": {}})");
  const Json info = Info(4096);
  EXPECT_EQ(info["tokenizer_class"], "LlamaTokenizer");
  EXPECT_EQ(info["model_max_length"], 2048);
  EXPECT_EQ(info["legacy"], true);
  EXPECT_EQ(info["added_tokens_decoder"].dump(), R"({"0":{"content":"<unk>","special":true}})");
  EXPECT_EQ(info["pad_token"], "<pad>");
  EXPECT_EQ(info["additional_special_tokens"], Json::array({"<a>", "<b>"}));
  EXPECT_EQ(info["chat_template"], "{{ messages }}");
  EXPECT_EQ(info["sp_model_kwargs"], Json::object());
}

// A client that goes by them has to encode as /tokenize does.
TEST_F(TokenizerInfoTest, WhatTheServerDoesOtherwiseIsSaidAsItDoesIt) {
  Write("tokenizer_config.json", R"({"eos_token": "<not in the vocabulary>", "add_eos_token": true,
                                     "add_bos_token": false, "unk_token": "<unk>"})");
  const Json info = Info();
  EXPECT_EQ(info["eos_token"], tokenizer_->entry(257).piece);
  EXPECT_EQ(info["add_eos_token"], false);
  EXPECT_EQ(info["add_bos_token"], tokenizer_->adds_bos());
  EXPECT_EQ(info["unk_token"], nullptr);
}

TEST_F(TokenizerInfoTest, ATemplateOfItsOwnFileGoesBeforeThatOfTheConfiguration) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool", "template": "tool"},
                                                       {"name": "default", "template": "one"}]})");
  EXPECT_EQ(Info()["chat_template"], "one");
  Write("chat_template.jinja", "{% macro unsupported() %}{% endmacro %}");
  EXPECT_EQ(Info()["chat_template"], "{% macro unsupported() %}{% endmacro %}");
}

TEST_F(TokenizerInfoTest, PathsOfTheMachineThatMadeItAreNotTold) {
  Write("tokenizer_config.json",
        R"({"name_or_path": "/home/somebody/model", "vocab_file": "/home/somebody/v"})");
  EXPECT_EQ(Info().dump().find("somebody"), std::string::npos);
}

}  // namespace
}  // namespace mneme
