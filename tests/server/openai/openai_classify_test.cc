// Documents over HTTP: what bodies may hold, what the engine is asked, and the answer's form.
#include "server/openai/openai_classify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "server/http/http_guard.h"
#include "server/openai/openai_service.h"
#include "tests/server/fake_engine.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OpenAiClassifyTest : public ::testing::Test {
 protected:
  OpenAiClassifyTest() {
    engine_.set_classes({.labels = {"no", "yes"}, .segment = 8, .one_segment = true, .types = 2});
    SecurityFailure failure;
    security_ = *Security::Create({}, clock_, failure);
    service_ = std::make_unique<OpenAiService>(access_, *security_);
    HttpRoutes routes;
    service_->AddRoutes(routes);
    HttpServerOptions options;
    options.port = 0;
    options.limits.max_body_bytes = 10000;
    options.on_exchange = [this](const HttpExchange& e) { service_->OnExchange(e); };
    GuardHttp(*security_, options);
    server_ = *HttpServer::Start(options, std::move(routes));
    ServingFacts facts;
    facts.model_name = "served";
    access_.Publish(engine_, facts);
  }

  nlohmann::json Ask(absl::string_view body, int status, const char* path = "/v1/classify") {
    RawHttpClient client(server_->port());
    client.SendRequest("POST", path, body, "x-request-id: doc\r\n");
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, status) << response.body;
    return nlohmann::json::parse(response.body);
  }
  std::string Refusal(absl::string_view body, int status = 400) {
    const nlohmann::json answer = Ask(body, status);
    return absl::StrCat(
        answer["error"]["param"].is_null() ? "" : answer["error"]["param"].get<std::string>(), ": ",
        answer["error"]["message"].get<std::string>());
  }
  // Each document has the logits 0 and the number of its tokens.
  void AnswerAll() {
    engine_.OnSubmit([](FakeRequest& fake) {
      fake.PushStart();
      TokenEvent end;
      end.finish = FinishReason::kStop;
      end.is_last = true;
      end.usage.prompt_tokens = static_cast<int64_t>(fake.request.prompt.at_start.size());
      end.usage.memory_evicted = end.usage.prompt_tokens > 6;
      end.class_logits = {0, static_cast<float>(fake.request.prompt.at_start.size())};
      fake.Push(end);
    });
  }

  RealClock clock_;
  EngineAccess access_{clock_};
  std::unique_ptr<Security> security_;
  FakeEngine engine_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(OpenAiClassifyTest, ADocumentIsAnsweredAsVllmDoes) {
  AnswerAll();
  for (const char* path : {"/v1/classify", "/classify"}) {
    const nlohmann::json answer = Ask(R"({"model": "served", "input": "ab"})", 200, path);
    EXPECT_EQ(answer["id"], "classify-doc");
    EXPECT_EQ(answer["object"], "list");
    EXPECT_EQ(answer["model"], "served");
    ASSERT_EQ(answer["data"].size(), 1u);
    const nlohmann::json& data = answer["data"][0];
    EXPECT_EQ(data["index"], 0);
    EXPECT_EQ(data["label"], "yes");
    EXPECT_EQ(data["num_classes"], 2);
    // BOS and EOS of the byte tokenizer are special tokens around texts.
    const int64_t tokens = answer["usage"]["prompt_tokens"];
    EXPECT_EQ(tokens,
              static_cast<int64_t>(engine_.WaitForRequest(0).request.prompt.at_start.size()));
    EXPECT_NEAR(data["probs"][1].get<double>(), 1 / (1 + std::exp(-static_cast<double>(tokens))),
                1e-6);
    EXPECT_EQ(answer["usage"]["total_tokens"], tokens);
    EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  }
  const Request& request = engine_.WaitForRequest(0).request;
  EXPECT_TRUE(request.classify);
  EXPECT_EQ(request.id, "doc");
  EXPECT_EQ(request.origin.api, "http");
}

TEST_F(OpenAiClassifyTest, DocumentsWhoseMemoryWasFullSaySo) {
  AnswerAll();
  const nlohmann::json answer = Ask(R"({"input": [[5], [5, 6, 7, 8, 9, 10, 11]]})", 200);
  EXPECT_FALSE(answer["data"][0].contains("memory_evicted"));
  EXPECT_EQ(answer["data"][1]["memory_evicted"], true);
  EXPECT_EQ(answer["usage"]["memory_evicted"], true);
  EXPECT_FALSE(Ask(R"({"input": [[5]]})", 200)["usage"].contains("memory_evicted"));
}

TEST_F(OpenAiClassifyTest, ListsHoldTextsPairsAndTokenIds) {
  AnswerAll();
  const nlohmann::json answer = Ask(R"({
    "input": ["a", [5, 6, 7], {"text": "a", "text_pair": "b"}],
    "add_special_tokens": false, "use_activation": false, "user": "u", "priority": 0})",
                                    200);
  ASSERT_EQ(answer["data"].size(), 3u);
  EXPECT_EQ(answer["data"][2]["index"], 2);
  EXPECT_THAT(answer["data"][1]["probs"].get<std::vector<double>>(), ElementsAre(0, 3));
  EXPECT_EQ(engine_.WaitForRequest(1).request.id, "doc-1");
  EXPECT_THAT(engine_.WaitForRequest(1).request.prompt.at_start, ElementsAre(5, 6, 7));
  EXPECT_THAT(engine_.WaitForRequest(2).request.token_types, ElementsAre(0, 1));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 1 + 3 + 2);
  // A list of numbers is one document.
  EXPECT_EQ(Ask(R"({"input": [5, 6]})", 200)["data"].size(), 1u);
}

TEST_F(OpenAiClassifyTest, MoreDocumentsThanRowsFollowOneAnother) {
  engine_.set_rows(2, 4);
  AnswerAll();
  std::string body = R"({"input": ["a")";
  for (int i = 1; i < 40; ++i) absl::StrAppend(&body, ", [", i % 7 + 1, "]");
  EXPECT_EQ(Ask(body + "]}", 200)["data"].size(), 40u);
  EXPECT_EQ(engine_.requests(), 40u);
}

TEST_F(OpenAiClassifyTest, WhatIsWrongIsNamedByTheBodysFields) {
  AnswerAll();
  EXPECT_THAT(Refusal("{}"), HasSubstr("input: input is missing"));
  EXPECT_THAT(Refusal(R"({"input": []})"), HasSubstr("expected 1 to 1024"));
  EXPECT_THAT(Refusal(R"({"input": 7})"), HasSubstr("expected a text, a list of token ids"));
  EXPECT_THAT(Refusal(R"({"input": ["a", {"text_pair": "b"}]})"),
              HasSubstr("input[1].text is missing"));
  EXPECT_THAT(Refusal(R"({"input": ["a", "123456789"]})"),
              HasSubstr("tokens, expected at most 8, the positions that the model has"));
  EXPECT_THAT(Refusal(R"({"input": ["a", {"text": "1234", "text_pair": "56789"}]})"),
              HasSubstr("input[1]: input[1] has"));
  EXPECT_THAT(Refusal(R"({"input": [[1, 300]]})"),
              HasSubstr("input[0][1] is 300, expected 0 to 258"));
  EXPECT_THAT(Refusal(R"({"input": "a", "truncate_prompt_tokens": 3})"),
              HasSubstr("truncate_prompt_tokens"));
  EXPECT_THAT(Refusal(R"({"input": "a", "prompt": "b"})"), HasSubstr("prompt"));
  EXPECT_EQ(engine_.requests(), 0u) << "nothing of a call is begun before all of it is known";
}

TEST_F(OpenAiClassifyTest, OneDocumentThatFailsEndsTheOthers) {
  RawHttpClient client(server_->port());
  client.SendRequest("POST", "/classify", R"({"input": ["a", "b"]})");
  engine_.WaitForRequest(1).PushEnd(absl::InternalError("a step failed"));
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("documents[1]: a step failed"));
  engine_.WaitForCancel(0);
}

TEST_F(OpenAiClassifyTest, AClientThatLeavesEndsItsDocuments) {
  {
    RawHttpClient client(server_->port());
    client.SendRequest("POST", "/classify", R"({"input": ["a", "b"]})");
    engine_.WaitForRequest(1);
  }
  engine_.WaitForCancel(0);
  engine_.WaitForCancel(1);
}

TEST_F(OpenAiClassifyTest, AModelThatGeneratesSaysSo) {
  engine_.set_classes({});
  EXPECT_THAT(Refusal(R"({"input": "a"})", 412),
              HasSubstr("the model generates text and has no classes"));
}

TEST_F(OpenAiClassifyTest, OtherEndpointsSayThatTheModelClassifies) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const nlohmann::json answer = Ask(std::string(path).find("chat") != std::string::npos
                                          ? R"({"messages": [{"role": "user", "content": "a"}]})"
                                          : R"({"prompt": "a"})",
                                      412, path);
    EXPECT_EQ(answer["error"]["code"], "wrong_kind_of_model") << answer.dump();
  }
}

}  // namespace
}  // namespace mneme
