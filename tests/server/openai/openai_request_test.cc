// Refusals of JSON bodies: each names the field as the body has it, at the beginning of its message
// and as `param`.
#include "server/openai/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status Read(OpenAiKind kind, const std::string& body, std::vector<HttpField> headers = {}) {
  HttpRequest http;
  http.body = body;
  http.fields = std::move(headers);
  WorkMeter meter;
  const absl::StatusOr<Json> json = ParseJsonBody(http, meter);
  if (!json.ok()) return json.status();
  return ToOpenAiRequest(kind, *json, http).status();
}

// `rest`: what a body has beside its prompt or messages, and the session.
std::string Body(OpenAiKind kind, absl::string_view rest) {
  return absl::StrCat(kind == OpenAiKind::kChat
                          ? R"({"messages": [{"role": "user", "content": "a"}])"
                          : R"({"prompt": "a")",
                      rest.empty() ? "" : ", ", rest, "}");
}

void ExpectTaken(const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); }

void ExpectRefused(const absl::Status& status, absl::string_view field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status), field) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(absl::StrCat(field, " ")));
}

TEST(OpenAiRequestTest, ValuesOfAnotherTypeAreRefusedByName) {
  const std::vector<std::string> of_both = {"model",
                                            "temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "repetition_penalty",
                                            "presence_penalty",
                                            "frequency_penalty",
                                            "seed",
                                            "logit_bias",
                                            "max_tokens",
                                            "min_tokens",
                                            "ignore_eos",
                                            "include_stop_str_in_output",
                                            "stop",
                                            "stop_token_ids",
                                            "n",
                                            "best_of",
                                            "skip_special_tokens",
                                            "surprise",
                                            "memory_use",
                                            "cache_prompt",
                                            "cache_salt",
                                            "cache_marks",
                                            "parse_special",
                                            "echo",
                                            "logprobs",
                                            "session_id",
                                            "session_ttl_ms",
                                            "create_session",
                                            "must_exist",
                                            "expected_position",
                                            "memory_seed",
                                            "idempotency_key",
                                            "priority",
                                            "stream",
                                            "stream_options",
                                            "tools",
                                            "response_format"};
  const std::vector<std::string> of_chats = {"max_completion_tokens", "top_logprobs",
                                             "add_generation_prompt", "chat_template_kwargs",
                                             "session_mode"};
  for (const OpenAiKind kind : {OpenAiKind::kCompletion, OpenAiKind::kChat}) {
    std::vector<std::string> names = of_both;
    if (kind == OpenAiKind::kChat) names.insert(names.end(), of_chats.begin(), of_chats.end());
    for (const std::string& name : names) {
      const std::string session = name == "session_id" ? "" : R"("session_id": "s", )";
      ExpectRefused(Read(kind, Body(kind, absl::StrCat(session, "\"", name, "\": [[1.5]]"))), name);
      ExpectTaken(Read(kind, Body(kind, absl::StrCat("\"", name, "\": null"))));
    }
  }
}

struct Refusal {
  std::string rest;
  std::string field;
};

TEST(OpenAiRequestTest, WhatWouldHaveNoEffectIsRefusedByName) {
  for (const auto& [rest, field] : std::vector<Refusal>{
           {R"("session_id": "")", "session_id"},
           {R"("idempotency_key": "")", "idempotency_key"},
           {R"("create_session": true)", "create_session"},
           {R"("must_exist": true)", "must_exist"},
           {R"("must_exist": 1, "session_id": "s")", "must_exist"},
           {R"("session_ttl_ms": 5)", "session_ttl_ms"},
           {R"("expected_position": 0)", "expected_position"},
           {R"("top_p": 1, "top_p": 1)", "top_p"},
           {R"("metadata": {"a": {"b": 1, "b": 2}})", "metadata.a.b"},
           {R"("logit_bias": {"5": 1, "05": 2})", "logit_bias"},
           {R"("stop_token_ids": {})", "stop_token_ids"},
           {R"("stream_options": {"include_usage": true})", "stream_options"},
           {R"("stream": true, "stream_options": {"other": 1})", "stream_options.other"},
           {R"("seed": 1e3)", "seed"},
           {R"("memory_seed": -1)", "memory_seed"},
           {R"("memory_seed": 18446744073709551616)", "memory_seed"},
           {R"("memory_seed": 7.0)", "memory_seed"},
           {R"("memory_seed": "")", "memory_seed"},
           {R"("memory_seed": "+7")", "memory_seed"},
           {R"("memory_seed": " 7")", "memory_seed"},
           {R"("memory_seed": "seven")", "memory_seed"},
           {R"("memory_seed": "18446744073709551616")", "memory_seed"},
           {R"("expected_position": 18446744073709551615, "session_id": "s")", "expected_position"},
           {R"("no_such_field": 1)", "no_such_field"},
       }) {
    for (const OpenAiKind kind : {OpenAiKind::kCompletion, OpenAiKind::kChat}) {
      ExpectRefused(Read(kind, Body(kind, rest)), field);
    }
  }
  for (const auto& [rest, field] : std::vector<Refusal>{
           {R"("session_mode": "whole")", "session_mode"},
           {R"("top_logprobs": 3)", "top_logprobs"},
           {R"("echo": true)", "echo"},
           {R"("add_special_tokens": true)", "add_special_tokens"},
           {R"("parse_special": true)", "parse_special"},
           {R"("max_tokens": 5, "max_completion_tokens": 6)", "max_completion_tokens"},
       }) {
    ExpectRefused(Read(OpenAiKind::kChat, Body(OpenAiKind::kChat, rest)), field);
  }
  ExpectRefused(
      Read(OpenAiKind::kCompletion, Body(OpenAiKind::kCompletion, R"("max_completion_tokens": 5)")),
      "max_completion_tokens");
  ExpectRefused(Read(OpenAiKind::kCompletion, R"({"prompt": [1], "add_special_tokens": true})"),
                "add_special_tokens");
  ExpectRefused(Read(OpenAiKind::kCompletion, R"({"prompt": [1], "parse_special": true})"),
                "parse_special");
  ExpectRefused(Read(OpenAiKind::kCompletion, "{}"), "prompt");
  ExpectRefused(Read(OpenAiKind::kChat, "{}"), "messages");
}

TEST(OpenAiRequestTest, AnEntryOfAListOfPromptsThatIsNoneIsRefusedByItsPlace) {
  struct Case {
    std::string prompt;
    std::string field;
  };
  for (const Case& c : std::vector<Case>{{"5", "prompt"},
                                         {"[]", "prompt"},
                                         {"{}", "prompt"},
                                         {R"(["a", 5])", "prompt[1]"},
                                         {R"(["a", null])", "prompt[1]"},
                                         {"[[1, 2], []]", "prompt[1]"},
                                         {"[[1, 2], [3, -1]]", "prompt[1][1]"},
                                         {"[1, -1]", "prompt[1]"},
                                         {"[1, 4294967301]", "prompt[1]"},
                                         {R"([1, "a"])", "prompt[1]"},
                                         {"[1.5]", "prompt[0]"},
                                         {"[true]", "prompt[0]"}}) {
    ExpectRefused(Read(OpenAiKind::kCompletion, absl::StrCat(R"({"prompt": )", c.prompt, "}")),
                  c.field);
  }
}

TEST(OpenAiRequestTest, APageOfAnotherOriginMustSayThatItsBodyIsJson) {
  const std::string body = R"({"prompt": "a"})";
  const HttpField origin = {"Origin", "https://a.example"};
  ExpectTaken(Read(OpenAiKind::kCompletion, body));
  ExpectTaken(Read(OpenAiKind::kCompletion, body, {origin, {"Content-Type", "application/json"}}));
  EXPECT_THAT(std::string(Read(OpenAiKind::kCompletion, body, {origin}).message()),
              HasSubstr("Content-Type is missing"));
}

TEST(OpenAiRequestTest, WhatClientsSendWithoutMeaningItIsTaken) {
  for (const OpenAiKind kind : {OpenAiKind::kCompletion, OpenAiKind::kChat}) {
    ExpectTaken(Read(
        kind, Body(kind, R"("tools": [], "tool_choice": "none", "stop": [], "stop_token_ids": [],
                            "logit_bias": {}, "response_format": {"type": "text"}, "user": "u",
                            "seed": 18446744073709551615, "top_k": -1, "best_of": 1, "modalities": ["text"],
                            "function_call": "none")")));
    ExpectTaken(Read(kind, Body(kind, R"("seed": -1, "add_special_tokens": false,
                                      "parse_special": false)")));
  }
  ExpectTaken(Read(OpenAiKind::kChat, Body(OpenAiKind::kChat, R"("max_tokens": 5,
                                                      "max_completion_tokens": 5)")));
}

// OpenAI's own SDK, and what is built on it.
TEST(OpenAiRequestTest, WhatSdksSendForOtherModelsIsTakenWhereItChangesNothing) {
  const OpenAiKind chat = OpenAiKind::kChat;
  ExpectTaken(Read(chat, Body(chat, R"("store": true, "metadata": {"a": "b"}, "user": "u",
      "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k",
      "prompt_cache_retention": "24h", "verbosity": "medium", "modalities": ["text"],
      "response_format": {"type": "text"}, "parallel_tool_calls": true, "tools": [],
      "tool_choice": "auto", "function_call": "auto", "prediction": null, "audio": null,
      "web_search_options": null, "logit_bias": {}, "stream_options": null, "n": 1)")));
  for (const char* verbosity : {"low", "high"}) {
    ExpectTaken(Read(chat, Body(chat, absl::StrCat(R"("verbosity": ")", verbosity, "\""))));
  }
  ExpectRefused(Read(chat, Body(chat, R"("tool_choice": "required")")), "tool_choice");
  ExpectRefused(Read(chat, Body(chat, R"("modalities": ["text", "audio"])")), "modalities");
}

TEST(OpenAiRequestTest, TheReasoningEffortIsTheTemplatesAffair) {
  const auto arguments = [](absl::string_view rest) {
    HttpRequest http;
    http.body = Body(OpenAiKind::kChat, rest);
    WorkMeter meter;
    return ToOpenAiRequest(OpenAiKind::kChat, *ParseJsonBody(http, meter), http)
        ->conversation.template_arguments.dump();
  };
  EXPECT_EQ(arguments(""), "{}");
  EXPECT_EQ(arguments(R"("reasoning_effort": "low")"), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(arguments(R"("reasoning_effort": "low",
                         "chat_template_kwargs": {"reasoning_effort": "low"})"),
            R"({"reasoning_effort":"low"})");
  const OpenAiKind chat = OpenAiKind::kChat;
  ExpectRefused(Read(chat, Body(chat, R"("reasoning_effort": 1)")), "reasoning_effort");
  ExpectRefused(Read(chat, Body(chat, R"("reasoning_effort": "low",
                                          "chat_template_kwargs": {"reasoning_effort": "high"})")),
                "reasoning_effort");
}

TEST(OpenAiRequestTest, FieldAndHeaderMustNotContradictEachOther) {
  for (const auto& [field, header] : std::vector<std::pair<std::string, std::string>>{
           {"session_id", "x-session-id"}, {"idempotency_key", "idempotency-key"}}) {
    const std::string body = Body(OpenAiKind::kCompletion, absl::StrCat("\"", field, "\": \"a\""));
    ExpectTaken(Read(OpenAiKind::kCompletion, body, {{header, "a"}}));
    ExpectRefused(Read(OpenAiKind::kCompletion, body, {{header, "b"}}), field);
    ExpectRefused(Read(OpenAiKind::kCompletion, body, {{header, "a"}, {header, "a"}}), header);
    ExpectRefused(Read(OpenAiKind::kCompletion, body, {{header, ""}}), header);
  }
}

TEST(OpenAiRequestTest, ObjectsOfTooManyFieldsAreRefusedBeforeTheyAreBuilt) {
  std::string bias;
  for (int i = 0; i < 200000; ++i) absl::StrAppend(&bias, i == 0 ? "" : ",", "\"", i, "\":0");
  const absl::Status nested =
      Read(OpenAiKind::kCompletion,
           Body(OpenAiKind::kCompletion, absl::StrCat("\"logit_bias\": {", bias, "}")));
  ExpectRefused(nested, "logit_bias");
  const absl::Status flat = Read(OpenAiKind::kCompletion, absl::StrCat("{", bias, "}"));
  EXPECT_THAT(std::string(flat.message()), HasSubstr("more than 1024 fields"));
}

TEST(OpenAiRequestTest, LongNamesAreShownByTheirBeginning) {
  const std::string name(100000, 'x');
  const absl::Status status = Read(
      OpenAiKind::kCompletion, Body(OpenAiKind::kCompletion, absl::StrCat("\"", name, "\": 1")));
  EXPECT_THAT(std::string(status.message()), StartsWith("xxxxx"));
  EXPECT_LT(status.message().size(), 200);
}

TEST(BodyFieldsTest, ErrorsOfTheEngineAreRenamed) {
  const BodyFields chat{
      .prompt = "messages", .max_tokens = "max_completion_tokens", .logprobs = "top_logprobs"};
  const BodyFields list{.many_prompts = true};
  struct Case {
    BodyFields names;
    std::string in_proto;
    std::string in_body;
  };
  for (const Case& c : std::vector<Case>{{{}, "text", "prompt"},
                                         {chat, "text", "messages"},
                                         {list, "text", "prompt[2]"},
                                         {{}, "token_ids", "prompt"},
                                         {{}, "token_ids.ids[7]", "prompt[7]"},
                                         {list, "token_ids.ids[7]", "prompt[2][7]"},
                                         {{}, "stopping.max_tokens", "max_tokens"},
                                         {chat, "stopping.max_tokens", "max_completion_tokens"},
                                         {{}, "stopping.stop_strings", "stop"},
                                         {{}, "response.logprobs", "logprobs"},
                                         {chat, "response.logprobs", "top_logprobs"},
                                         {{}, "response.prompt_logprobs", "logprobs"},
                                         {{}, "session.name", "session_id"},
                                         {{}, "sampling.top_p", "top_p"},
                                         {{}, "priority", "priority"}}) {
    const absl::Status engine = WithReason(FieldError(c.in_proto, "is wrong"), "WHY");
    const absl::Status renamed = WithBodyField(engine, c.names, 2);
    ExpectRefused(renamed, c.in_body);
    EXPECT_EQ(renamed.message(), absl::StrCat(c.in_body, " is wrong"));
    EXPECT_EQ(ReasonOf(renamed), "WHY");
  }
  EXPECT_EQ(WithBodyField(absl::AbortedError("busy"), {}), absl::AbortedError("busy"));
}

// Fields of a request by their path, as errors name them.
std::vector<std::string> Paths(const google::protobuf::Descriptor& type,
                               const std::string& prefix) {
  std::vector<std::string> paths;
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string path = prefix + std::string(field.name());
    const bool is_group = field.message_type() != nullptr && !field.is_map() && path != "token_ids";
    if (!is_group) {
      paths.push_back(path);
      continue;
    }
    for (std::string& inner : Paths(*field.message_type(), path + ".")) {
      paths.push_back(std::move(inner));
    }
  }
  return paths;
}

TEST(BodyFieldsTest, EveryFieldOfARequestHasANameThatBodiesMayHave) {
  for (const std::string& path : Paths(*v1::GenerateRequest::descriptor(), "")) {
    if (path == "detached") continue;  // only over gRPC
    const std::string name = *FieldOf(WithBodyField(FieldError(path, "is wrong"), {}));
    const absl::Status status =
        Read(OpenAiKind::kCompletion, absl::StrCat(R"({")", name, R"(": [[1.5]]})"));
    EXPECT_NE(ReasonOf(status), "UNKNOWN_PARAMETER") << path << " is no " << name;
  }
}

}  // namespace
}  // namespace mneme
