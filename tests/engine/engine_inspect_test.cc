// A session's engrams through the whole engine: what is told of them, to whom, and that telling it
// changes nothing.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

constexpr int kInspectVocab = 259, kSegment = 8, kWorking = 3;

ModelSpec TinyMemoria() {
  return {.config = {{"model_type", "gpt2_with_memoria"},
                     {"vocab_size", kInspectVocab},
                     {"n_positions", 64},
                     {"n_embd", 32},
                     {"n_layer", 2},
                     {"n_head", 4},
                     {"segment_tokens", kSegment},
                     {"memoria_num_memories", kWorking},
                     {"memoria_num_reminded_stm", 4},
                     {"memoria_num_reminded_ltm", 4},
                     {"memoria_stm_capacity", 6},
                     {"memoria_ltm_search_depth", 3},
                     {"memoria_initial_lifespan", 4},
                     {"memoria_lifespan_extend_scale", 3.0}},
          .dtype = DType::kF32,
          .initializer_range = 0.15};
}

class EngineInspectTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngineInspectTest() { SetMinLogSeverity(LogSeverity::kFatal); }

  std::unique_ptr<Engine> Make(const ModelSpec& spec) {
    folder_.emplace();
    MakeFolder(spec, *folder_);
    std::unique_ptr<Backend> backend = GetParam().Make();
    auto model = LoadModel(folder_->path(), *backend, nullptr);
    CHECK_OK(model.status());
    auto engine =
        Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                       {.max_sessions = 6, .max_rows = 6, .max_tokens_per_step = 64}, clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  static std::shared_ptr<TokenStream> Begin(Engine& engine, const SessionKey& session,
                                            std::vector<int32_t> prompt, int tokens) {
    Request request;
    request.session = session;
    request.prompt.at_start = std::move(prompt);
    request.prompt.same_everywhere = true;
    request.sampling.temperature = 0;
    request.stop.max_tokens = tokens;
    request.stop.ignore_eos = true;
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    return *std::move(stream);
  }
  static std::vector<int32_t> Generate(Engine& engine, const std::string& session,
                                       std::vector<int32_t> prompt, int tokens) {
    const auto stream = Begin(engine, {"", session}, std::move(prompt), tokens);
    std::vector<int32_t> ids;
    for (bool last = false; !last;) {
      const std::optional<TokenEvent> event = stream->Next(absl::Seconds(60));
      CHECK(event.has_value()) << "nothing came for a minute";
      ids.insert(ids.end(), event->token_ids.begin(), event->token_ids.end());
      last = event->is_last;
    }
    return ids;
  }

  static MemoryQuery Everything() {
    return {.engrams = EngramsQuery{.limit = 1000},
            .edges = EdgesQuery{.limit = 1000},
            .histogram = HistogramQuery{.quantity = HistogramQuery::Quantity::kCreation},
            .contiguity = ContiguityQuery{}};
  }

  RealClock clock_;
  std::optional<TestFolder> folder_;
};

TEST_P(EngineInspectTest, ASessionsEngramsAreTold) {
  const auto engine = Make(TinyMemoria());
  constexpr int kTokens = 20 * kSegment + 3;
  Generate(*engine, "a", RandomTokens(kTokens, kInspectVocab, /*seed=*/1), 1);
  const auto report = engine->InspectMemory({"", "a"}, Everything());
  ASSERT_TRUE(report.ok()) << report.status();
  const MemorySummary& summary = report->summary;
  EXPECT_EQ(summary.position, kTokens + 1) << "the last one is not fed yet";
  EXPECT_EQ(summary.position, engine->GetSession({"", "a"})->position);
  EXPECT_EQ(summary.segment, 20);
  EXPECT_EQ(summary.segment_tokens, kSegment);
  EXPECT_EQ(summary.capacity, engine->model_info().engrams);
  EXPECT_EQ(summary.working, kWorking);
  EXPECT_EQ(summary.short_term, 6);
  EXPECT_EQ(summary.working + summary.short_term + summary.long_term + summary.free,
            summary.capacity);
  ASSERT_EQ(report->engrams.size(), static_cast<size_t>(summary.capacity - summary.free));
  double lifespans = 0;
  int recalled = 0;
  for (const EngramRow& row : report->engrams) {
    lifespans += row.engram.lifespan;
    recalled += row.engram.recalled ? 1 : 0;
    EXPECT_EQ(row.source.first_token, row.engram.birth / kWorking * kSegment);
    EXPECT_EQ(row.age, 19 - row.source.segment);
    EXPECT_GT(row.engram.norm, 0);
    EXPECT_GE(row.engram.firings, 1);
    EXPECT_LE(row.engram.firings, row.age + 1);
  }
  EXPECT_DOUBLE_EQ(lifespans, summary.lifespan_sum);
  EXPECT_EQ(recalled, summary.recalled);
  EXPECT_GT(recalled, 0);
  // The working engrams of a segment fire together, and with nothing before they are recalled.
  int newest = 0;
  for (const EngramEdge& edge : report->edges) {
    if (edge.from < 19 * kWorking || edge.to < 19 * kWorking) continue;
    EXPECT_EQ(edge.count, 1);
    EXPECT_EQ(edge.weight, 1);
    ++newest;
  }
  EXPECT_EQ(newest, kWorking * (kWorking - 1) / 2);
  EXPECT_EQ(report->contiguity.front().distance, 0);
  int64_t counted = 0;
  for (const HistogramBin& bin : report->histogram) counted += bin.engrams;
  EXPECT_EQ(counted, static_cast<int64_t>(report->engrams.size()));
}

TEST_P(EngineInspectTest, LookingChangesNothing) {
  const auto engine = Make(TinyMemoria());
  const std::vector<int32_t> prompt = RandomTokens(60, kInspectVocab, /*seed=*/2);
  Generate(*engine, "a", prompt, 5);
  Generate(*engine, "b", prompt, 5);
  const auto first = engine->InspectMemory({"", "a"}, Everything());
  const auto again = engine->InspectMemory({"", "a"}, Everything());
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first->summary.lifespan_sum, again->summary.lifespan_sum);
  EXPECT_EQ(Generate(*engine, "a", {}, 40), Generate(*engine, "b", {}, 40));
}

TEST_P(EngineInspectTest, ANewSessionHoldsNothing) {
  const auto engine = Make(TinyMemoria());
  // Its slab is one that was used before.
  Generate(*engine, "old", RandomTokens(100, kInspectVocab, /*seed=*/3), 1);
  ASSERT_TRUE(engine->DeleteSession({"", "old"}).ok());
  ASSERT_TRUE(engine->CreateSession({"", "new"}, absl::ZeroDuration()).ok());
  const auto report = engine->InspectMemory({"", "new"}, Everything());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->summary.free, report->summary.capacity);
  EXPECT_EQ(report->summary.evictions, 0);
  EXPECT_TRUE(report->engrams.empty() && report->edges.empty() && report->histogram.empty());
}

TEST_P(EngineInspectTest, OnlyOwnersLookAndOnlyAtIdleSessions) {
  const auto engine = Make(TinyMemoria());
  EXPECT_EQ(ReasonOf(engine->InspectMemory({"", "nobody"}, {}).status()), kReasonNoSession);
  // More tokens than its reader takes: the request waits for that, and keeps the session.
  auto stream = Begin(*engine, {"alice", "a"}, RandomTokens(20, kInspectVocab, /*seed=*/4), 5000);
  ASSERT_TRUE(stream->Next(absl::Seconds(60)).has_value());
  const absl::Status busy = engine->InspectMemory({"alice", "a"}, Everything()).status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(busy), kReasonSessionBusy);
  EXPECT_EQ(ReasonOf(engine->InspectMemory({"bob", "a"}, {}).status()), kReasonNoSession);
  const absl::Status none =
      engine->InspectMemory({"alice", "a"}, {.edges = EdgesQuery{.birth = 1}}).status();
  EXPECT_EQ(ReasonOf(none), kReasonSessionBusy);
}

TEST_P(EngineInspectTest, OtherModelsMakeNoEngrams) {
  const auto engine = Make({.config = {{"model_type", "gpt2"},
                                       {"vocab_size", kInspectVocab},
                                       {"n_positions", 64},
                                       {"n_embd", 32},
                                       {"n_layer", 2},
                                       {"n_head", 4}},
                            .dtype = DType::kF32});
  ASSERT_TRUE(engine->CreateSession({"", "a"}, absl::ZeroDuration()).ok());
  const absl::Status status = engine->InspectMemory({"", "a"}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ReasonOf(status), kReasonWrongKind);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("type gpt2"));
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineInspectTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
