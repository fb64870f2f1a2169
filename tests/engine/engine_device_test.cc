// The whole engine with a real network on a real device: what it answers does not depend on what
// else runs, on graphs, or on how a conversation was cut, up to the device's rounding.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/routing_counter.h"
#include "gtest/gtest.h"
#include "tests/engine/greedy_request.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

constexpr int kDeviceVocab = 259;

// The tokens that a device draws, and the bits that it draws them by.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the tokens

  void Add(const TokenEvent& event) {
    tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
    for (const TokenLogprob& entry : event.logprobs) logprobs.push_back(entry.logprob);
  }
  friend bool operator==(const Answer&, const Answer&) = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << testing::PrintToString(answer.tokens) << ", log-probabilities "
       << testing::PrintToString(answer.logprobs);
}

struct DeviceOutcome : Answer {  // of all choices, one behind the other
  absl::Status status;
};

DeviceOutcome CollectChoices(TokenStream& stream) {
  DeviceOutcome outcome;
  std::map<int, Answer> choices;
  for (;;) {
    std::optional<TokenEvent> event = stream.Next(absl::Seconds(60));
    if (!event.has_value()) {
      outcome.status = absl::DeadlineExceededError("nothing came for a minute");
      return outcome;
    }
    choices[event->choice].Add(*event);
    if (!event->is_last) continue;
    for (const auto& [choice, answer] : choices) {
      outcome.tokens.insert(outcome.tokens.end(), answer.tokens.begin(), answer.tokens.end());
      outcome.logprobs.insert(outcome.logprobs.end(), answer.logprobs.begin(),
                              answer.logprobs.end());
    }
    outcome.status = event->status;
    return outcome;
  }
}

// Four tokens of which each ends a generation: as many as a step ahead looks for.
void StopAtSome(Request& request, int first) {
  for (int token = first; request.stop.stop_token_ids.size() < 4; token += 64) {
    request.stop.stop_token_ids.push_back(token);
  }
}

// A network that a GPU runs operation by operation, in exact arithmetic; and one as it is served,
// of which it fuses the steps: all layers of one row and two in one kernel, of more rows part by
// part, with products and windows in bf16. What is rounded depends on the rows of a step and on how
// a prompt was cut, so that greedy tokens are compared only where these are the same; and then log-
// probabilities are, too (docs/numerics.md, "Same bits").
struct EngineCase {
  BackendUnderTest backend;
  bool fused = false;

  DType compute() const { return fused ? DType::kBF16 : DType::kF32; }
};

void PrintTo(const EngineCase& engine_case, std::ostream* out) {
  PrintTo(engine_case.backend, out);
  *out << (engine_case.fused ? " fused" : "");
}

std::vector<EngineCase> EngineCases() {
  const BackendUnderTest fastest = AvailableBackends().back();
  return {{fastest, false}, {fastest, true}};
}

std::string CaseName(const testing::TestParamInfo<EngineCase>& info) {
  return absl::StrCat(BackendName({info.param.backend, info.index}),
                      info.param.fused ? "_fused" : "");
}

class EngineDeviceTest : public testing::TestWithParam<EngineCase> {
 protected:
  EngineDeviceTest() {
    SetMinLogSeverity(LogSeverity::kError);
    GatedDeltaSpec spec = TinySpec();
    spec.config.delta.key_dim = spec.config.delta.value_dim = 64;
    if (GetParam().fused) {
      spec.dtype = DType::kBF16;
      spec.config.model_dim = spec.config.mlp_dim = 512;
      spec.config.delta.key_dim = spec.config.delta.value_dim = 128;
    }
    MakeFolder(spec, folder_);
  }

  static std::unique_ptr<Backend> MakeExact() { return GetParam().backend.Make(); }
  static std::unique_ptr<Backend> MakeServed() {
    return GetParam().backend.Make(/*threads=*/2, GetParam().compute());
  }

  std::unique_ptr<Engine> Make(std::unique_ptr<Backend> backend, bool graphs = true,
                               bool async_scheduling = true, double max_decode_slowdown = 0) {
    auto model = LoadModel(folder_.path(), *backend, nullptr);
    CHECK_OK(model.status());
    auto engine = Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                                 {.max_sessions = 48,
                                  .graphs = graphs,
                                  .async_scheduling = async_scheduling,
                                  .max_rows = 24,
                                  .max_tokens_per_step = 64,
                                  .max_decode_slowdown = max_decode_slowdown},
                                 clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  static DeviceOutcome Ask(Engine& engine, Request request) {
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    return CollectChoices(**stream);
  }

  // A request of n choices, which are the rows of its steps, drawn. Of fewer events than make a
  // stream wait for its reader.
  static DeviceOutcome AskForChoices(Engine& engine, int n) {
    const int tokens = std::min(40, 200 / n);
    Request request = GreedyRequest(RandomTokens(20 + n, kDeviceVocab, n), tokens);
    request.n = n;
    request.sampling = {.temperature = 1, .top_p = 0.9f, .seed = n};
    DeviceOutcome outcome = Ask(engine, std::move(request));
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.logprobs.size(), static_cast<size_t>(n) * tokens);
    return outcome;
  }
  // From nine rows on cuBLAS multiplies by f32 weights, which says nothing about graphs.
  static void ExpectSameChoices(const Answer& got, const Answer& want, int n) {
    EXPECT_EQ(got.tokens, want.tokens) << n << " rows";
    if (GetParam().fused || n <= 8) {
      EXPECT_EQ(got, want) << n << " rows";
    }
  }

  // Requests of unequal lengths, all at once.
  static std::vector<DeviceOutcome> Answers(Engine& engine, int count) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < count; ++i) {
      auto stream =
          engine.Submit(GreedyRequest(RandomTokens(1 + 7 * i % 50, kDeviceVocab, i), 5 + i % 20));
      CHECK_OK(stream.status());
      streams.push_back(*std::move(stream));
    }
    std::vector<DeviceOutcome> outcomes;
    for (const auto& stream : streams) outcomes.push_back(CollectChoices(*stream));
    return outcomes;
  }

  static void ExpectSame(const std::vector<DeviceOutcome>& got,
                         const std::vector<DeviceOutcome>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].status, absl::OkStatus()) << "request " << i;
      EXPECT_EQ(got[i].tokens, want[i].tokens) << "request " << i;
    }
  }

  TestFolder folder_;
  RealClock clock_;
};

TEST_P(EngineDeviceTest, ManyRequestsGetTheTokensOfTheReference) {
  const int count = GetParam().fused ? 12 : 40;
  ExpectSame(Answers(*Make(MakeExact()), count), Answers(*Make(MakeReference()), count));
}

TEST_P(EngineDeviceTest, GraphsChangeNoToken) {
  ExpectSame(Answers(*Make(MakeExact(), /*graphs=*/true), 40),
             Answers(*Make(MakeExact(), /*graphs=*/false), 40));
}

// Networks with two graphs for as many rows: rows that meet their inserted positions, or begin a
// segment, in any step, and in none.
TEST_P(EngineDeviceTest, StepsOfEitherKindGoThroughGraphsAndAhead) {
  for (const char* shape : {"titans-pytorch-tiny", "gpt2-with-memoria-tiny"}) {
    ModelSpec spec = *SpecOfShape(shape);
    spec.dtype = DType::kF32;
    spec.initializer_range = 0.12;
    MakeFolder(spec, folder_);
    const std::vector<DeviceOutcome> want =
        Answers(*Make(MakeExact(), /*graphs=*/false, /*async_scheduling=*/false), 20);
    for (const bool ahead : {true, false}) {
      for (const bool graphs : {true, false}) {
        SCOPED_TRACE(testing::Message() << shape << ", ahead " << ahead << ", graphs " << graphs);
        ExpectSame(Answers(*Make(MakeExact(), graphs, ahead), 20), want);
      }
    }
  }
}

// All networks, each with as many rows as a graph has, so that kernels are the same. Only a GPU has
// graphs and runs ahead.
TEST_P(EngineDeviceTest, GraphsAndStepsThatRunAheadChangeNoTokenOfAnyNetwork) {
  if (GetParam().backend.device != "cuda") GTEST_SKIP() << "no graphs";
  std::set<std::string> generate, tried;
  for (const Architecture* architecture : ArchitecturesThat(/*classify=*/false)) {
    generate.insert(architecture->model_type);
  }
  for (const std::string& shape : ShapeNames()) {
    ModelSpec spec = *SpecOfShape(shape);
    const std::string type = spec.config["model_type"];
    if (!shape.ends_with("-tiny") || !generate.contains(type)) continue;
    tried.insert(type);
    spec.dtype = GetParam().fused ? DType::kBF16 : DType::kF32;
    spec.initializer_range = 0.12;
    MakeFolder(spec, folder_);
    std::map<int, Answer> first;
    for (const bool ahead : {false, true}) {
      for (const bool graphs : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape << ", ahead " << ahead << ", graphs " << graphs);
        // The rows that cross in a step do not depend on how long earlier steps took.
        const std::unique_ptr<Engine> engine =
            Make(MakeServed(), graphs, ahead, /*max_decode_slowdown=*/1);
        for (const int n : {1, 4, 8}) {
          const DeviceOutcome outcome = AskForChoices(*engine, n);
          EXPECT_EQ(outcome.tokens, first.try_emplace(n, outcome).first->second.tokens)
              << n << " rows";
        }
      }
    }
  }
  EXPECT_EQ(tried, generate);
}

// Rows that wait for their crossing, as next to none is short enough, and prompts that are cut at
// segments' ends because of it.
TEST_P(EngineDeviceTest, LimitsOfCrossingsChangeNoToken) {
  ModelSpec spec = *SpecOfShape("gpt2-with-memoria-tiny");
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.12;
  MakeFolder(spec, folder_);
  const auto answers = [&](double max_decode_slowdown) {
    return Answers(
        *Make(MakeExact(), /*graphs=*/true, /*async_scheduling=*/true, max_decode_slowdown), 40);
  };
  ExpectSame(answers(1.001), answers(1));
}

// As many rows as a graph has, so that there are no padding rows that steps without a graph lack.
TEST_P(EngineDeviceTest, GraphsAndStepsThatRunAheadChangeNoBitOfRowsTogether) {
  std::map<int, Answer> first;
  for (const bool ahead : {true, false}) {
    for (const bool graphs : {true, false}) {
      SCOPED_TRACE(testing::Message() << "ahead " << ahead << ", graphs " << graphs);
      const std::unique_ptr<Engine> engine = Make(MakeServed(), graphs, ahead);
      for (const int n : {1, 2, 4, 8, 16}) {
        const DeviceOutcome outcome = AskForChoices(*engine, n);
        ExpectSameChoices(outcome, first.try_emplace(n, outcome).first->second, n);
      }
    }
  }
}

// And as many as no graph has, with the padding rows of the next one.
TEST_P(EngineDeviceTest, StepsThatRunAheadChangeNoBitBesidePadding) {
  std::map<int, Answer> first;
  for (const bool ahead : {true, false}) {
    SCOPED_TRACE(testing::Message() << "ahead " << ahead);
    const std::unique_ptr<Engine> engine = Make(MakeServed(), /*graphs=*/true, ahead);
    for (const int n : {3, 11, 18}) {
      const DeviceOutcome outcome = AskForChoices(*engine, n);
      ExpectSameChoices(outcome, first.try_emplace(n, outcome).first->second, n);
    }
  }
}

// One of two choices stops first. A step that is ahead then has a padding row in its place, others
// have one row: the kernel of all layers gives both the same bits.
TEST_P(EngineDeviceTest, AChoiceThatStopsLeavesTheOtherAsItWouldBe) {
  if (!GetParam().fused) GTEST_SKIP() << "other kernels do not promise it";
  std::vector<Answer> first;
  int stopped = 0;
  for (const bool ahead : {true, false}) {
    for (const bool graphs : {true, false}) {
      const std::unique_ptr<Engine> engine = Make(MakeServed(), graphs, ahead);
      for (int i = 0; i < 10; ++i) {
        Request request = GreedyRequest(RandomTokens(5 + i, kDeviceVocab, i), 60);
        request.n = 2;
        request.sampling = {.temperature = 1, .seed = 7 + i};
        StopAtSome(request, i);
        const DeviceOutcome outcome = Ask(*engine, std::move(request));
        EXPECT_EQ(outcome.status, absl::OkStatus());
        if (ahead && graphs) {
          first.push_back(outcome);
          stopped += outcome.tokens.size() < 120 ? 1 : 0;
        } else {
          EXPECT_EQ(static_cast<const Answer&>(outcome), first[i])
              << "request " << i << ", ahead " << ahead << ", graphs " << graphs;
        }
      }
    }
  }
  EXPECT_GT(stopped, 0);
}

// Some end by a stop token, which the step ahead must not feed: their sessions go on as they would
// have, greedy and drawn.
TEST_P(EngineDeviceTest, StepsThatRunAheadChangeNoBit) {
  std::vector<std::vector<Answer>> answers;
  for (const bool ahead : {true, false}) {
    for (const bool graphs : {true, false}) {
      const std::unique_ptr<Engine> engine = Make(MakeServed(), graphs, ahead);
      answers.emplace_back();
      // One after the other, so that batches are the same: kernels of more rows round differently.
      for (int turn = 0; turn < 3; ++turn) {
        for (int i = 0; i < 6; ++i) {
          Request request = GreedyRequest(RandomTokens(5 + i, kDeviceVocab, 10 * turn + i), 60,
                                          absl::StrCat("s", i));
          if (i % 2 == 1) request.sampling = {.temperature = 1, .top_p = 0.9f, .seed = 5 + i};
          StopAtSome(request, i);
          answers.back().push_back(Ask(*engine, std::move(request)));
        }
      }
      const bool runs_ahead = ahead && GetParam().backend.device == "cuda";
      EXPECT_EQ(engine->stats().ahead_steps.value() > 0, runs_ahead);
      EXPECT_EQ(answers.back(), answers[0]) << "ahead " << ahead << ", graphs " << graphs;
    }
  }
  const auto stopped = [](const Answer& answer) { return answer.tokens.size() < 60; };
  EXPECT_GT(std::count_if(answers[0].begin(), answers[0].end(), stopped), 3);
}

// Alone, in pieces, from a fork, and after a cancellation: the same conversation.
// Whatever a field may be, a session outlives it.
TEST_P(EngineDeviceTest, FieldsAtTheEndsOfTheirRangesCostNoSession) {
  auto engine = Make(MakeServed());
  ASSERT_EQ(Ask(*engine, GreedyRequest({5, 6, 7}, 2, "s")).status, absl::OkStatus());
  int64_t position = 5;
  constexpr float kSubnormal = std::numeric_limits<float>::denorm_min();
  std::vector<SamplingParams> extremes;
  for (const float repetition : {kSubnormal, 1e-38f, 1e-30f, 10.0f}) {
    for (const float temperature : {0.0f, kSubnormal, 1e-38f, 1.0f, 100.0f}) {
      extremes.push_back({.temperature = temperature,
                          .top_p = temperature == 1 ? kSubnormal : 1,
                          .min_p = temperature == 100 ? kSubnormal : 0,
                          .repetition_penalty = repetition,
                          .presence_penalty = -2,
                          .frequency_penalty = 2,
                          .logit_bias = {{5, 100}, {6, -99}, {7, kSubnormal}},
                          .seed = 1});
    }
  }
  for (const SamplingParams& sampling : extremes) {
    SCOPED_TRACE(testing::Message() << "temperature " << sampling.temperature << ", penalty "
                                    << sampling.repetition_penalty);
    Request request = GreedyRequest({5, 6, 7}, 3, "s");
    request.sampling = sampling;
    request.expected_position = position;
    const DeviceOutcome outcome = Ask(*engine, request);
    ASSERT_EQ(outcome.status, absl::OkStatus());
    ASSERT_EQ(outcome.tokens.size(), 3);
    position += 6;
  }
}

TEST_P(EngineDeviceTest, AConversationIsTheSameHoweverItCameAbout) {
  const std::unique_ptr<Engine> engine = Make(MakeServed());
  const std::vector<int32_t> prompt = RandomTokens(90, kDeviceVocab, /*seed=*/3);
  const auto ask = [&](std::vector<int32_t> text, int tokens, const std::string& session) {
    return Ask(*engine, GreedyRequest(std::move(text), tokens, session));
  };
  const std::vector<int32_t> want = ask(prompt, 20, "whole").tokens;
  ASSERT_EQ(want.size(), 20);

  ASSERT_EQ(ask({prompt.begin(), prompt.begin() + 31}, 0, "pieces").status, absl::OkStatus());
  ASSERT_EQ(engine->ForkSession({"", "pieces"}, {"", "fork"}, absl::Minutes(1)).status(),
            absl::OkStatus());
  const std::vector<int32_t> rest(prompt.begin() + 31, prompt.end());
  const Answer pieces = ask(rest, 20, "pieces"), fork = ask(rest, 20, "fork");
  EXPECT_EQ(fork.tokens, pieces.tokens);
  if (GetParam().fused) {
    EXPECT_EQ(fork, pieces);
  } else {
    EXPECT_EQ(pieces.tokens, want);
  }

  // Cancelled somewhere, a session holds what was fed; the rest of the answer is as it would be.
  auto cancelled = engine->Submit(GreedyRequest(prompt, 100000, "cancelled")).value();
  Answer shown;
  while (shown.tokens.size() < 5) {
    const std::optional<TokenEvent> event = cancelled->Next(absl::Seconds(60));
    ASSERT_TRUE(event.has_value());
    shown.Add(*event);
  }
  cancelled->Cancel();
  const auto append = [&](const Answer& more) {
    shown.tokens.insert(shown.tokens.end(), more.tokens.begin(), more.tokens.end());
    shown.logprobs.insert(shown.logprobs.end(), more.logprobs.begin(), more.logprobs.end());
  };
  append(CollectChoices(*cancelled));
  const int64_t position = engine->GetSession({"", "cancelled"})->position;
  EXPECT_EQ(position, static_cast<int64_t>(prompt.size() + shown.tokens.size()));
  append(ask({}, 10, "cancelled"));
  const Answer straight = ask(prompt, static_cast<int>(shown.tokens.size()), "");
  EXPECT_EQ(straight.tokens, shown.tokens);
  if (GetParam().fused) {
    EXPECT_EQ(straight, shown);
  }
}

// With matrices of every dtype: alone in its steps, a conversation is the same with graphs and
// without, and a fork's is its parent's; but for int8 in another slot, which is rounded at other
// tokens, where rounded logits do not tell it apart from what is wrong.
TEST_P(EngineDeviceTest, ForksAndGraphsKeepCoarseStatesAsTheyAre) {
  const std::vector<int32_t> prompt = RandomTokens(90, kDeviceVocab, /*seed=*/4);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    SCOPED_TRACE(Name(dtype));
    std::vector<Answer> answers;
    for (const bool graphs : {true, false}) {
      BackendOptions options;
      options.compute_dtype = GetParam().compute();
      options.state_dtype = dtype;
      auto backend = MakeBackend(GetParam().backend.device, options);
      if (!backend.ok()) break;  // has no such states
      const std::unique_ptr<Engine> engine = Make(*std::move(backend), graphs);
      const auto ask = [&](std::vector<int32_t> text, const std::string& session) {
        answers.push_back(Ask(*engine, GreedyRequest(std::move(text), 40, session)));
        ASSERT_EQ(answers.back().tokens.size(), 40);
      };
      ask({prompt.begin(), prompt.begin() + 31}, "parent");
      ASSERT_EQ(engine->ForkSession({"", "parent"}, {"", "fork"}, absl::Minutes(1)).status(),
                absl::OkStatus());
      ask({prompt.begin() + 31, prompt.end()}, "parent");
      ask({prompt.begin() + 31, prompt.end()}, "fork");
      const Answer &fork = answers.back(), &parent = answers[answers.size() - 2];
      if (!GetParam().fused) {
        EXPECT_EQ(fork.tokens, parent.tokens) << "of the fork";
      } else if (dtype != DType::kI8) {
        EXPECT_EQ(fork, parent) << "of the fork";
      }
    }
    for (size_t i = 3; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i], answers[i - 3]) << "without graphs, answer " << i - 3;
    }
  }
}

// The network of two layers: the embedding and one kernel for a row; nine a layer for many, with
// the norm and the head behind them.
TEST_P(EngineDeviceTest, RecordedStepsAreOfFewKernels) {
  const std::unique_ptr<Engine> engine = Make(MakeServed());
  const std::unique_ptr<Engine> eager = Make(MakeServed(), /*graphs=*/false);
  EXPECT_EQ(eager->decode_graph_nodes(1), 0);
  if (GetParam().backend.device != "cuda") {
    EXPECT_EQ(engine->decode_graph_nodes(1), 0);
    return;
  }
  EXPECT_GT(engine->decode_graph_nodes(1), 0);
  EXPECT_GT(engine->decode_graph_nodes(16), 0);
  if (!GetParam().fused) return;
  EXPECT_LE(engine->decode_graph_nodes(1), 2);
  EXPECT_LE(engine->decode_graph_nodes(16), 2 * 9 + 6);
}

TEST_P(EngineDeviceTest, ChoicesOfMemoriesAreCounted) {
  const std::unique_ptr<Engine> engine = Make(MakeServed());
  constexpr int kTokens = 30;
  for (int i = 0; i < 2 * RoutingCounter::kWatchedOneIn; ++i) {
    ASSERT_EQ(Ask(*engine, GreedyRequest(RandomTokens(kTokens, kDeviceVocab, i), 1)).status,
              absl::OkStatus());
  }
  const RoutingCounts& counts = engine->stats().routing;
  ASSERT_GT(counts.groups().count(), 0);
  for (int group = 0; group < counts.groups().count(); ++group) {
    int64_t tokens = 0;
    for (int memory = 0; memory < counts.memories(); ++memory) {
      tokens += counts.tokens(group, memory);
    }
    EXPECT_GE(tokens, 2 * kTokens) << "group " << group;
    EXPECT_EQ(tokens % kTokens, 0) << "group " << group;
  }
}

// The fastest and the reference alone: engines of every instruction set would take their time.
INSTANTIATE_TEST_SUITE_P(Backends, EngineDeviceTest, testing::ValuesIn(EngineCases()), CaseName);

}  // namespace
}  // namespace mneme
