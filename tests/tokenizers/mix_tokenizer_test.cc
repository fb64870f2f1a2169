// Folders of all sorts, and what the packages answer (tests/golden/tokenizer_mix/README.md).
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/tokenizers/tokenizer_golden.h"
#include "tokenizers/streaming_decoder.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {
namespace {

using Ids = std::vector<int32_t>;
// Keys keep their order: "model_specific" tokens are added in it.
using OrderedJson = nlohmann::ordered_json;

class MixTokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream file("tests/golden/tokenizer_mix/mix.jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    head_ = OrderedJson::parse(line);
    while (std::getline(file, line)) {
      OrderedJson folder = OrderedJson::parse(line);
      if (absl::StartsWith(folder["name"].get<std::string>(), absl::StrCat(GetParam(), ": "))) {
        folders_.push_back(std::move(folder));
      }
    }
    ASSERT_FALSE(folders_.empty());
  }

  static std::string ById(const OrderedJson& vocab) {
    std::vector<std::string> lines(vocab.size());
    for (const auto& [token, id] : vocab.items()) lines[id.get<size_t>()] = token;
    std::string text;
    for (const std::string& each : lines) absl::StrAppend(&text, each, "\n");
    return text;
  }

  void Write(const OrderedJson& folder, const TestFolder& out) const {
    OrderedJson model = head_["models"][folder["model"].get<std::string>()];
    if (folder.contains("model_options")) model.update(folder["model_options"]);
    const OrderedJson files = folder.value("files", OrderedJson::array({"tokenizer.json"}));
    for (const OrderedJson& name : files) {
      if (name == "tokenizer.json") {
        OrderedJson whole = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
        whole["added_tokens"] = OrderedJson::array();
        const std::vector<std::string> specials = {"<unk>", "<s>", "</s>", "<pad>"};
        for (size_t id = 0; id < specials.size(); ++id) {
          whole["added_tokens"].push_back({{"id", id},
                                           {"content", specials[id]},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false},
                                           {"special", true}});
        }
        for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
          whole[key] = nullptr;
        }
        for (const auto& [key, index] : folder["parts"].items()) {
          whole[key] = head_["shared"][index.get<size_t>()];
        }
        whole["model"] = model;
        out.Write(name, whole.dump());
      } else if (name == "vocab.json") {
        out.Write(name, model["vocab"].dump());
      } else if (name == "vocab.txt") {
        out.Write(name, ById(model["vocab"]));
      } else {
        std::string text = "#version: 0.2\n";
        for (const OrderedJson& merge : model["merges"]) {
          absl::StrAppend(&text, merge[0].get<std::string>(), " ", merge[1].get<std::string>(),
                          "\n");
        }
        out.Write(name, text);
      }
    }
    if (folder.contains("config")) out.Write("tokenizer_config.json", folder["config"].dump());
    if (!folder.contains("extra")) return;
    for (const auto& [name, contents] : folder["extra"].items()) out.Write(name, contents.dump());
  }

  OrderedJson head_;
  std::vector<OrderedJson> folders_;
};

void ExpectAnswer(const Tokenizer& tokenizer, const OrderedJson& question,
                  const OrderedJson& answer) {
  SCOPED_TRACE(question.dump());
  if (question.contains("ids")) {
    const DecodeOptions options{.skip_special_tokens = question["skip_special_tokens"]};
    const Ids ids = question["ids"];
    const auto text = tokenizer.Decode(ids, options);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, answer["text"].get<std::string>());
    StreamingDecoder decoder(tokenizer, options);
    std::string streamed;
    for (const int32_t id : ids) decoder.Push(id, streamed);
    decoder.Flush(streamed);
    EXPECT_EQ(streamed, *text);
    return;
  }
  const bool adds = question.value("add_special_tokens", false);
  const EncodeOptions options{.add_bos = adds, .add_eos = adds, .parse_special = true};
  const auto text = question["text"].get<std::string>();
  if (question.contains("pair")) {
    WorkMeter meter;
    const auto pair =
        tokenizer.EncodePair(text, question["pair"].get<std::string>(), options, meter);
    ASSERT_TRUE(pair.ok()) << pair.status();
    EXPECT_EQ(pair->ids, answer["ids"].get<Ids>());
    EXPECT_EQ(pair->type_ids, answer["type_ids"].get<Ids>());
    return;
  }
  const auto ids = tokenizer.Encode(text, options);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, answer["ids"].get<Ids>());
}

TEST_P(MixTokenizerTest, AnswersAsThePackagesDo) {
  for (const OrderedJson& folder : folders_) {
    SCOPED_TRACE(folder["name"].get<std::string>());
    TestFolder files;
    Write(folder, files);
    TokenizerFacts facts;
    facts.vocab_size = folder["size"];
    facts.model_type = folder.value("model_type", "");
    const auto tokenizer = LoadTokenizer(files.path(), facts);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    if (!tokenizer.ok()) continue;
    for (const OrderedJson& one : folder["cases"]) ExpectAnswer(**tokenizer, one[0], one[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MixTokenizerTest,
                         testing::Values("normalizer", "pre-tokenizer", "decoder", "post-processor",
                                         "model", "added", "class", "model type", "vocab.json",
                                         "vocab.txt", "sources"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' || c == ' ' || c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace mneme
