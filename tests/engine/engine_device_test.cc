// The whole engine with a real network on a real device: what it answers does not depend on what
// else runs, or on how a conversation was cut, up to the device's rounding.
#include "tests/engine/engine_device.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/routing_counter.h"
#include "gtest/gtest.h"
#include "tests/engine/greedy_request.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

TEST_P(EngineDeviceTest, ManyRequestsGetTheTokensOfTheReference) {
  const int count = GetParam().fused ? 12 : 40;
  ExpectSame(Answers(*Make(MakeExact()), count), Answers(*Make(MakeReference()), count));
}

TEST_P(EngineDeviceTest, GraphsChangeNoToken) {
  ExpectSame(Answers(*Make(MakeExact(), /*graphs=*/true), 40),
             Answers(*Make(MakeExact(), /*graphs=*/false), 40));
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
  const DeviceAnswer pieces = ask(rest, 20, "pieces"), fork = ask(rest, 20, "fork");
  EXPECT_EQ(fork.tokens, pieces.tokens);
  if (GetParam().fused) {
    EXPECT_EQ(fork, pieces);
  } else {
    EXPECT_EQ(pieces.tokens, want);
  }

  // Cancelled somewhere, a session holds what was fed; the rest of the answer is as it would be.
  auto cancelled = engine->Submit(GreedyRequest(prompt, 100000, "cancelled")).value();
  DeviceAnswer shown;
  while (shown.tokens.size() < 5) {
    const std::optional<TokenEvent> event = cancelled->Next(absl::Seconds(60));
    ASSERT_TRUE(event.has_value());
    shown.Add(*event);
  }
  cancelled->Cancel();
  const auto append = [&](const DeviceAnswer& more) {
    shown.tokens.insert(shown.tokens.end(), more.tokens.begin(), more.tokens.end());
    shown.logprobs.insert(shown.logprobs.end(), more.logprobs.begin(), more.logprobs.end());
  };
  append(CollectChoices(*cancelled));
  const int64_t position = engine->GetSession({"", "cancelled"})->position;
  EXPECT_EQ(position, static_cast<int64_t>(prompt.size() + shown.tokens.size()));
  append(ask({}, 10, "cancelled"));
  const DeviceAnswer straight = ask(prompt, static_cast<int>(shown.tokens.size()), "");
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
    std::vector<DeviceAnswer> answers;
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
      const DeviceAnswer &fork = answers.back(), &parent = answers[answers.size() - 2];
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
