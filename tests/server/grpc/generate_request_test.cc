// Requests of Inference.Generate, from the wire to the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "clients/cpp/error_details.h"
#include "tests/server/grpc/generate_fixture.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using GenerateRequestTest = GenerateTest;

TEST_F(GenerateRequestTest, EveryFieldReachesTheEngine) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_session()->set_name("s/1");
  request.mutable_session()->set_create_if_missing(false);
  request.mutable_session()->set_ttl_ms(5000);
  request.mutable_session()->set_memory_seed(0);
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  sampling.set_top_p(0.25f);
  sampling.set_min_p(0.125f);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(-1);
  sampling.set_frequency_penalty(2);
  sampling.set_seed(0);
  (*sampling.mutable_logit_bias())[9] = -100;
  (*sampling.mutable_logit_bias())[3] = 1;
  v1::StoppingOptions& stopping = *request.mutable_stopping();
  stopping.set_max_tokens(20);
  stopping.set_min_tokens(3);
  stopping.set_ignore_eos(true);
  stopping.add_stop_token_ids(4);
  stopping.add_stop_strings("\n");
  stopping.set_include_stop_in_output(true);
  v1::ResponseOptions& response = *request.mutable_response();
  response.set_n(3);
  response.set_logprobs(0);
  response.set_prompt_logprobs(2);
  response.set_echo(true);
  response.set_skip_special_tokens(false);
  response.set_surprise(true);
  response.set_memory_use(true);
  request.set_expected_position(0);
  request.set_idempotency_key("key");
  request.set_priority(-5);

  const Request got = Converted(request);
  EXPECT_EQ(got.session.name, "s/1");
  EXPECT_EQ(got.session.owner, "");
  EXPECT_FALSE(got.create_session);
  EXPECT_EQ(got.session_ttl, absl::Seconds(5));
  EXPECT_EQ(got.memory_seed, 0u);
  EXPECT_EQ(got.sampling.temperature, 0);
  EXPECT_EQ(got.sampling.top_k, 5) << "the model's default";
  EXPECT_EQ(got.sampling.top_p, 0.25f);
  EXPECT_EQ(got.sampling.min_p, 0.125f);
  EXPECT_EQ(got.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(got.sampling.presence_penalty, -1);
  EXPECT_EQ(got.sampling.frequency_penalty, 2);
  EXPECT_EQ(got.sampling.seed, 0u);
  EXPECT_THAT(got.sampling.logit_bias, ElementsAre(Pair(3, 1), Pair(9, -100)));
  EXPECT_EQ(got.stop.max_tokens, 20);
  EXPECT_EQ(got.stop.min_tokens, 3);
  EXPECT_TRUE(got.stop.ignore_eos);
  EXPECT_THAT(got.stop.stop_token_ids, ElementsAre(4));
  EXPECT_THAT(got.stop.stop_strings, ElementsAre("\n"));
  EXPECT_TRUE(got.stop.include_stop_in_output);
  EXPECT_EQ(got.n, 3);
  EXPECT_EQ(got.logprobs, 0);
  EXPECT_EQ(got.prompt_logprobs, 2);
  EXPECT_TRUE(got.echo);
  EXPECT_FALSE(got.skip_special_tokens);
  EXPECT_TRUE(got.surprise);
  EXPECT_TRUE(got.memory_use);
  EXPECT_EQ(got.expected_position, 0);
  EXPECT_EQ(got.idempotency_key, "key");
  EXPECT_EQ(got.priority, -5);
  EXPECT_EQ(got.deadline, absl::InfiniteDuration());
  EXPECT_FALSE(got.detached);
}

TEST_F(GenerateRequestTest, UnsetFieldsHaveTheirDefaults) {
  const Request got = Converted(TextRequest("ab"));
  EXPECT_EQ(got.session.name, "");
  EXPECT_TRUE(got.create_session);
  EXPECT_FALSE(got.memory_seed.has_value());
  EXPECT_EQ(got.sampling.temperature, 0.5f) << "the model's default";
  EXPECT_EQ(got.sampling.top_p, 1);
  EXPECT_FALSE(got.sampling.seed.has_value());
  EXPECT_EQ(got.stop.max_tokens, 99) << "the server's default";
  EXPECT_EQ(got.n, 1);
  EXPECT_EQ(got.logprobs, -1);
  EXPECT_EQ(got.prompt_logprobs, -1);
  EXPECT_TRUE(got.skip_special_tokens);
  EXPECT_FALSE(got.surprise);
  EXPECT_FALSE(got.memory_use);
  EXPECT_FALSE(got.expected_position.has_value());
  EXPECT_THAT(got.id, HasSubstr("req-"));
}

TEST_F(GenerateRequestTest, TextIsReadBothAsABeginningAndAsAContinuation) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_session()->set_name("s");
  request.set_add_special_tokens(true);
  const Request with_bos = Converted(request);
  EXPECT_THAT(with_bos.prompt.at_start, ElementsAre(256, 'a', 'b'));
  EXPECT_THAT(with_bos.prompt.continued, ElementsAre('a', 'b'));
  request.set_add_special_tokens(false);
  EXPECT_THAT(Converted(request).prompt.at_start, ElementsAre('a', 'b'));
}

TEST_F(GenerateRequestTest, TokenIdsAreFedAsTheyAre) {
  v1::GenerateRequest request;
  request.mutable_session()->set_name("s");
  for (const int id : {0, 256, 5}) request.mutable_token_ids()->add_ids(id);
  const Request got = Converted(request);
  EXPECT_THAT(got.prompt.at_start, ElementsAre(0, 256, 5));
  EXPECT_TRUE(got.prompt.same_everywhere);
  EXPECT_THAT(got.prompt.At(7), ElementsAre(0, 256, 5));
}

TEST_F(GenerateRequestTest, SpecialTokensThatATextSpellsAreTokensUnlessTheyAreNotToBe) {
  v1::GenerateRequest request = TextRequest("a</s>b");
  request.mutable_session()->set_name("s");
  request.set_add_special_tokens(false);
  const Request parsed = Converted(request);
  EXPECT_THAT(parsed.prompt.at_start, ElementsAre('a', 257, 'b'));
  EXPECT_THAT(parsed.prompt.continued, ElementsAre('a', 257, 'b'));
  request.set_parse_special(false);
  const Request literal = Converted(request);
  EXPECT_THAT(literal.prompt.at_start, ElementsAre('a', '<', '/', 's', '>', 'b'));
  EXPECT_THAT(literal.prompt.continued, SizeIs(6));
  request = TextRequest("<s>a");  // as transformers: BOS is added whatever the text has
  EXPECT_THAT(Converted(request).prompt.at_start, ElementsAre(256, 256, 'a'));

  v1::TokenizeRequest tokenize;
  tokenize.set_text("a</s>");
  EXPECT_THAT(client_->Tokenize(tokenize)->token_ids(), ElementsAre(256, 'a', 257));
  tokenize.set_parse_special(false);
  EXPECT_THAT(client_->Tokenize(tokenize)->token_ids(), SizeIs(6));
}

TEST_F(GenerateRequestTest, ASessionThatMustExistIsNotMade) {
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_session()->set_must_exist(true);
  EXPECT_EQ(DetailsOf(Refused(request)).fields[0].field, "session.must_exist") << "has no name";
  request.mutable_session()->set_name("s");
  EXPECT_FALSE(Converted(request).create_session);
  request.mutable_session()->set_create_if_missing(false);
  EXPECT_FALSE(Converted(request).create_session);
  request.mutable_session()->set_create_if_missing(true);
  EXPECT_EQ(DetailsOf(Refused(request)).fields[0].field, "session.must_exist") << "contradicted";
}

TEST_F(GenerateRequestTest, AnEmptyPromptHasNoTokensAtAll) {
  v1::GenerateRequest request = TextRequest("");
  request.mutable_session()->set_name("s");
  EXPECT_THAT(Converted(request).prompt.at_start, IsEmpty());
  request.clear_text();
  EXPECT_THAT(Converted(request).prompt.continued, IsEmpty());
}

TEST_F(GenerateRequestTest, ALongTextIsTokenisedAsWell) {
  const std::string text(100000, 'x');
  EXPECT_THAT(Converted(TextRequest(text)).prompt.at_start, SizeIs(testing::Ge(text.size())));
}

TEST_F(GenerateRequestTest, ATextOverTheLimitIsRefusedWithBothSizes) {
  const absl::Status status = Refused(TextRequest(std::string((2 << 20) + 1, 'x')));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("2097153"), HasSubstr("2097152"), HasSubstr("--max-text-size")));
}

TEST_F(GenerateRequestTest, TheDeadlineOfTheCallReachesTheEngine) {
  const Client hasty({.target = target(), .timeout = absl::Minutes(10)});
  const absl::Duration before = clock_.Monotonic();
  Call call(const_cast<Client&>(hasty), TextRequest("a"));
  FakeRequest& fake = engine_.WaitForRequest(0);
  fake.PushEnd();
  EXPECT_GT(fake.request.deadline, before + absl::Minutes(9));
  EXPECT_LT(fake.request.deadline, clock_.Monotonic() + absl::Minutes(11));
}

TEST_F(GenerateRequestTest, WhatOnlyTheWireCanSayWronglyIsRefused) {
  v1::GenerateRequest request = TextRequest("a");
  request.set_model("another");
  EXPECT_EQ(Refused(request).code(), absl::StatusCode::kNotFound);
  request.set_model("served");
  request.mutable_session()->set_ttl_ms(-2);
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "session.ttl_ms");
  request.mutable_session()->Clear();
  request.mutable_response()->set_logprobs(-1);
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "response.logprobs");
  EXPECT_EQ(Refused(request).message(), "response.logprobs is -1, expected 0 to 20");
  request.mutable_response()->set_logprobs(21);
  EXPECT_EQ(Refused(request).message(), "response.logprobs is 21, expected 0 to 20");
  request.mutable_response()->clear_logprobs();
  request.mutable_response()->set_prompt_logprobs(-1);
  EXPECT_EQ(Refused(request).message(), "response.prompt_logprobs is -1, expected 0 to 20");
  request.mutable_response()->Clear();
  request.set_detached(true);
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "detached");
  request.set_detached(false);
  request.set_request_id("line\nbreak");
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "request_id");
}

TEST_F(GenerateRequestTest, AnUnsetMaxTokensIsWhatTheLimitLeaves) {
  engine_.set_max_request_tokens(50);
  v1::GenerateRequest request;
  for (int i = 0; i < 48; ++i) request.mutable_token_ids()->add_ids(i);
  EXPECT_EQ(Converted(request).stop.max_tokens, 2);
  request.mutable_token_ids()->add_ids(0);
  EXPECT_EQ(Converted(request).stop.max_tokens, 1);
  request.mutable_token_ids()->add_ids(0);
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.message(),
            "token_ids has 50 tokens, expected at most 49: one less than the limit on prompt and "
            "answer together, 50 (--max-model-len)");
  EXPECT_EQ(DetailsOf(status).fields[0].field, "token_ids");
  request.mutable_stopping()->set_max_tokens(0);
  EXPECT_EQ(Converted(request).stop.max_tokens, 0) << "said, so the engine's business";
  engine_.set_max_request_tokens(1000);
  request.clear_stopping();
  EXPECT_EQ(Converted(request).stop.max_tokens, 99) << "the default fits";
}

TEST_F(GenerateRequestTest, MinTokensBeyondAnUnsetMaxTokensIsRefusedWithBoth) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_stopping()->set_min_tokens(100);
  EXPECT_EQ(Refused(request).message(),
            "stopping.min_tokens is 100, expected 0 to max_tokens, which is not set and so 99, the "
            "server's "
            "default");
  engine_.set_max_request_tokens(50);
  request.mutable_stopping()->set_min_tokens(49);
  const absl::Status status = Refused(request);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("min_tokens is 49"), HasSubstr("--max-model-len")));
  EXPECT_EQ(DetailsOf(status).fields[0].field, "stopping.min_tokens");
  request.mutable_stopping()->set_min_tokens(40);
  EXPECT_EQ(Converted(request).stop.min_tokens, 40);
}

TEST_F(GenerateRequestTest, TextNeedsATokenizer) {
  engine_.RemoveTokenizer();
  const absl::Status status = Refused(TextRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(status).reason, "NO_TOKENIZER");
}

}  // namespace
}  // namespace mneme
