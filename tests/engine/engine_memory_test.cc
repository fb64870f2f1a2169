// The whole engine with a model that makes engrams: what of them is forgotten, what answers drew
// on, and what crossings report.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/memory_use.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/outcome.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

using testing::HasSubstr;

constexpr int kVocab = 259;
constexpr int kFewest = 13;  // engrams that a session of the tiny model has room for

Request OwnedRequest(std::vector<int32_t> prompt, int tokens, const std::string& session = "",
                     const std::string& owner = "") {
  Request request;
  request.session = {owner, session};
  request.prompt.at_start = std::move(prompt);
  request.prompt.same_everywhere = true;
  request.sampling.temperature = 0;
  request.stop.max_tokens = tokens;
  request.stop.ignore_eos = true;
  return request;
}

TEST(MemoryUseTallyTest, WeightsAreOfTheRequestAloneAndAddUpToOne) {
  MemoryUseTally tally;
  tally.Leave({{{.segment = 0, .birth = 1, .weight = 2}, {.segment = 2, .birth = 9, .weight = 1}}});
  tally.Add({{{.segment = 0, .birth = 1, .weight = 3.5},
              {.segment = 2, .birth = 9, .weight = 1},  // to which no token of the request attended
              {.segment = 0, .birth = 2, .weight = 0.5}}});
  tally.Add({{{.segment = 0, .birth = 1, .long_term = true, .weight = 1.5},
              {.segment = 3, .birth = 12, .weight = 0.5}}});
  const MemoryUse use = tally.Result(/*segment_tokens=*/10, /*evictions=*/4);
  EXPECT_EQ(use.evictions, 4);
  ASSERT_EQ(use.sources.size(), 3u);
  const auto expect = [&](size_t i, int64_t segment, bool long_term, int engrams, double weight) {
    const MemoryUse::Source& source = use.sources[i];
    EXPECT_EQ(source.segment, segment);
    EXPECT_EQ(source.first_token, 10 * segment);
    EXPECT_EQ(source.end_token, 10 * segment + 10);
    EXPECT_EQ(source.long_term, long_term);
    EXPECT_EQ(source.engrams, engrams);
    EXPECT_DOUBLE_EQ(source.weight, weight);
  };
  expect(0, 0, false, 2, 0.5);
  expect(1, 0, true, 1, 0.375);
  expect(2, 3, false, 1, 0.125);
  EXPECT_TRUE(MemoryUseTally().Result(10, 0).sources.empty());
}

class EngineMemoryTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngineMemoryTest() {
    SetMinLogSeverity(LogSeverity::kFatal);
    MakeFolder(MatrixSpec("gpt2_with_memoria"), folder_);
    config_ = ReadMemoriaConfig(folder_.path());
  }
  std::unique_ptr<Engine> Make(int capacity = 0) { return Make(GetParam().Make(), capacity); }
  // The reference, whose steps are recorded and queued ahead, as a device's are.
  std::unique_ptr<Engine> MakeAhead(int capacity) {
    auto device = std::make_unique<FaultyBackend>();
    device->set_asynchronous(true);
    return Make(std::move(device), capacity);
  }
  std::unique_ptr<Engine> Make(std::unique_ptr<Backend> backend, int capacity) {
    auto model = LoadModel(folder_.path(), *backend, nullptr, {.engram_capacity = capacity});
    CHECK_OK(model.status());
    auto engine =
        Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                       {.max_sessions = 8, .max_rows = 8, .max_tokens_per_step = 32}, clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }
  static Outcome Ask(Engine& engine, Request request) {
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    return Collect(**stream);
  }
  std::vector<int32_t> Text(int segments, uint64_t seed) const {
    return RandomTokens(segments * config_.segment + 2, kVocab, seed);
  }

  TestFolder folder_;
  MemoriaConfig config_;
  RealClock clock_;
};

TEST_P(EngineMemoryTest, ForgettingConcernsOneSessionAlone) {
  const auto run = [&](bool forgets) {
    const std::unique_ptr<Engine> engine = Make();
    for (const char* name : {"a", "b"}) Ask(*engine, OwnedRequest(Text(9, 1), 4, name));
    CHECK_OK(engine->ForkSession({"", "a"}, {"", "fork"}, absl::ZeroDuration()).status());
    if (forgets) {
      const auto forgotten = engine->ForgetSegments({"", "a"}, 0, 9);
      CHECK_OK(forgotten.status());
      EXPECT_EQ(forgotten->working, config_.rules.working);
      EXPECT_GT(forgotten->short_term, 0);
      EXPECT_GT(forgotten->long_term, 0);
    }
    std::map<std::string, std::vector<float>> answers;  // how likely their tokens were
    for (const char* name : {"a", "b", "fork"}) {
      Request request = OwnedRequest(Text(3, 2), 40, name);
      request.memory_use = true;
      request.logprobs = 0;
      const Outcome outcome = Ask(*engine, request);
      CHECK_OK(outcome.last.status);
      answers[name] = outcome.logprobs;
      bool has_forgotten = false;
      for (const MemoryUse::Source& source : outcome.usage().memory_use->sources) {
        has_forgotten = has_forgotten || source.segment < 9;
      }
      EXPECT_EQ(has_forgotten, !(forgets && name == std::string("a"))) << name;
    }
    return answers;
  };
  const auto before = run(false), after = run(true);
  EXPECT_NE(after.at("a"), before.at("a"));
  EXPECT_EQ(after.at("b"), before.at("b"));
  EXPECT_EQ(after.at("fork"), before.at("fork"));
}

TEST_P(EngineMemoryTest, WhatCannotBeForgottenIsRefusedAndNoSessionIsLost) {
  const std::unique_ptr<Engine> engine = Make();
  Ask(*engine, OwnedRequest(Text(4, 1), 3, "s", "alice"));
  const SessionKey key = {"alice", "s"};
  const int64_t position = engine->GetSession(key)->position;
  struct {
    SessionKey key;
    int64_t first, end;
    absl::StatusCode code;
    const char* text;
  } const kBad[] = {
      {key, -1, 2, absl::StatusCode::kInvalidArgument, "expected a segment from 0 on"},
      {key, 2, 2, absl::StatusCode::kInvalidArgument, "expected one above first, 2"},
      {key, 0, 5, absl::StatusCode::kFailedPrecondition, "segment 4 is open"},
      {key, 90, 91, absl::StatusCode::kFailedPrecondition, "segment 4 is open"},
      {{"bob", "s"}, 0, 1, absl::StatusCode::kNotFound, "there is no session \"s\""},
      {{"alice", "t"}, 0, 1, absl::StatusCode::kNotFound, "there is no session \"t\""},
      {{"alice", ""}, 0, 1, absl::StatusCode::kInvalidArgument, "name"},
  };
  for (const auto& bad : kBad) {
    const absl::Status status = engine->ForgetSegments(bad.key, bad.first, bad.end).status();
    EXPECT_EQ(status.code(), bad.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.text));
  }
  EXPECT_EQ(FieldOf(engine->ForgetSegments(key, -1, 2).status()), "first");
  EXPECT_EQ(engine->GetSession(key)->position, position);
  EXPECT_TRUE(engine->ForgetSegments(key, 0, 1).ok());
  EXPECT_EQ(engine->ForgetSegments(key, 0, 1)->total(), 0) << "it is gone";
  EXPECT_EQ(Ask(*engine, OwnedRequest({1, 2}, 3, "s", "alice")).last.status, absl::OkStatus());

  // While a request for it runs: its reader is slow.
  auto running = engine->Submit(OwnedRequest({5}, 5000, "s", "alice")).value();
  const absl::Status busy = engine->ForgetSegments(key, 1, 2).status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(busy), kReasonSessionBusy);
  running.reset();

  const TestFolder other;
  MakeFolder(MatrixSpec("retnet"), other);
  std::unique_ptr<Backend> backend = GetParam().Make();
  auto model = LoadModel(other.path(), *backend, nullptr);
  CHECK_OK(model.status());
  const auto plain = Engine::Create(std::move(backend), *std::move(model), nullptr, {},
                                    {.max_sessions = 2, .max_rows = 2}, clock_);
  CHECK_OK(plain.status());
  Ask(**plain, OwnedRequest({1, 2}, 3, "s"));
  const absl::Status one_piece = (*plain)->ForgetSegments({"", "s"}, 0, 1).status();
  EXPECT_EQ(one_piece.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(one_piece.message()), HasSubstr("retnet is of one piece"));
  Request use = OwnedRequest({1}, 1);
  use.memory_use = true;
  const absl::Status refused = (*plain)->Submit(use).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(FieldOf(refused), "response.memory_use");
  EXPECT_FALSE((*plain)->stats().engrams.exist);
}

// The usage follows from what the state says at the end of each segment: weights of a token and
// head sum to 1.
TEST_P(EngineMemoryTest, UsageHasWhatTheTokensOfTheRequestAttendedTo) {
  const int segment = config_.segment, working = config_.rules.working;
  const std::vector<int32_t> first = RandomTokens(7 * segment + 2, kVocab, 1);
  const std::vector<int32_t> second = RandomTokens(2 * segment, kVocab, 2);
  constexpr int kAnswer = 13;
  for (const bool ahead : {false, true}) {
    const std::unique_ptr<Engine> engine = ahead ? MakeAhead(0) : Make();
    const Outcome before = Ask(*engine, OwnedRequest(first, 1, "s"));
    EXPECT_FALSE(before.usage().memory_use.has_value()) << "nobody asked";
    Request request = OwnedRequest(second, kAnswer, "s");
    request.memory_use = true;
    const Outcome outcome = Ask(*engine, request);
    ASSERT_EQ(outcome.last.status, absl::OkStatus());
    ASSERT_TRUE(outcome.usage().memory_use.has_value());

    std::vector<int32_t> fed = first;
    fed.insert(fed.end(), before.tokens.begin(), before.tokens.end());
    fed.insert(fed.end(), second.begin(), second.end());
    fed.insert(fed.end(), outcome.tokens.begin(), outcome.tokens.end() - 1);
    const auto driver = Drive(folder_.path(), MakeReference(), {.slots = 1, .max_tokens = 200});
    std::map<std::pair<int64_t, bool>, double> weights;
    double total = 0;
    const auto add = [&](int tokens, double sign) {
      const MemoriaState state = ReadMemoriaState(*driver, 0);
      for (size_t n = 0; n < state.recalled.size(); ++n) {
        const MemoriaState::Engram& engram = state.engrams[state.recalled[n]];
        const double weight = sign * state.weights[n] * tokens;
        weights[{engram.birth / static_cast<uint32_t>(working),
                 engram.type == EngramType::kLongTerm}] += weight;
        total += weight;
      }
    };
    const auto begin = static_cast<int>(first.size());
    for (int at = 0; at < static_cast<int>(fed.size());) {
      int end = std::min((at / segment + 1) * segment, static_cast<int>(fed.size()));
      if (at < begin) end = std::min(end, begin);
      FeedSlot(*driver, 0, std::span(fed).subspan(at, end - at));
      at = end;
      if (at == begin) add(begin % segment, -1);
      if (at > begin) add((at - 1) % segment + 1, 1);
    }
    double sum = 0;
    for (const MemoryUse::Source& source : outcome.usage().memory_use->sources) {
      const double want = weights.at({source.segment, source.long_term}) / total;
      EXPECT_NEAR(source.weight, want, 1e-4) << "segment " << source.segment;
      sum += source.weight;
      EXPECT_GE(source.engrams, 1);
      EXPECT_LE(source.engrams, working);
      weights.erase({source.segment, source.long_term});
    }
    EXPECT_NEAR(sum, 1, 1e-9);
    for (const auto& [source, weight] : weights) EXPECT_NEAR(weight / total, 0, 1e-4);
    EXPECT_GT(outcome.usage().memory_use->sources.size(), 2u);
    if (ahead) {
      EXPECT_GT(engine->stats().ahead_steps.value(), 0);
    }
  }
}

TEST_P(EngineMemoryTest, CrossingsAreReportedAndEvictionsStayKnown) {
  const int segment = config_.segment;
  for (const bool ahead : {false, true}) {
    const std::unique_ptr<Engine> engine = ahead ? MakeAhead(kFewest) : Make(kFewest);
    const EngramStats& stats = engine->stats().engrams;
    EXPECT_TRUE(stats.exist);
    const Outcome early = Ask(*engine, OwnedRequest(Text(2, 1), 3, "s"));
    EXPECT_FALSE(early.usage().memory_evicted);
    EXPECT_EQ(stats.long_term.count(), 2);
    EXPECT_EQ(stats.evictions.value(), 0);
    // Several segments of a row in a step, and several rows.
    auto other = engine->Submit(OwnedRequest(Text(20, 2), 60, "other")).value();
    const Outcome late = Ask(*engine, OwnedRequest(Text(20, 3), 60, "s"));
    EXPECT_TRUE(late.usage().memory_evicted);
    const Outcome beside = Collect(*other);
    const auto crossings = [&](const Outcome& outcome) {
      return (outcome.last.session_position - 2) / segment;  // the last token is pending
    };
    EXPECT_EQ(stats.long_term.count(), crossings(late) + crossings(beside));
    EXPECT_EQ(stats.lifespans.count(), stats.long_term.count());
    EXPECT_GT(stats.lifespans.sum(), 0);
    EXPECT_GT(stats.found.count(), 0);
    EXPECT_GT(stats.recalled_age.count(), 0);
    EXPECT_GT(stats.step_seconds.count(), 0);
    EXPECT_LE(stats.step_seconds.count(), engine->stats().step_seconds.count());
    EXPECT_GT(stats.boundary_seconds.count(), 0);
    EXPECT_LE(stats.boundary_seconds.count(), stats.step_seconds.count());
    EXPECT_LT(stats.boundary_seconds.sum(), engine->stats().step_seconds.sum());
    EXPECT_EQ(stats.wraps.value(), 0);

    // As the state has it, of the same tokens.
    const auto driver = Drive(folder_.path(), MakeReference(), {.slots = 1, .max_tokens = 400},
                              {.engram_capacity = kFewest});
    std::vector<int32_t> fed = Text(20, 2);
    fed.insert(fed.end(), beside.tokens.begin(), beside.tokens.end() - 1);
    FeedSlot(*driver, 0, fed, {30});
    const int32_t evictions = ReadMemoriaState(*driver, 0).facts[kEngramsEvicted];
    Request ask = OwnedRequest({3}, 1, "other");
    ask.memory_use = true;
    const Outcome told = Ask(*engine, ask);
    EXPECT_EQ(told.usage().memory_use->evictions, evictions);
    EXPECT_TRUE(told.usage().memory_evicted);
    Request ask_s = OwnedRequest({3}, 1, "s");
    ask_s.memory_use = true;
    EXPECT_EQ(stats.evictions.value(),
              evictions + Ask(*engine, ask_s).usage().memory_use->evictions);
    // Copies know it, too, and sessions of that name that come after do not.
    CHECK_OK(engine->ForkSession({"", "s"}, {"", "fork"}, absl::ZeroDuration()).status());
    EXPECT_TRUE(Ask(*engine, OwnedRequest({3}, 1, "fork")).usage().memory_evicted);
    CHECK_OK(engine->DeleteSession({"", "s"}));
    EXPECT_FALSE(Ask(*engine, OwnedRequest({3}, 1, "s")).usage().memory_evicted);
  }
}

// Every segment of a text is a crossing, and the device reports it beside the logits.
TEST_P(EngineMemoryTest, EvictionsOfATextThatIsClassifiedAreReported) {
  const TestFolder folder;
  MakeFolder(MatrixSpec("memoria_bert"), folder);
  std::unique_ptr<Backend> backend = GetParam().Make();
  auto model = LoadModel(folder.path(), *backend, nullptr, {.engram_capacity = 12});
  CHECK_OK(model.status());
  const auto engine =
      Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                     {.max_sessions = 8, .max_rows = 8, .max_tokens_per_step = 32}, clock_);
  CHECK_OK(engine.status());
  const auto classify = [&](int segments) {
    Request request;
    request.classify = true;
    request.stop.max_tokens = 0;
    request.prompt.at_start = RandomTokens(16 * segments, kVocab, 1);
    request.prompt.same_everywhere = true;
    return Ask(**engine, std::move(request));
  };
  EXPECT_FALSE(classify(2).usage().memory_evicted);
  EXPECT_TRUE(classify(20).usage().memory_evicted);
  const EngramStats& stats = (*engine)->stats().engrams;
  EXPECT_EQ(stats.long_term.count(), 22);
  EXPECT_GT(stats.evictions.value(), 0);
}

INSTANTIATE_TEST_SUITE_P(Fastest, EngineMemoryTest, testing::Values(AvailableBackends().back()),
                         BackendName);

}  // namespace
}  // namespace mneme
