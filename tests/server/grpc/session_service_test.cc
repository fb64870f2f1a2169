// The Sessions service, Tokenize, Detokenize and GetInfo over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
  EXPECT_EQ(created->stored_bytes(), 512);
  EXPECT_EQ(Create("a").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(client_->GetSession("a")->name(), "a");
  EXPECT_EQ(Fork("a", "b")->name(), "b");
  EXPECT_TRUE(client_->DeleteSession("a").ok());
  const absl::Status gone = client_->GetSession("a").status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DetailsOf(gone).reason, "NO_SUCH_SESSION");
  EXPECT_EQ(client_->DeleteSession("a").code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionServiceTest, AListTellsWhatTheKeyHasAndMay) {
  engine_.set_usage({.sessions = 1,
                     .max_sessions = 2,
                     .stored_bytes = 3,
                     .max_stored_bytes = 4,
                     .checkpoints = 5,
                     .max_checkpoints = 6});
  ASSERT_TRUE(Create("a").ok());
  const auto list = client_->ListSessions({});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->sessions(0).stored_bytes(), 512);
  EXPECT_EQ(list->usage().sessions(), 1);
  EXPECT_EQ(list->usage().max_sessions(), 2);
  EXPECT_EQ(list->usage().stored_bytes(), 3);
  EXPECT_EQ(list->usage().max_stored_bytes(), 4);
  EXPECT_EQ(list->usage().checkpoints(), 5);
  EXPECT_EQ(list->usage().max_checkpoints(), 6);
}

TEST_F(SessionServiceTest, TheSeedThatASessionBringsIsTold) {
  v1::CreateSessionRequest request;
  request.set_name("a");
  EXPECT_FALSE(client_->CreateSession(request)->has_memory_seed());
  for (const uint64_t seed : {uint64_t{0}, ~uint64_t{0}}) {
    request.set_name(absl::StrCat("s", seed));
    request.set_memory_seed(seed);
    ASSERT_TRUE(client_->CreateSession(request).ok());
    const auto session = client_->GetSession(request.name());
    EXPECT_TRUE(session->has_memory_seed());
    EXPECT_EQ(session->memory_seed(), seed);
  }
}

TEST_F(SessionServiceTest, SaysHowLongASessionMayBeAndWhetherItIs) {
  ASSERT_TRUE(Create("a").ok());
  EXPECT_EQ(client_->GetInfo()->limits().max_context(), 0);
  EXPECT_EQ(client_->GetSession("a")->max_context(), 0);
  engine_.SetPosition({"", "a"}, 100);
  EXPECT_FALSE(client_->GetSession("a")->context_full());

  engine_.set_max_context(16);
  EXPECT_EQ(client_->GetInfo()->limits().max_context(), 16);
  for (const auto& [position, full] : {std::pair(16, false), {17, true}}) {  // one is pending
    engine_.SetPosition({"", "a"}, position);
    const auto session = client_->GetSession("a");
    EXPECT_EQ(session->max_context(), 16);
    EXPECT_EQ(session->context_full(), full) << position;
    const auto list = client_->ListSessions({});
    ASSERT_EQ(list->sessions_size(), 1);
    EXPECT_EQ(list->sessions(0).context_full(), full);
  }
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
  ASSERT_EQ(response.dropped_checkpoints_size(), 1);
  EXPECT_EQ(response.dropped_checkpoints(0), "dinner");
  EXPECT_EQ(forget("b").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(forget("").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionServiceTest, SessionsGoBackToCheckpointsAndPositions) {
  ASSERT_TRUE(Create("a").ok());
  engine_.SetPosition({"", "a"}, 9);
  v1::CreateCheckpointRequest request;
  request.set_session("a");
  request.set_name("c");
  const auto made = client_->CreateCheckpoint(request);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->position(), 9);
  EXPECT_TRUE(made->has_pending_token());
  EXPECT_EQ(made->create_time().seconds(), 100);
  request.clear_name();
  EXPECT_THAT(client_->CreateCheckpoint(request)->name(), HasSubstr("checkpoint-"));
  EXPECT_EQ(client_->ListCheckpoints("a")->checkpoints_size(), 2);
  engine_.SetPosition({"", "a"}, 20);

  v1::ForkSessionRequest fork;
  fork.set_source_name("a");
  fork.set_target_name("b");
  fork.set_position(11);
  EXPECT_EQ(client_->ForkSession(fork)->position(), 11);
  fork.set_target_name("d");
  fork.set_checkpoint("c");
  EXPECT_EQ(client_->ForkSession(fork)->position(), 9);
  fork.set_target_name("e");
  fork.set_checkpoint("");
  EXPECT_EQ(client_->ForkSession(fork).status().code(), absl::StatusCode::kInvalidArgument);

  v1::RewindSessionRequest back;
  back.set_name("a");
  EXPECT_EQ(client_->RewindSession(back).status().code(), absl::StatusCode::kInvalidArgument);
  back.set_position(21);
  const absl::Status beyond = client_->RewindSession(back).status();
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(beyond).reason, "POSITION_GONE");
  back.set_position(-1);
  fork.set_target_name("g");
  fork.set_position(-1);
  for (const absl::Status& below :
       {client_->RewindSession(back).status(), client_->ForkSession(fork).status()}) {
    EXPECT_EQ(DetailsOf(below).reason, "BAD_FIELD");
    EXPECT_EQ(below.message(), "position is -1, expected 0, where every session begins, or more");
  }
  back.set_position(15);
  EXPECT_EQ(client_->RewindSession(back)->position(), 15);
  back.set_checkpoint("c");
  EXPECT_EQ(client_->RewindSession(back)->position(), 9);
  EXPECT_TRUE(client_->DeleteCheckpoint("a", "c").ok());
  EXPECT_EQ(DetailsOf(client_->RewindSession(back).status()).reason, "NO_SUCH_CHECKPOINT");
  EXPECT_EQ(DetailsOf(client_->DeleteCheckpoint("a", "c")).reason, "NO_SUCH_CHECKPOINT");
  EXPECT_EQ(DetailsOf(client_->ListCheckpoints("nobody").status()).reason, "NO_SUCH_SESSION");
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

MemoryReport SmallReport() {
  return {.summary = {.position = 30,
                      .segment = 2,
                      .segment_tokens = 10,
                      .capacity = 8,
                      .working = 1,
                      .free = 7,
                      .lifespan_sum = 2.5,
                      .evictions = 4,
                      .history_wrapped = true},
          .engrams = {{.engram = {.birth = 3,
                                  .type = EngramType::kLongTerm,
                                  .lifespan = 2.5,
                                  .last_gain = 0.5,
                                  .norm = 6,
                                  .firings = 9,
                                  .recalled = true},
                       .age = 1,
                       .source = {1, 10, 20}}},
          .edges = {{.from = 3, .to = 4, .count = 2, .weight = 0.5, .weight_back = 1}},
          .histogram = {{.from = 1, .to = 2, .engrams = 5}},
          .contiguity = {{.distance = 6, .mean_weight = 0.25, .pairs = 7}}};
}

TEST_F(SessionServiceTest, MemoryIsShownAsItIsAskedFor) {
  ASSERT_TRUE(Create("a").ok());
  engine_.set_report(SmallReport());
  v1::InspectMemoryRequest request;
  request.set_name("a");
  ASSERT_TRUE(client_->InspectMemory(request).ok());
  const MemoryQuery bare = engine_.memory_queries().back();
  EXPECT_FALSE(bare.engrams.has_value() || bare.edges.has_value() || bare.histogram.has_value() ||
               bare.contiguity.has_value());

  request.mutable_engrams()->set_order(v1::EngramsView::ORDER_GAIN);
  request.mutable_engrams()->set_kind(v1::ENGRAM_KIND_LONG_TERM);
  request.mutable_edges()->set_birth(0);
  request.mutable_edges()->set_min_weight(0.5);
  request.mutable_histogram()->set_quantity(v1::HistogramView::QUANTITY_CREATION);
  request.mutable_histogram()->set_logarithmic(true);
  request.mutable_contiguity()->set_max_distance(5);
  const auto memory = client_->InspectMemory(request);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const MemoryQuery query = engine_.memory_queries().back();
  EXPECT_EQ(query.engrams->order, EngramsQuery::Order::kGain);
  EXPECT_EQ(query.engrams->kind, EngramType::kLongTerm);
  EXPECT_EQ(query.engrams->limit, 100);
  EXPECT_EQ(query.edges->birth, 0u);
  EXPECT_EQ(query.edges->min_count, 1);
  EXPECT_EQ(query.edges->min_weight, 0.5);
  EXPECT_EQ(query.edges->limit, 100);
  EXPECT_EQ(query.histogram->quantity, HistogramQuery::Quantity::kCreation);
  EXPECT_EQ(query.histogram->bins, 20);
  EXPECT_TRUE(query.histogram->logarithmic);
  EXPECT_EQ(query.contiguity->max_distance, 5);

  EXPECT_EQ(memory->summary().segment_tokens(), 10);
  EXPECT_EQ(memory->summary().evictions(), 4);
  EXPECT_TRUE(memory->summary().history_wrapped());
  ASSERT_EQ(memory->engrams_size(), 1);
  EXPECT_EQ(memory->engrams(0).kind(), v1::ENGRAM_KIND_LONG_TERM);
  EXPECT_EQ(memory->engrams(0).norm(), 6);
  EXPECT_EQ(memory->engrams(0).source().end_token(), 20);
  EXPECT_EQ(memory->edges(0).weight_back(), 1);
  EXPECT_EQ(memory->histogram(0).engrams(), 5);
  EXPECT_EQ(memory->contiguity(0).pairs(), 7);
}

TEST_F(SessionServiceTest, ViewsOutOfRangeAreRefusedByName) {
  ASSERT_TRUE(Create("a").ok());
  const auto refused = [this](auto change) {
    v1::InspectMemoryRequest request;
    request.set_name("a");
    change(request);
    const absl::Status status = client_->InspectMemory(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const auto fields = DetailsOf(status).fields;
    return fields.size() == 1 ? fields[0].field : "";
  };
  using Request = v1::InspectMemoryRequest;
  EXPECT_EQ(refused([](Request& r) { r.set_name("with space"); }), "name");
  EXPECT_EQ(refused([](Request& r) { r.mutable_engrams()->set_limit(10001); }), "engrams.limit");
  EXPECT_EQ(refused([](Request& r) { r.mutable_engrams()->set_limit(-1); }), "engrams.limit");
  EXPECT_EQ(
      refused([](Request& r) { r.mutable_engrams()->set_kind(static_cast<v1::EngramKind>(4)); }),
      "engrams.kind");
  EXPECT_EQ(refused([](Request& r) {
              r.mutable_engrams()->set_order(static_cast<v1::EngramsView::Order>(9));
            }),
            "engrams.order");
  EXPECT_EQ(refused([](Request& r) { r.mutable_edges()->set_limit(20001); }), "edges.limit");
  EXPECT_EQ(refused([](Request& r) { r.mutable_edges()->set_min_count(-2); }), "edges.min_count");
  EXPECT_EQ(refused([](Request& r) { r.mutable_edges()->set_min_weight(NAN); }),
            "edges.min_weight");
  EXPECT_EQ(refused([](Request& r) { r.mutable_edges()->set_min_weight(1.5); }),
            "edges.min_weight");
  EXPECT_EQ(refused([](Request& r) { r.mutable_histogram(); }), "histogram.quantity");
  EXPECT_EQ(refused([](Request& r) {
              r.mutable_histogram()->set_quantity(v1::HistogramView::QUANTITY_AGE);
              r.mutable_histogram()->set_bins(1001);
            }),
            "histogram.bins");
  EXPECT_EQ(refused([](Request& r) { r.mutable_contiguity()->set_max_distance(10001); }),
            "contiguity.max_distance");
  EXPECT_TRUE(engine_.memory_queries().empty());
}

TEST_F(SessionServiceTest, MemoryThatIsNotThereIsAnError) {
  v1::InspectMemoryRequest request;
  request.set_name("nobody");
  EXPECT_EQ(client_->InspectMemory(request).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Create("a").ok());
  request.set_name("a");
  engine_.set_report(WithReason(absl::UnimplementedError("of one piece"), kReasonWrongKind));
  const absl::Status status = client_->InspectMemory(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(DetailsOf(status).reason, "WRONG_KIND_OF_MODEL");
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
