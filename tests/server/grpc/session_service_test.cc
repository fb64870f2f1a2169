// The Sessions service, Tokenize, Detokenize and GetInfo over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "clients/cpp/error_details.h"
#include "mneme/v1/sessions.grpc.pb.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SessionServiceTest : public ServerTest {
 protected:
  absl::StatusOr<v1::Session> Create(const std::string& name, int64_t ttl_ms = 0) {
    v1::CreateSessionRequest request;
    request.set_name(name);
    request.set_ttl_ms(ttl_ms);
    return client_->CreateSession(request);
  }
  absl::StatusOr<v1::Session> Fork(const std::string& source, const std::string& target) {
    v1::ForkSessionRequest request;
    request.set_source_name(source);
    request.set_target_name(target);
    return client_->ForkSession(request);
  }
};

TEST_F(SessionServiceTest, SessionsAreCreatedFoundForkedAndDeleted) {
  const auto created = Create("a", -1);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->ttl_ms(), -1);
  EXPECT_EQ(created->state_bytes(), 4096);
  EXPECT_EQ(Create("a").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(client_->GetSession("a")->name(), "a");
  EXPECT_EQ(Fork("a", "b")->name(), "b");
  EXPECT_TRUE(client_->DeleteSession("a").ok());
  const absl::Status gone = client_->GetSession("a").status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DetailsOf(gone).reason, "NO_SUCH_SESSION");
  EXPECT_EQ(client_->DeleteSession("a").code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionServiceTest, SegmentsAreForgottenBySession) {
  const auto stub =
      v1::Sessions::NewStub(grpc::CreateChannel(target(), grpc::InsecureChannelCredentials()));
  ASSERT_TRUE(Create("a").ok());
  v1::ForgetSegmentsRequest request;
  v1::ForgetSegmentsResponse response;
  const auto forget = [&](const std::string& name) {
    grpc::ClientContext context;
    request.set_name(name);
    return stub->ForgetSegments(&context, request, &response);
  };
  request.set_first(4);
  request.set_end(9);
  EXPECT_TRUE(forget("a").ok());
  EXPECT_EQ(response.working(), 5);
  EXPECT_EQ(response.short_term(), 2);
  EXPECT_EQ(response.long_term(), 0);
  EXPECT_EQ(forget("b").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(forget("").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionServiceTest, WithoutANameTheServerChoosesOne) {
  const std::string first = Create("")->name();
  const std::string second = Create("")->name();
  EXPECT_THAT(first, HasSubstr("session-"));
  EXPECT_NE(first, second);
  EXPECT_THAT(Fork(first, "")->name(), HasSubstr("session-"));
}

TEST_F(SessionServiceTest, OddNamesAreRefusedBeforeTheEngineSeesThem) {
  for (const std::string& name : {std::string("with space"), std::string("tab\t"),
                                  std::string(129, 'x'), std::string("ümlaut")}) {
    const absl::Status status = Create(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(DetailsOf(status).fields.size(), 1u) << name;
  }
  EXPECT_TRUE(Create("user@host:/path+1-2._Z").ok());
  EXPECT_TRUE(Create(std::string(128, 'x')).ok());
  EXPECT_EQ(client_->GetSession("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Create("ttl", -2).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionServiceTest, ListsComeInPagesInOrderOfNames) {
  for (const char* name : {"c", "a", "user/2", "b", "user/1"}) ASSERT_TRUE(Create(name).ok());
  std::vector<std::string> names;
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  do {
    const auto page = client_->ListSessions(request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->total_count(), 5);
    EXPECT_LE(page->sessions_size(), 2);
    for (const v1::Session& session : page->sessions()) names.push_back(session.name());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, ElementsAre("a", "b", "c", "user/1", "user/2"));

  request.Clear();
  request.set_name_prefix("user/");
  EXPECT_EQ(client_->ListSessions(request)->total_count(), 2);
  request.set_page_size(1001);
  EXPECT_EQ(client_->ListSessions(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionServiceTest, TokenizeAndDetokenizeAreInverse) {
  v1::TokenizeRequest request;
  request.set_text("hé");
  request.set_with_pieces(true);
  request.set_add_special_tokens(true);
  const auto tokens = client_->Tokenize(request);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->token_ids(), ElementsAre(256, 'h', 0xC3, 0xA9));
  EXPECT_EQ(tokens->pieces(1), "h");
  EXPECT_EQ(tokens->pieces(2), "\xEF\xBF\xBD");

  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens->token_ids();
  EXPECT_EQ(client_->Detokenize(back)->text(), "hé");
  back.add_token_ids(259);
  const absl::Status status = client_->Detokenize(back).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("259"));
}

TEST_F(SessionServiceTest, InfoDescribesModelCapacityAndWork) {
  engine_.stats_.decode_rows.Observe(3);
  engine_.stats_.decode_rows.Observe(5);
  engine_.stats_.queue_seconds.Observe(0.25);
  const auto info = client_->GetInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->server().state(), v1::SERVER_STATE_SERVING);
  EXPECT_EQ(info->model().name(), "served");
  EXPECT_EQ(info->model().tokenizer(), "bytes");
  EXPECT_EQ(info->model().bos_token_id(), 256);
  EXPECT_EQ(info->model().sampling_defaults().top_k(), 5);
  EXPECT_EQ(info->capacity().max_sessions(), 10);
  EXPECT_EQ(info->limits().default_max_tokens(), 99);
  EXPECT_EQ(info->statistics().decode_rows().count(), 2);
  EXPECT_EQ(info->statistics().decode_rows().sum(), 8);
  EXPECT_EQ(info->statistics().queue_ms().sum(), 250);
}

class LoadingTest : public ServerTest {
 protected:
  LoadingTest() : ServerTest(/*publish=*/false) {}
};

TEST_F(LoadingTest, ClientsAreToldToWaitUntilTheModelIsThere) {
  access_.SetProgress(25, 100);
  const auto info = client_->GetInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->server().state(), v1::SERVER_STATE_LOADING);
  EXPECT_EQ(info->server().loaded_bytes(), 25);
  EXPECT_FALSE(*client_->IsServing());
  v1::GenerateRequest request;
  request.set_text("a");
  const absl::Status status = client_->Generate(request, [](const v1::GenerateResponse&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailsOf(status).reason, "LOADING");

  int64_t seen = 0;
  EXPECT_TRUE(client_
                  ->WaitUntilServing(absl::Seconds(30),
                                     [&](int64_t done, int64_t) {
                                       if (seen == 0) Publish();
                                       seen = done;
                                     })
                  .ok());
  EXPECT_EQ(seen, 25);
  EXPECT_TRUE(*client_->IsServing());
}

TEST_F(LoadingTest, ADrainRefusesNewWorkButAnswersQuestions) {
  Publish();
  ASSERT_TRUE(Client(ClientOptions{.target = target()}).GetInfo().ok());
  access_.SetDraining();
  v1::GenerateRequest request;
  request.set_text("a");
  const absl::Status status = client_->Generate(request, [](const v1::GenerateResponse&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
  EXPECT_EQ(client_->CreateSession({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->GetInfo()->server().state(), v1::SERVER_STATE_DRAINING);
  EXPECT_TRUE(client_->ListSessions({}).ok());
}

}  // namespace
}  // namespace mneme
