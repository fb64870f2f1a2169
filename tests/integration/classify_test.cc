// Classify against real servers with real, tiny models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "clients/cpp/error_details.h"
#include "models/safetensors.h"
#include "tests/integration/running_server.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/test_folder.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const char* name) {
  const SafetensorsTensor* tensor = file.header().Find(name);
  CHECK(tensor != nullptr) << name;
  std::vector<T> values(static_cast<size_t>(tensor->elements()));
  std::memcpy(values.data(), file.Bytes(*tensor).data(), values.size() * sizeof(T));
  return values;
}

TEST(ClassifyTest, LogitsAreThoseOfTheReference) {
  RunningServer server({}, "bert");
  const auto file = SafetensorsFile::Open("tests/golden/bert/golden.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto ids = Values<int32_t>(*file, "input_ids");
  const auto mask = Values<int32_t>(*file, "attention_mask");
  const auto types = Values<int32_t>(*file, "token_type_ids");
  const auto logits = Values<float>(*file, "logits");
  v1::ClassifyRequest request;
  const size_t length = ids.size() / 3;
  for (size_t d = 0; d < 3; ++d) {
    v1::Document& document = *request.add_documents();
    for (size_t i = d * length; i < (d + 1) * length && mask[i] != 0; ++i) {
      document.mutable_token_ids()->add_ids(ids[i]);
      document.add_token_types(types[i]);
    }
  }
  const auto response = server.client().Classify(request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->results_size(), 3);
  int64_t tokens = 0;
  for (int d = 0; d < 3; ++d) {
    const v1::Classification& result = response->results(d);
    double sum = 0;
    for (int c = 0; c < 3; ++c) {
      EXPECT_NEAR(result.logits(c), logits[static_cast<size_t>(d * 3 + c)], 1e-5);
      EXPECT_LE(result.probabilities(c), result.probabilities(result.label_id()));
      sum += result.probabilities(c);
    }
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(result.label(), absl::StrCat("LABEL_", result.label_id()));
    tokens += result.prompt_tokens();
  }
  EXPECT_EQ(response->usage().prompt_tokens(), tokens);
  EXPECT_EQ(response->model(), "bert");
  const auto info = server.client().GetInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_THAT(info->model().classes(), ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
  EXPECT_EQ(info->model().class_scores(), "softmax");
  EXPECT_EQ(info->model().segment_tokens(), 20);
  EXPECT_FALSE(info->model().takes_long_documents());
}

// Files of a tokenizer around texts and pairs, as transformers puts them together.
class ClassifyTextsTest : public ::testing::Test {
 protected:
  void MakeModel(const char* model_type, const char* tokenizer_file) {
    MakeFolder(MatrixSpec(model_type, {{"vocab_size", 600}}), folder_);
    for (const char* name : {tokenizer_file, "tokenizer_config.json"}) {
      folder_.CopyFrom("tests/golden/tokenizer_wordpiece", name);
    }
  }
  static v1::ClassifyRequest OfText(const std::string& text, const char* pair = nullptr) {
    v1::ClassifyRequest request;
    request.add_documents()->set_text(text);
    if (pair != nullptr) request.mutable_documents(0)->set_text_pair(pair);
    return request;
  }
  static std::vector<float> Logits(RunningServer& server, const v1::ClassifyRequest& request) {
    const auto response = server.client().Classify(request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    return {response->results(0).logits().begin(), response->results(0).logits().end()};
  }

  TestFolder folder_;
};

class ClassifyTemplateTest : public ClassifyTextsTest,
                             public testing::WithParamInterface<const char*> {};

TEST_P(ClassifyTemplateTest, TheTokenizersTemplateStandsAroundTextsAndPairs) {
  MakeModel("bert", GetParam());
  RunningServer server({}, folder_.path().c_str());
  for (const char* pair : {static_cast<const char*>(nullptr), "and another"}) {
    v1::TokenizeRequest tokenize;
    tokenize.set_text("hello world");
    if (pair != nullptr) tokenize.set_text_pair(pair);
    const auto tokens = server.client().Tokenize(tokenize);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    ASSERT_EQ(tokens->token_ids(0), 2) << "[CLS]";
    v1::ClassifyRequest ids;
    *ids.add_documents()->mutable_token_ids()->mutable_ids() = tokens->token_ids();
    *ids.mutable_documents(0)->mutable_token_types() = tokens->type_ids();
    EXPECT_EQ(Logits(server, OfText("hello world", pair)), Logits(server, ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ClassifyTemplateTest,
                         testing::Values("tokenizer.json", "vocab.txt"), [](const auto& info) {
                           return std::string(info.param).substr(0, info.param[0] == 't' ? 9 : 5);
                         });

TEST_F(ClassifyTextsTest, LongDocumentsGoThroughAMemorySegmentBySegment) {
  MakeModel("memoria_bert", "tokenizer.json");
  RunningServer server({}, folder_.path().c_str());
  std::string text;
  for (int i = 0; i < 60; ++i) text += "hello world ";
  const auto response = server.client().Classify(OfText(text));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_GT(response->results(0).prompt_tokens(), 10 * 16);
  EXPECT_EQ(response->usage().fed_tokens() % 16, 0);
  const auto info = server.client().GetInfo();
  EXPECT_TRUE(info->model().takes_long_documents());
  EXPECT_EQ(info->model().segment_tokens(), 16);
  EXPECT_THAT(info->model().classes(), ElementsAre("NEGATIVE", "POSITIVE"));
}

TEST_F(ClassifyTextsTest, DocumentsAndPairsThatAreTooLongAreRefused) {
  MakeModel("bert", "tokenizer.json");
  RunningServer server({}, folder_.path().c_str());
  std::string text;
  for (int i = 0; i < 60; ++i) text += "hello ";
  v1::ClassifyRequest request = OfText("hello");
  request.add_documents()->set_text(text);
  request.mutable_documents(1)->set_text_pair(text);
  const absl::Status refusal = server.client().Classify(request).status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("documents[1].text has "));
  EXPECT_THAT(std::string(refusal.message()),
              HasSubstr("tokens, expected at most 130, the positions that the model has"));
  v1::ClassifyRequest mixed;
  mixed.add_documents()->mutable_token_ids()->add_ids(5);
  mixed.mutable_documents(0)->set_text_pair("a");
  EXPECT_THAT(std::string(server.client().Classify(mixed).status().message()),
              HasSubstr("documents[0].text_pair is there beside token_ids"));
  EXPECT_THAT(std::string(server.client().Classify({}).status().message()),
              HasSubstr("documents has 0, expected 1 to 1024"));
}

TEST_F(ClassifyTextsTest, ATokenizerWithoutTheTemplatesTokensDoesNotLoad) {
  MakeModel("bert", "tokenizer.json");
  nlohmann::json files = nlohmann::json::parse(folder_.Read("tokenizer.json"));
  files["post_processor"]["special_tokens"].erase("[SEP]");
  folder_.Write("tokenizer.json", files.dump());
  const std::string path = folder_.path();
  const std::vector<const char*> flags = {"--model", path.c_str(), "--threads=1"};
  const auto line = ParseCommandLine(flags, [](const char*) { return nullptr; });
  ASSERT_TRUE(line.ok()) << line.status();
  RealClock clock;
  LoadError error;
  EXPECT_EQ(LoadEngine(line->config, clock, nullptr, {}, error), nullptr);
  EXPECT_THAT(
      std::string(error.status.message()),
      HasSubstr("post_processor.single.id is \"[SEP]\", expected a name of special_tokens"));
}

TEST(ClassifyKindTest, EachKindOfModelRefusesTheOthersRequests) {
  RunningServer generates;
  v1::ClassifyRequest request;
  request.add_documents()->set_text("a");
  const absl::Status none = generates.client().Classify(request).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DetailsOf(none).reason, "WRONG_KIND_OF_MODEL");
  RunningServer classifies({}, "roberta");
  v1::GenerateRequest generate;
  generate.mutable_token_ids()->add_ids(5);
  const Reply answer = classifies.Generate(generate);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DetailsOf(answer.status).reason, "WRONG_KIND_OF_MODEL");
  v1::ChatRequest chat;
  chat.add_messages()->set_role("user");
  chat.mutable_messages(0)->set_content("a");
  EXPECT_EQ(DetailsOf(classifies.client().Chat(chat, [](const v1::GenerateResponse&) {})).reason,
            "WRONG_KIND_OF_MODEL");
}

}  // namespace
}  // namespace mneme
