// Bodies that were made to cost much: twice the body costs twice the work, from its bytes to the
// tokens of its prompts. Work is counted, not timed: what the meter of the call counts (values,
// bytes, operations of the template), and what is allocated, which shows copies that nobody counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/chat/chat_prompt.h"
#include "server/chat/chat_template.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_body.h"
#include "server/openai/openai_request.h"
#include "server/requests/request_conversion.h"
#include "tests/server/fake_engine.h"
#include "tests/support/allocation_counts.h"

namespace mneme {
namespace {

// As those of checkpoints: looks back and ahead, counts, and writes every tool.
constexpr char kTemplate[] =
    "{% set ns = namespace(turns=0, last='') %}"
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}"
    "{% set rest = messages %}{% endif %}"
    "{% for tool in tools or [] %}{{ tool | tojson }}{{ tool.name }}{% endfor %}"
    "{% for m in rest %}"
    "{% if not loop.first and rest[loop.index0 - 1].role == m.role %}+{% endif %}"
    "{% if loop.previtem is defined and loop.nextitem is defined %}-{% endif %}"
    "{% set ns.turns = ns.turns + 1 %}{% set ns.last = m.role %}"
    "{% if '</think>' in m.content %}{% set c = m.content.split('</think>')[-1] %}"
    "{% else %}{% set c = m.content | trim %}{% endif %}"
    "{{ '<|' + m['role'] + '|>' + c + '\n' }}"
    "{% endfor %}{{ (messages | selectattr('role', 'equalto', 'user') | list | length) }}"
    "{{ messages | map(attribute='role') | unique | join(',') }}";

std::string Repeated(int count, const std::string& text, const std::string& separator = "") {
  std::string all;
  for (int i = 0; i < count; ++i) absl::StrAppend(&all, i > 0 ? separator : "", text);
  return all;
}

std::string Numbered(int count, const std::string& before, const std::string& behind) {
  std::string all;
  for (int i = 0; i < count; ++i) absl::StrAppend(&all, i > 0 ? "," : "", before, i, behind);
  return all;
}

std::string Chat(const std::string& messages, const std::string& more = "") {
  return absl::StrCat(R"({"messages": [)", messages, "]", more, "}");
}

std::string Message(const std::string& content) {
  return absl::StrCat(R"({"role": "user", "content": ")", content, R"("})");
}

struct Hostile {
  std::string name;
  int size;
  std::function<std::string(int)> body;
};

std::vector<Hostile> Bodies() {
  return {
      {"empty objects", 5000,
       [](int n) { return absl::StrCat(R"({"evil": [)", Repeated(n, "{}", ","), "]}"); }},
      {"empty lists", 5000,
       [](int n) { return absl::StrCat(R"({"evil": [)", Repeated(n, "[]", ","), "]}"); }},
      {"small objects", 5000,
       [](int n) { return absl::StrCat(R"({"evil": [)", Repeated(n, R"({"a":0})", ","), "]}"); }},
      {"fields of the body", 450,
       [](int n) { return absl::StrCat("{", Numbered(n, "\"field", "\": 0"), "}"); }},
      {"fields of a message", 450,
       [](int n) {
         return Chat(absl::StrCat(R"({"role": "user", "content": "", )",
                                  Numbered(n, "\"field", "\": 0"), "}"));
       }},
      {"objects of many fields", 20,
       [](int n) {
         const std::string object = absl::StrCat("{", Numbered(1000, "\"field", "\": []"), "}");
         return absl::StrCat(R"({"evil": [)", Repeated(n, object, ","), "]}");
       }},
      {"a nest of lists", 30,
       [](int n) {
         return absl::StrCat(R"({"evil": )", Repeated(n, "["), "0", Repeated(n, "]"), "}");
       }},
      {"a nest of objects with two fields", 30,
       [](int n) {
         return absl::StrCat(R"({"evil": )", Repeated(n, R"({"a": )"), "[0,0,0,0]",
                             Repeated(n, R"(, "b": 0})"), "}");
       }},
      {"many nests", 100,
       [](int n) {
         const std::string nest = Repeated(60, "[") + Repeated(60, "]");
         return absl::StrCat(R"({"evil": [)", Repeated(n, nest, ","), "]}");
       }},
      {"a long number", 200000,
       [](int n) { return absl::StrCat(R"({"temperature": )", std::string(n, '9'), "}"); }},
      {"a long name", 200000,
       [](int n) { return absl::StrCat("{\"", std::string(n, 'a'), "\": 0}"); }},
      {"messages", 1000, [](int n) { return Chat(Repeated(n, Message("hello"), ",")); }},
      {"messages of two roles", 1000,
       [](int n) {
         return Chat(Repeated(
             n, Message("hello") + R"(,{"role": "assistant", "content": "a </think> b"})", ","));
       }},
      {"messages of all roles", 1000,
       [](int n) { return Chat(Numbered(n, R"({"content": "", "role": "r)", R"("})")); }},
      {"messages in a session", 1000,
       [](int n) {
         return Chat(Repeated(n, Message("hello"), ","),
                     R"(, "session_id": "s", "session_mode": "append")");
       }},
      {"parts of a message", 2000,
       [](int n) {
         return Chat(absl::StrCat(R"({"role": "user", "content": [)",
                                  Repeated(n, R"({"type": "text", "text": "a"})", ","), "]}"));
       }},
      {"a long text", 100000, [](int n) { return Chat(Message(std::string(n, 'a'))); }},
      {"a long text of spaces", 100000, [](int n) { return Chat(Message(std::string(n, ' '))); }},
      {"a text of control tokens", 10000, [](int n) { return Chat(Message(Repeated(n, "</s>"))); }},
      {"a text that looks like control tokens", 50000,
       [](int n) { return Chat(Message(Repeated(n, "<"))); }},
      {"a text of marks that a template looks for", 10000,
       [](int n) { return Chat(Message(Repeated(n, "</think>"))); }},
      {"a text of escapes", 20000, [](int n) { return Chat(Message(Repeated(n, "\\u0001"))); }},
      {"tools", 500,
       [](int n) {
         const std::string tool =
             R"({"name": "f", "parameters": {"type": "object", "properties": {"a": {"b": []}}}})";
         return Chat(Message("hello"), absl::StrCat(R"(, "chat_template_kwargs": {"tools": [)",
                                                    Repeated(n, tool, ","), "]}"));
       }},
      {"template arguments", 450,
       [](int n) {
         return Chat(Message("hello"), absl::StrCat(R"(, "chat_template_kwargs": {)",
                                                    Numbered(n, "\"field", "\": \"a\""), "}"));
       }},
      {"token ids", 50000,
       [](int n) { return absl::StrCat(R"({"prompt": [)", Repeated(n, "7", ","), "]}"); }},
      {"prompts", 500,
       [](int n) { return absl::StrCat(R"({"prompt": [)", Repeated(n, "\"a\"", ","), "]}"); }},
      {"a long prompt", 100000,
       [](int n) { return absl::StrCat(R"({"prompt": ")", std::string(n, 'a'), "\"}"); }},
      {"stop strings", 2000,
       [](int n) {
         return absl::StrCat(R"({"prompt": "a", "stop": [)", Repeated(n, "\"a\"", ","), "]}");
       }},
      {"biases", 250,
       [](int n) {
         return absl::StrCat(R"({"prompt": "a", "logit_bias": {)", Numbered(n / 2, "\"", "\": 1"),
                             "}}");
       }},
  };
}

class LinearWorkTest : public ::testing::Test {
 protected:
  LinearWorkTest() { facts_.chat_template = *ChatTemplate::Parse(kTemplate, Json::object()); }

  // Does all the work on a body, and returns its status, which is of no interest here.
  absl::Status Convert(const std::string& text, WorkMeter& meter) const {
    HttpRequest http;
    http.body = text;
    const OpenAiKind kind = text.find("\"messages\"") == std::string::npos ? OpenAiKind::kCompletion
                                                                           : OpenAiKind::kChat;
    const absl::StatusOr<Json> body = ParseJsonBody(http, meter);
    if (!body.ok()) return body.status();
    const absl::StatusOr<OpenAiRequest> request = ToOpenAiRequest(kind, *body, http);
    if (!request.ok()) return request.status();
    if (kind == OpenAiKind::kChat) {
      const absl::StatusOr<Conversation> conversation = ToConversation(*request);
      if (!conversation.ok()) return conversation.status();
      return ToChatPrompt(*conversation, engine_, facts_, meter).status();
    }
    for (const v1::GenerateRequest& prompt : request->prompts) {
      v1::GenerateRequest whole = request->generate;
      whole.MergeFrom(prompt);
      const absl::Status converted =
          ToEngineRequest(whole, {.request_id = "id"}, engine_, facts_, meter).status();
      if (!converted.ok()) return converted;
    }
    return absl::OkStatus();
  }

  struct Work {
    int64_t metered, allocations, allocated_bytes;
    absl::Status status;
  };
  Work WorkOf(const std::string& body) const {
    WorkMeter meter;
    const AllocationCounts before = Allocated();
    const absl::Status status = Convert(body, meter);
    const AllocationCounts after = Allocated();
    return {meter.done(), after.allocations - before.allocations, after.bytes - before.bytes,
            status};
  }

  FakeEngine engine_;
  ServingFacts facts_;
};

TEST_F(LinearWorkTest, TwiceTheBodyIsLessThanThreeTimesTheWork) {
  for (const Hostile& hostile : Bodies()) {
    SCOPED_TRACE(hostile.name);
    (void)WorkOf(hostile.body(1));  // what is done once
    const std::string body = hostile.body(hostile.size);
    const Work once = WorkOf(body);
    const Work twice = WorkOf(hostile.body(2 * hostile.size));
    EXPECT_EQ(once.status.code(), twice.status.code())
        << once.status << "\n"
        << twice.status << "\nso that both do the same";
    EXPECT_LT(twice.metered, 3 * once.metered + 100);
    EXPECT_LT(twice.allocations, 3 * once.allocations + 100);
    EXPECT_LT(twice.allocated_bytes, 3 * once.allocated_bytes + 10000);
    // Nor may a byte be dear, so that no body of the size that is allowed costs much.
    EXPECT_LT(once.metered, 100 * static_cast<int64_t>(body.size()) + 10000);
    EXPECT_LT(once.allocated_bytes, 2000 * static_cast<int64_t>(body.size()) + 100000);
  }
}

// Whoever has just been told that there is no memory must not need any to give back what there is.
TEST_F(LinearWorkTest, WhatStrangersSendIsGivenBackWithoutTakingMemory) {
  for (const Hostile& hostile : Bodies()) {
    SCOPED_TRACE(hostile.name);
    WorkMeter meter;
    HttpRequest http;
    http.body = hostile.body(hostile.size);
    absl::StatusOr<Json> body = ParseJsonBody(http, meter);
    if (!body.ok()) continue;
    const AllocationCounts before = Allocated();
    {
      Json ended = *std::move(body);
      const TakenApart end(ended);
    }
    EXPECT_EQ(Allocated().bytes, before.bytes);
  }
}

}  // namespace
}  // namespace mneme
