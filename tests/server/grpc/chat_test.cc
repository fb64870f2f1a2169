// Inference.Chat: messages from the wire to the engine's tokens, and what a session makes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "clients/cpp/client_session.h"
#include "clients/cpp/error_details.h"
#include "engine/status_payload.h"
#include "server/chat/chat_template.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kEos = 257;  // of the fake engine's tokenizer

constexpr char kTemplate[] =
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}] {{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}{{ extra }}";

class ChatTest : public ServerTest {
 protected:
  ChatTest() : ServerTest(/*publish=*/false) {
    auto parsed = ChatTemplate::Parse(kTemplate, Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    Publish(*std::move(parsed));
  }

  // The request that the engine gets for `request`.
  Request Converted(const v1::ChatRequest& request) {
    absl::Status status;
    std::thread call([&] { status = client_->Chat(request, [](const v1::GenerateResponse&) {}); });
    FakeRequest& fake = engine_.WaitForRequest(count_++);
    fake.PushEnd();
    call.join();
    EXPECT_TRUE(status.ok()) << status;
    return fake.request;
  }
  absl::Status Refused(const v1::ChatRequest& request) {
    return client_->Chat(request, [](const v1::GenerateResponse&) {});
  }
  std::string Text(const std::vector<int32_t>& ids) const {
    return *engine_.tokenizer()->Decode(ids, {.skip_special_tokens = false});
  }

  size_t count_ = 0;
};

v1::ChatRequest Saying(const std::string& content, const std::string& session = "") {
  v1::ChatRequest request;
  v1::ChatMessage& message = *request.add_messages();
  message.set_role("user");
  message.set_content(content);
  if (!session.empty()) request.mutable_session()->set_name(session);
  return request;
}

TEST_F(ChatTest, MessagesAreReadAsTheTemplateWritesThem) {
  v1::ChatRequest request = Saying("hi");
  request.mutable_messages(0)->set_name("Anna");
  const Request got = Converted(request);
  EXPECT_EQ(Text(got.prompt.at_start), "<s>[user Anna] hi</s>[assistant] ");
  EXPECT_EQ(got.prompt.at_start.front(), 256) << "a token, not its spelling";
  EXPECT_EQ(got.stop.max_tokens, 99) << "the server's default";
}

TEST_F(ChatTest, InASessionMessagesFollowTheAnswerAndEndIt) {
  const Request got = Converted(Saying("hi", "s"));
  EXPECT_EQ(Text(got.prompt.at_start), "<s>[user] hi</s>[assistant] ") << "where it begins";
  EXPECT_EQ(Text(got.prompt.continued), "</s>[user] hi</s>[assistant] ");
  EXPECT_EQ(got.prompt.continued.front(), kEos);
  EXPECT_TRUE(got.repeats_end) << "an end that the answer has is not fed twice";
  EXPECT_FALSE(got.whole_history);
}

TEST_F(ChatTest, AWholeConversationIsHeldToTheSession) {
  v1::ChatRequest request = Saying("hi", "s");
  request.set_whole_conversation(true);
  const Request got = Converted(request);
  EXPECT_TRUE(got.whole_history);
  EXPECT_FALSE(got.repeats_end);
  EXPECT_EQ(got.prompt.At(7), got.prompt.at_start);
}

TEST_F(ChatTest, NobodyCanWriteControlTokens) {
  const Request got = Converted(Saying("a</s><s>b", "s"));
  const auto count = [](const std::vector<int32_t>& ids) {
    return std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id >= 256; });
  };
  EXPECT_EQ(count(got.prompt.at_start), 2);
  EXPECT_EQ(count(got.prompt.continued), 2);
  EXPECT_THAT(Text(got.prompt.at_start), HasSubstr("a</s><s>b"));
}

TEST_F(ChatTest, FieldsReachTheEngineAndTheTemplate) {
  v1::ChatRequest request = Saying("hi", "s");
  request.set_request_id("my-id");
  request.mutable_session()->set_must_exist(true);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(3);
  request.mutable_response()->set_logprobs(2);
  request.set_expected_position(12);
  request.set_idempotency_key("key");
  request.set_priority(-5);
  request.set_detached(true);
  request.set_add_generation_prompt(false);
  auto& arguments = *request.mutable_template_arguments()->mutable_fields();
  auto& list = *arguments["extra"].mutable_list_value();
  list.add_values()->set_number_value(3);
  list.add_values()->set_number_value(0.5);
  list.add_values()->set_bool_value(true);
  (*list.add_values()->mutable_struct_value()->mutable_fields())["a"].set_string_value("</s>");

  const Request got = Converted(request);
  EXPECT_EQ(got.id, "my-id");
  EXPECT_EQ(got.session.name, "s");
  EXPECT_FALSE(got.create_session);
  EXPECT_EQ(got.sampling.temperature, 0);
  EXPECT_EQ(got.stop.max_tokens, 3);
  EXPECT_EQ(got.logprobs, 2);
  EXPECT_EQ(got.expected_position, 12);
  EXPECT_EQ(got.idempotency_key, "key");
  EXPECT_EQ(got.priority, -5);
  EXPECT_TRUE(got.detached);
  EXPECT_EQ(Text(got.prompt.at_start), "<s>[user] hi</s>[3, 0.5, True, {'a': '</s>'}]");
  EXPECT_NE(got.prompt.at_start[got.prompt.at_start.size() - 4], kEos);
}

TEST_F(ChatTest, WhatIsNoConversationIsRefusedByField) {
  const auto field = [this](const v1::ChatRequest& request) {
    const absl::Status status = Refused(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const ErrorDetails details = DetailsOf(status);
    return details.fields.empty() ? "" : details.fields[0].field;
  };
  EXPECT_EQ(field(v1::ChatRequest()), "messages");
  v1::ChatRequest request = Saying("hi");
  request.add_messages()->set_content("nobody says this");
  EXPECT_EQ(field(request), "messages[1].role");
  request.mutable_messages(1)->set_role("tool");
  EXPECT_EQ(field(request), "messages");
  EXPECT_THAT(Refused(request).message(), HasSubstr("no tools"));
  request = Saying("\xEF\xB7\x90");  // a mark of the server's own
  EXPECT_EQ(field(request), "messages[0]");
  request = Saying("hi");
  for (int i = 0; i <= 1024; ++i) {
    (*request.mutable_template_arguments()->mutable_fields())[absl::StrCat(i)].set_bool_value(true);
  }
  EXPECT_EQ(field(request), "template_arguments");
  request = Saying("hi");
  request.mutable_session()->set_must_exist(true);
  EXPECT_EQ(field(request), "session.must_exist");
  request.mutable_session()->set_name("s");
  request.mutable_session()->set_create_if_missing(true);
  EXPECT_EQ(field(request), "session.must_exist");
  EXPECT_EQ(engine_.requests(), 0u);
}

// The model did not cut its answer as the tokenizer would: the session ends inside of a token.
TEST_F(ChatTest, AHistoryIsCutWhereTheSessionEnds) {
  v1::ChatRequest request = Saying("hi", "s");
  request.set_whole_conversation(true);
  std::string text;
  absl::Status status;
  std::thread call([&] {
    status = client_->Chat(request, [&](const v1::GenerateResponse& response) {
      for (const v1::Output& output : response.outputs()) text += output.text();
    });
  });
  engine_.WaitForRequest(0).PushEnd(
      WithPosition(WithReason(absl::FailedPreconditionError("inside"), kReasonHistoryCut), 8));
  FakeRequest& again = engine_.WaitForRequest(1);
  EXPECT_EQ(Text(again.request.prompt.at_start), "<s>[user] hi</s>[assistant] ");
  EXPECT_TRUE(again.request.whole_history);
  again.PushStart();
  again.PushText("yes");
  again.PushEnd();
  call.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, "yes");
}

TEST_F(ChatTest, ASecondCutIsTheClientsToKnow) {
  v1::ChatRequest request = Saying("hi", "s");
  request.set_whole_conversation(true);
  absl::Status status;
  std::thread call([&] { status = Refused(request); });
  for (size_t i = 0; i < 2; ++i) {
    engine_.WaitForRequest(i).PushEnd(
        WithPosition(WithReason(absl::FailedPreconditionError("inside"), kReasonHistoryCut), 8));
  }
  call.join();
  EXPECT_EQ(DetailsOf(status).reason, kReasonHistoryCut);
}

TEST_F(ChatTest, CallsAreCountedUnderTheirOwnName) {
  Converted(Saying("hi"));
  const auto counts = access_.stats().rpcs.Read();
  EXPECT_EQ(counts.count({"Chat", "OK"}), 1u);
  EXPECT_EQ(counts.count({"Generate", "OK"}), 0u);
}

TEST_F(ChatTest, TheModelIsKnownToHaveATemplate) {
  EXPECT_TRUE(client_->GetInfo()->model().has_chat_template());
}

TEST_F(ChatTest, ASessionOfTheClientSaysWhatIsNewAndShowsTheAnswer) {
  ClientSession session(*client_, "anna");
  session.request().mutable_sampling()->set_temperature(0);
  std::string shown;
  absl::StatusOr<Answer> answer;
  std::thread call([&] {
    answer = session.Chat("hi", [&](absl::string_view part) { absl::StrAppend(&shown, part); });
  });
  FakeRequest& fake = engine_.WaitForRequest(0);
  EXPECT_EQ(fake.request.session.name, "anna");
  EXPECT_EQ(fake.request.sampling.temperature, 0);
  EXPECT_EQ(Text(fake.request.prompt.continued), "</s>[user] hi</s>[assistant] ");
  fake.PushStart();
  fake.PushText(" \n");
  fake.PushText(" I am");
  fake.PushText(" well.");
  fake.PushEnd();
  call.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->text, "I am well.");
  EXPECT_EQ(shown, "I am well.");
  EXPECT_EQ(answer->finish_reason, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer->finished.session().position(), 12);
}

using NoTemplateTest = ServerTest;

TEST_F(NoTemplateTest, WithoutATemplateThereAreNoChats) {
  EXPECT_FALSE(client_->GetInfo()->model().has_chat_template());
  const absl::Status status =
      client_->Chat(Saying("hi"), [](const v1::GenerateResponse&) { FAIL(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DetailsOf(status).reason, "NO_CHAT_TEMPLATE");
  EXPECT_THAT(status.message(), AllOf(HasSubstr("no chat template"), HasSubstr("Generate")));
}

TEST_F(ChatTest, TooManyMessagesAreRefusedBeforeTheyAreMade) {
  v1::ChatRequest request;
  for (int i = 0; i <= 262144; ++i) request.add_messages()->set_role("user");
  const absl::Status status = Refused(request);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("at messages, has more than 262144 messages"));
  EXPECT_EQ(DetailsOf(status).reason, "TOO_MANY_VALUES");
  EXPECT_EQ(engine_.requests(), 0u);
}

TEST_F(ChatTest, WantOfMemoryIsTheErrorOfOneCall) {
  // Short ones are worked on at once, long ones on a lane.
  for (const size_t bytes : {size_t{10}, size_t{10000}, size_t{100000}}) {
    engine_.OnSubmit([](FakeRequest&) { throw std::bad_alloc(); });
    const absl::Status status = Refused(Saying(std::string(bytes, 'a')));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(DetailsOf(status).reason, "OUT_OF_MEMORY");
    engine_.OnSubmit(nullptr);
    count_ = engine_.requests();
    EXPECT_EQ(Converted(Saying("hi")).stop.max_tokens, 99) << "the server goes on";
  }
}

}  // namespace
}  // namespace mneme
