// Texts through an engine whose model classifies them: whole segments, no matter how many others
// there are, and nothing else.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/session_storage.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/test_folder.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EngineClassifyTest : public ::testing::Test {
 protected:
  EngineClassifyTest() { SetMinLogSeverity(LogSeverity::kFatal); }

  static BackendUnderTest Cpu() { return AvailableBackends().front(); }
  static EngineOptions Small() {
    // Two segments of 16 tokens, and not three.
    return {
        .max_sessions = 8, .max_rows = 4, .max_tokens_per_step = 40, .max_logit_rows_per_step = 8};
  }

  absl::StatusOr<std::unique_ptr<Engine>> Make(const char* model_type,
                                               EngineOptions options = Small(),
                                               int engram_capacity = 0,
                                               SessionStorage storage = {}) {
    MakeFolder(MatrixSpec(model_type), folder_);
    auto backend = Cpu().Make();
    auto model = LoadModel(folder_.path(), *backend, nullptr, {.engram_capacity = engram_capacity});
    CHECK_OK(model.status());
    return Engine::Create(std::move(backend), *std::move(model), nullptr, {}, options, clock_,
                          std::move(storage));
  }
  static Request Text(std::vector<int32_t> tokens, std::vector<int32_t> types = {}) {
    Request request;
    request.classify = true;
    request.stop.max_tokens = 0;
    request.prompt.at_start = std::move(tokens);
    request.prompt.same_everywhere = true;
    request.prompt.source = PromptSource::kTokenIds;
    request.token_types = std::move(types);
    return request;
  }
  static TokenEvent Last(TokenStream& stream) {
    while (true) {
      std::optional<TokenEvent> event = stream.Next(absl::Seconds(60));
      CHECK(event.has_value()) << "nothing came for a minute";
      if (event->is_last) return *std::move(event);
    }
  }
  // The logits of a text by itself, without an engine.
  std::vector<float> Alone(const std::vector<int32_t>& tokens, const std::vector<int32_t>& types) {
    const auto driver =
        Drive(folder_.path(), Cpu().Make(), {.slots = 1, .max_rows = 1, .max_tokens = 130});
    const Classes& classes = driver->model().info().classes;
    const SegmentedText text = FillUp(classes, tokens, types);
    std::vector<float> logits;
    for (size_t at = 0; at < text.tokens.size(); at += static_cast<size_t>(classes.segment)) {
      const size_t count = std::min(static_cast<size_t>(classes.segment), text.tokens.size() - at);
      const ModelDriver::Row row = {0, std::span(text.tokens).subspan(at, count),
                                    std::span(text.types).subspan(at, count)};
      const std::vector<int32_t> last = {static_cast<int32_t>(count) - 1};
      const auto step = driver->Step({&row, 1}, last);
      CHECK_OK(step.status());
      logits.assign(step->begin(), step->end());
    }
    return logits;
  }

  TestFolder folder_;
  RealClock clock_;
};

TEST_F(EngineClassifyTest, TextsOfManySegmentsGetTheLogitsThatTheyGetAlone) {
  const auto engine = Make("memoria_bert");
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 12; ++i) {
    texts.push_back(RandomTokens(1 + 13 * i, 259, static_cast<uint64_t>(i)));
    const auto stream = (*engine)->Submit(Text(texts.back()));
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const TokenEvent last = Last(*streams[i]);
    EXPECT_EQ(last.status, absl::OkStatus());
    EXPECT_EQ(last.finish, FinishReason::kStop);
    EXPECT_EQ(last.class_logits, Alone(texts[i], {})) << "text " << i;
    EXPECT_EQ(last.usage.prompt_tokens, static_cast<int64_t>(texts[i].size()));
    EXPECT_EQ(last.usage.fed_tokens, static_cast<int64_t>((texts[i].size() + 15) / 16 * 16));
    EXPECT_EQ(last.usage.completion_tokens, 0);
  }
}

TEST_F(EngineClassifyTest, PairsAreToldFromEachOther) {
  auto options = Small();
  options.max_tokens_per_step = 130;
  const auto engine = Make("bert", options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<int32_t> tokens = RandomTokens(20, 259, 1);
  std::vector<int32_t> types(20);
  const auto logits_of = [&] {
    return Last(**(*engine)->Submit(Text(tokens, types))).class_logits;
  };
  const std::vector<float> one = logits_of();
  EXPECT_EQ(one, Alone(tokens, {}));
  std::fill(types.begin() + 9, types.end(), 1);
  EXPECT_EQ(logits_of(), Alone(tokens, types));
  EXPECT_NE(logits_of(), one);
}

TEST_F(EngineClassifyTest, EvictionsOfATextAreToldAndCounted) {
  constexpr int kFewest = 12;
  for (const char* type : {"memoria_bert", "memoria_roberta"}) {
    const auto engine = Make(type, Small(), kFewest);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const EngramStats& stats = (*engine)->stats().engrams;
    EXPECT_TRUE(stats.exist);
    const auto last_of = [&](int segments) {
      return Last(**(*engine)->Submit(Text(RandomTokens(16 * segments, 259, 1))));
    };
    EXPECT_FALSE(last_of(2).usage.memory_evicted);
    EXPECT_EQ(stats.evictions.value(), 0);
    EXPECT_EQ(stats.long_term.count(), 2) << "a segment begins in each of two";
    EXPECT_EQ(stats.wraps.value(), 0);
    const TokenEvent full = last_of(20);
    EXPECT_EQ(full.status, absl::OkStatus());
    EXPECT_TRUE(full.usage.memory_evicted) << type;
    EXPECT_GT(stats.evictions.value(), 0);
    EXPECT_EQ(stats.long_term.count(), 22);
    EXPECT_FALSE(last_of(2).usage.memory_evicted) << "the next text has a memory of its own";
  }
}

TEST_F(EngineClassifyTest, PairsOfMemoriaAreOfOneType) {
  const auto engine = Make("memoria_bert");
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_THAT(std::string((*engine)->Submit(Text({1, 2}, {0, 1})).status().message()),
              HasSubstr("token_types[1] is 1, expected 0 to 0"));
}

TEST_F(EngineClassifyTest, SessionsAreNotStored) {
  StoreReport report;
  const TestFolder sessions;
  const auto engine = Make("memoria_bert", Small(), 0, StorageIn(sessions.path() + "/s", report));
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()),
              HasSubstr("(--session-dir), expected none: a model that classifies"));
}

TEST_F(EngineClassifyTest, WhatCannotBeClassifiedIsRefusedByName) {
  auto options = Small();
  options.max_tokens_per_step = 130;
  const auto engine = Make("bert", options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto refusal = [&](Request request) {
    return std::string((*engine)->Submit(std::move(request)).status().message());
  };
  EXPECT_THAT(refusal(Text(RandomTokens(131, 259, 1))),
              HasSubstr("token_ids has 131 tokens, expected at most 130, the positions that the "
                        "model has"));
  EXPECT_THAT(refusal(Text({})), HasSubstr("is empty"));
  EXPECT_THAT(refusal(Text({1, 259})), HasSubstr("is 259, expected 0 to 258"));
  EXPECT_THAT(refusal(Text({1, 2}, {0, 2})), HasSubstr("token_types[1] is 2, expected 0 to 1"));
  EXPECT_THAT(refusal(Text({1, 2}, {0})),
              HasSubstr("token_types has 1 numbers, expected one for each of 2 tokens"));
  Request named = Text({1});
  named.session.name = "s";
  EXPECT_THAT(refusal(named), HasSubstr("a text is classified by itself"));
  Request generates = Text({1});
  generates.classify = false;
  const absl::Status wrong = (*engine)->Submit(generates).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(wrong), kReasonWrongKind);
  EXPECT_THAT(std::string(wrong.message()),
              HasSubstr("the model classifies texts and generates none: expected Classify"));
  EXPECT_EQ((*engine)->CreateSession({"", "s"}, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf((*engine)->InspectMemory({"", "s"}, {}).status()), kReasonWrongKind);

  const auto other = Engine::Create(std::make_unique<FaultyBackend>(),
                                    std::make_unique<FakeModel>(), nullptr, {}, Small(), clock_);
  ASSERT_TRUE(other.ok()) << other.status();
  const absl::Status none = (*other)->Submit(Text({1})).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("the model generates text and has no classes: expected Generate or Chat"));
}

TEST_F(EngineClassifyTest, StepsBelowASegmentAreRefusedAtTheStart) {
  EngineOptions options = Small();
  options.max_tokens_per_step = 15;
  const auto engine = Make("memoria_roberta", options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()),
              HasSubstr("steps have at most 15 tokens (--max-num-batched-tokens), and a segment of "
                        "this model, which no step cuts, has up to 16"));
}

TEST(PlanWholeRowsTest, RowsAreTakenWholeOrWait) {
  const std::vector<int32_t> tokens(16, 7), types(16, 0);
  const auto row = [&](int slot, size_t count, int64_t last_run) {
    return RowCandidate{.slot = slot,
                        .position = 0,
                        .tokens = std::span(tokens).first(count),
                        .types = std::span(types).first(count),
                        .whole = true,
                        .samples = true,
                        .last_run = last_run};
  };
  const std::vector<RowCandidate> candidates = {row(0, 16, 5), row(1, 16, 2), row(2, 9, 3),
                                                row(3, 1, 9)};
  const StepPlan plan = PlanStep(candidates, {.max_rows = 3, .max_tokens = 30});
  // The longest waiting first; of the others who fits.
  EXPECT_THAT(plan.slots, ElementsAre(1, 2, 3));
  EXPECT_EQ(plan.tokens(), 26);
  EXPECT_EQ(plan.token_types.size(), 26u);
  EXPECT_EQ(plan.decode_rows, 0);
  EXPECT_THAT(PlanStep(candidates, {.max_rows = 1, .max_tokens = 16}).slots, ElementsAre(1));
}

}  // namespace
}  // namespace mneme
