// Sessions over HTTP: views of their memories, what they forget, where they go back to, their
// files.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/requests/session_transfers.h"
#include "tests/server/openai/openai_service_harness.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class OpenAiSessionsTest : public OpenAiServiceTest {
 protected:
  // The answer to a request at that path below /v1/sessions.
  RawResponse Sessions(absl::string_view method, absl::string_view path,
                       absl::string_view body = "") {
    RawHttpClient client(server_->port());
    client.SendRequest(method, absl::StrCat("/v1/sessions", path), body);
    return client.Read();
  }
};

TEST_F(OpenAiSessionsTest, AViewOfASessionsMemoryIsJson) {
  Publish();
  ASSERT_TRUE(engine_.CreateSession({"", "a/b"}, absl::ZeroDuration()).ok());
  ASSERT_TRUE(engine_.CreateSession({"", "a/b/memory"}, absl::ZeroDuration()).ok());
  engine_.set_report(MemoryReport{
      .summary = {.position = 30, .working = 1},
      .engrams = {{.engram = {.birth = 3, .type = EngramType::kShortTerm}, .source = {1, 10, 20}}},
      .edges = {{.from = 3, .to = 4, .count = 2, .weight = 0.5, .weight_back = 1}}});
  const RawResponse engrams =
      Sessions("GET", "/a/b/memory?view=engrams&order=gain&kind=short_term&limit=7");
  EXPECT_EQ(engrams.status, 200) << engrams.body;
  EXPECT_THAT(
      engrams.body,
      AllOf(StartsWith(R"({"object":"memory","session_id":"a/b","summary":{"position":30,)"),
            HasSubstr(R"("engrams":[{"birth":3,"kind":"short_term")"),
            HasSubstr(R"("source":{"segment":1,"first_token":10,"end_token":20}}])"),
            Not(HasSubstr("edges"))));
  EXPECT_EQ(engine_.memory_queries().back().engrams->order, EngramsQuery::Order::kGain);
  EXPECT_EQ(engine_.memory_queries().back().engrams->kind, EngramType::kShortTerm);
  EXPECT_EQ(engine_.memory_queries().back().engrams->limit, 7);
  const RawResponse edges =
      Sessions("GET", "/a/b/memory?view=edges&birth=0&min_weight=0.25&min_count=2");
  EXPECT_THAT(edges.body,
              HasSubstr(R"("edges":[{"from":3,"to":4,"count":2,"weight":0.5,"weight_back":1.0}])"));
  EXPECT_EQ(engine_.memory_queries().back().edges->birth, 0u);
  EXPECT_EQ(engine_.memory_queries().back().edges->min_weight, 0.25);
  EXPECT_EQ(engine_.memory_queries().back().edges->min_count, 2);
  EXPECT_THAT(
      Sessions("GET", "/a/b/memory?view=histogram&quantity=age&bins=3&logarithmic=true").body,
      HasSubstr(R"("histogram":[])"));
  EXPECT_TRUE(engine_.memory_queries().back().histogram->logarithmic);
  EXPECT_THAT(Sessions("GET", "/a/b/memory?view=contiguity&max_distance=3").body,
              HasSubstr(R"("contiguity":[])"));
  EXPECT_THAT(Sessions("GET", "/a/b%2Fmemory").body, HasSubstr(R"("object":"session")"));

  for (const auto& [query, message] : {std::pair("", "view is missing, expected summary"),
                                       {"view=all", "view is \\\"all\\\", expected summary"},
                                       {"view=summary&limit=3", "limit is unknown, expected view"},
                                       {"view=edges&limit=20001", "a number from 1 to 20000"},
                                       {"view=engrams&limit=x", "a number from 1 to 10000"},
                                       {"view=edges&min_weight=nan", "a number from 0 to 1"},
                                       {"view=edges&birth=4294967296", "birth is "},
                                       {"view=histogram&bins=0", "bins is "},
                                       {"view=histogram&quantity=norm", "lifespan, age, creation"},
                                       {"view=contiguity&max_distance=-1", "max_distance is "},
                                       {"view=engrams&view=edges", "view"}}) {
    const RawResponse refused = Sessions("GET", absl::StrCat("/a/b/memory?", query));
    EXPECT_EQ(refused.status, 400) << query;
    EXPECT_THAT(refused.body, HasSubstr(message)) << query;
  }
  EXPECT_EQ(Sessions("GET", "/nobody/memory?view=summary").status, 404);
  engine_.set_report(WithReason(absl::UnimplementedError("of one piece"), kReasonWrongKind));
  EXPECT_EQ(Sessions("GET", "/a/b/memory?view=summary").status, 501);
}

TEST_F(OpenAiSessionsTest, SessionsForgetSegments) {
  Publish();
  ASSERT_EQ(Sessions("POST", "", R"({"session_id": "a/b"})").status, 200);
  const RawResponse done = Sessions("POST", "/a/b/forget_segments", R"({"first": 2, "end": 5})");
  EXPECT_EQ(done.status, 200);
  EXPECT_EQ(done.body, R"({"id":"a/b","object":"session.segments_forgotten","working":3,)"
                       R"("short_term":2,"long_term":0,"dropped_checkpoints":["dinner"]})");
  EXPECT_EQ(Sessions("POST", "/c/forget_segments", R"({"first": 2, "end": 5})").status, 404);
  EXPECT_EQ(Sessions("POST", "/a/b", R"({"first": 2, "end": 5})").status, 404);
  const RawResponse missing = Sessions("POST", "/a/b/forget_segments", R"({"first": 2})");
  EXPECT_EQ(missing.status, 400);
  EXPECT_THAT(missing.body, HasSubstr("end"));
  EXPECT_EQ(Sessions("POST", "/a/b/forget_segments", R"({"first": 2, "end": "5"})").status, 400);
  EXPECT_EQ(Sessions("POST", "/a/b/forget_segments", R"({"first": 2, "end": 5, "till": 6})").status,
            400);
}

TEST_F(OpenAiSessionsTest, SessionsBringASeed) {
  Publish();
  const std::string body = R"({"session_id": "a", "memory_seed": 18446744073709551615})";
  const std::string seed = R"("memory_seed":18446744073709551615,)";
  EXPECT_THAT(Sessions("POST", "", body).body, HasSubstr(seed));
  EXPECT_THAT(Sessions("GET", "/a").body, HasSubstr(seed));
  // Readers whose numbers are doubles send and get it as a text.
  EXPECT_THAT(Sessions("GET", "/a").body,
              HasSubstr(R"("memory_seed_text":"18446744073709551615")"));
  for (const char* exact : {"18446744073709551614", "9007199254740993", "0"}) {
    const std::string name = absl::StrCat("of", exact);
    const RawResponse made =
        Sessions("POST", "",
                 absl::StrCat(R"({"session_id": ")", name, R"(", "memory_seed": ")", exact, "\"}"));
    EXPECT_EQ(made.status, 200) << made.body;
    EXPECT_THAT(Sessions("GET", absl::StrCat("/", name)).body,
                AllOf(HasSubstr(absl::StrCat("\"memory_seed\":", exact, ",")),
                      HasSubstr(absl::StrCat("\"memory_seed_text\":\"", exact, "\""))));
  }
  EXPECT_THAT(Sessions("POST", "", R"({"session_id": "b"})").body,
              HasSubstr("\"memory_seed\":null,"));
  const RawResponse negative = Sessions("POST", "", R"({"session_id": "c", "memory_seed": -1})");
  EXPECT_EQ(negative.status, 400);
  EXPECT_THAT(negative.body, HasSubstr("2^64 - 1"));
  for (const char* large : {"18446744073709551616", "18446744073709551617", "1e40"}) {
    const RawResponse refused =
        Sessions("POST", "", absl::StrCat(R"({"session_id": "c", "memory_seed": )", large, "}"));
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("memory_seed is 2^64 or more, expected an integer"));
  }
  const RawResponse fork =
      Sessions("POST", "", R"({"session_id": "c", "fork_of": "a", "memory_seed": 5})");
  EXPECT_EQ(fork.status, 400);
  EXPECT_THAT(fork.body, HasSubstr("memory_seed"));
}

TEST_F(OpenAiSessionsTest, SessionsGoBack) {
  Publish();
  ASSERT_EQ(Sessions("POST", "", R"({"session_id": "a/b"})").status, 200);
  engine_.SetPosition({"", "a/b"}, 9);
  const RawResponse made = Sessions("POST", "/a/b/checkpoints", R"({"name": "c"})");
  EXPECT_EQ(made.status, 200);
  EXPECT_EQ(made.body, R"({"id":"c","object":"session.checkpoint","session_id":"a/b","position":9,)"
                       R"("has_pending_token":true,"created_at":100})");
  EXPECT_THAT(Sessions("POST", "/a/b/checkpoints").body, HasSubstr("\"id\":\"checkpoint-"));
  EXPECT_THAT(Sessions("GET", "/a/b/checkpoints").body, HasSubstr(made.body));
  ASSERT_EQ(Sessions("POST", "", R"({"session_id": "a/b/checkpoints"})").status, 200);
  EXPECT_THAT(Sessions("GET", "/a/b/checkpoints").body, HasSubstr(made.body));
  for (const char* path : {"/a/b/checkpoints", "/a/b/checkpoints?nmae=c", "/a%2Fb/checkpoints"}) {
    const RawResponse nameless = Sessions("DELETE", path);
    EXPECT_EQ(nameless.status, 400) << path;
    EXPECT_THAT(nameless.body, HasSubstr("name is missing")) << path;
  }
  EXPECT_EQ(Sessions("DELETE", "/a/b/checkpoints?name=").status, 400);
  EXPECT_EQ(Sessions("POST", "/a/b/checkpoints", R"({"name": ""})").status, 400);
  // The session that is called so is named with the slash in other words.
  EXPECT_THAT(Sessions("GET", "/a/b%2fcheckpoints").body, HasSubstr(R"("id":"a/b/checkpoints")"));
  EXPECT_EQ(Sessions("DELETE", "/a%2Fb%2Fcheckpoints").status, 200);
  EXPECT_EQ(Sessions("GET", "/a/b%2Fcheckpoints").status, 404);
  engine_.SetPosition({"", "a/b"}, 20);

  EXPECT_THAT(
      Sessions("POST", "", R"({"session_id": "f", "fork_of": "a/b", "fork_position": 11})").body,
      HasSubstr("\"position\":11"));
  EXPECT_THAT(
      Sessions("POST", "", R"({"session_id": "g", "fork_of": "a/b", "fork_checkpoint": "c"})").body,
      HasSubstr("\"position\":9"));
  EXPECT_EQ(Sessions("POST", "", R"({"session_id": "h", "fork_position": 11})").status, 400);
  EXPECT_THAT(Sessions("POST", "/a/b/rewind", R"({"position": 15})").body,
              HasSubstr("\"position\":15"));
  EXPECT_THAT(Sessions("POST", "/a/b/rewind", R"({"checkpoint": "c"})").body,
              HasSubstr("\"position\":9"));
  const RawResponse gone = Sessions("POST", "/a/b/rewind", R"({"position": 10})");
  EXPECT_EQ(gone.status, 400);
  EXPECT_THAT(gone.body, HasSubstr("position_gone"));
  for (const std::string field : {"position", "fork_position"}) {
    const RawResponse below =
        field == "position" ? Sessions("POST", "/a/b/rewind", R"({"position": -1})")
                            : Sessions("POST", "", R"({"fork_of": "a/b", "fork_position": -1})");
    EXPECT_EQ(below.status, 400);
    EXPECT_THAT(below.body, HasSubstr(absl::StrCat("\"param\":\"", field, "\"")));
    EXPECT_THAT(below.body, HasSubstr(absl::StrCat("\"", field, " is -1, expected 0")));
    EXPECT_THAT(below.body, HasSubstr("bad_field"));
  }
  EXPECT_EQ(Sessions("POST", "/a/b/rewind", "{}").status, 400);
  EXPECT_EQ(Sessions("POST", "/a/b/rewind", R"({"position": 1, "checkpoint": "c"})").status, 400);
  EXPECT_EQ(Sessions("POST", "/nobody/rewind", R"({"position": 1})").status, 404);
  EXPECT_EQ(Sessions("DELETE", "/a/b/checkpoints?name=c").status, 200);
  EXPECT_EQ(Sessions("DELETE", "/a/b/checkpoints?name=c").status, 404);
}

TEST_F(OpenAiSessionsTest, SessionsGoOutAsFilesAndComeBack) {
  Publish();
  engine_.set_file_numbers(1 << 19);
  ASSERT_EQ(Sessions("POST", "", R"({"session_id": "a/export"})").status, 200);
  EXPECT_EQ(Sessions("GET", "/a%2Fexport").status, 200) << "a session of that name";
  const RawResponse formless = Sessions("GET", "/a/export");
  EXPECT_EQ(formless.status, 400);
  EXPECT_THAT(formless.body, HasSubstr("format is missing, expected safetensors"));
  const RawResponse file = Sessions("GET", "/a/export/export?format=safetensors");
  ASSERT_EQ(file.status, 200) << file.body;
  EXPECT_EQ(file.Field("content-type"), "application/octet-stream");
  EXPECT_EQ(file.Field("x-file-size"), absl::StrCat(file.body.size()));
  EXPECT_GT(file.body.size(), size_t{2} << 20);

  const RawResponse made = Sessions("POST", "/b/import?session_ttl_ms=5000", file.body);
  EXPECT_EQ(made.status, 200) << made.body;
  EXPECT_THAT(made.body,
              AllOf(HasSubstr(R"("id":"b")"), HasSubstr(R"("ttl_ms":5000)"),
                    HasSubstr(R"("import":{"file_state_dtype":"f32","state_dtype":"f16",)"
                              R"("rounded_tensors":3,"file_engram_capacity":64,)"
                              R"("engram_capacity":128})")));
  const auto refusal = [&](const RawResponse& response, int status, const std::string& code) {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_THAT(response.body, HasSubstr(code));
  };
  refusal(Sessions("POST", "/b/import", file.body), 409, "session_exists");
  std::string damaged = file.body;
  damaged[damaged.size() - 50] ^= 4;
  refusal(Sessions("POST", "/c/import", damaged), 422, "checksum_mismatch");
  refusal(Sessions("POST", "/c/import", "what is this?"), 400, "bad_file");
  refusal(Sessions("POST", "/c/import?ttl=3", file.body), 400, "ttl is unknown");
  refusal(Sessions("POST", "/c/import?session_ttl_ms=soon", file.body), 400, "expected a number");
  refusal(Sessions("GET", "/c/export?format=safetensors"), 404, "no_such_session");
  refusal(Sessions("GET", "/b/export?format=zip"), 400, "expected safetensors");
  refusal(Sessions("POST", "/c/elsewhere", "{}"), 404, "forget_segments or import");
}

// A file may be longer than other bodies, which keep their bound.
TEST_F(OpenAiSessionsTest, FilesOfSessionsHaveABoundOfTheirOwn) {
  ServingFacts facts;
  facts.session_transfers = std::make_shared<SessionTransfers>(
      SessionTransfers::Limits{.at_once = 1, .file_bytes = int64_t{20} << 20});
  access_.Publish(engine_, facts);
  Start(absl::Minutes(1));
  const auto post = [&](const std::string& path, size_t bytes) {
    RawHttpClient client(server_->port());
    client.Send(absl::StrCat("POST /v1/sessions", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ",
                             bytes, "\r\nConnection: close\r\n\r\n"));
    if (bytes <= size_t{20} << 20) client.Send(std::string(bytes, 'x'));
    return client.Read();
  };
  EXPECT_EQ(post("/a/import", size_t{17} << 20).status, 400) << "read, and found to be none";
  EXPECT_EQ(post("/a/import", (size_t{20} << 20) + 1).status, 413);
  EXPECT_EQ(post("/a/forget_segments", (size_t{20} << 20) + 1).status, 413);
  // A place goes with its request, which may outlive the answer for a moment.
  absl::StatusOr<std::shared_ptr<const void>> place = absl::UnknownError("");
  while (!place.ok()) place = facts.session_transfers->Begin(SessionTransfers::kImport);
  EXPECT_EQ(post("/a/import", 10).status, 429) << "no place";
}

}  // namespace
}  // namespace mneme
