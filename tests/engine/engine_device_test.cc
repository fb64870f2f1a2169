// The whole engine with a real network on a real device: what it answers does not depend on what
// else runs, on graphs, or on how a conversation was cut, up to the device's rounding.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/routing_counter.h"
#include "gtest/gtest.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

constexpr int kVocab = 259;

struct Outcome {
  std::vector<int32_t> tokens;
  absl::Status status;
};

Outcome Collect(TokenStream& stream) {
  Outcome outcome;
  for (;;) {
    std::optional<TokenEvent> event = stream.Next(absl::Seconds(60));
    if (!event.has_value()) {
      outcome.status = absl::DeadlineExceededError("nothing came for a minute");
      return outcome;
    }
    outcome.tokens.insert(outcome.tokens.end(), event->token_ids.begin(), event->token_ids.end());
    if (event->is_last) {
      outcome.status = event->status;
      return outcome;
    }
  }
}

Request MakeRequest(std::vector<int32_t> prompt, int tokens, const std::string& session = "") {
  Request request;
  request.session.name = session;
  request.prompt.at_start = std::move(prompt);
  request.prompt.same_everywhere = true;
  request.sampling.temperature = 0;
  request.stop.max_tokens = tokens;
  request.stop.ignore_eos = true;
  return request;
}

class EngineDeviceTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngineDeviceTest() {
    SetMinLogSeverity(LogSeverity::kError);
    ModelSpec spec = TinySpec();
    spec.config.delta.key_dim = spec.config.delta.value_dim = 64;
    MakeFolder(spec, folder_);
  }

  std::unique_ptr<Engine> Make(std::unique_ptr<Backend> backend, bool graphs = true,
                               bool async_scheduling = true) {
    auto model = LoadModel(folder_.path(), *backend, nullptr);
    CHECK_OK(model.status());
    auto engine = Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                                 {.max_sessions = 48,
                                  .graphs = graphs,
                                  .async_scheduling = async_scheduling,
                                  .max_rows = 24,
                                  .max_tokens_per_step = 64},
                                 clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  // Requests of unequal lengths, all at once.
  static std::vector<Outcome> Answers(Engine& engine, int count) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < count; ++i) {
      auto stream = engine.Submit(MakeRequest(RandomTokens(1 + 7 * i % 50, kVocab, i), 5 + i % 20));
      CHECK_OK(stream.status());
      streams.push_back(*std::move(stream));
    }
    std::vector<Outcome> outcomes;
    for (const auto& stream : streams) outcomes.push_back(Collect(*stream));
    return outcomes;
  }

  static void ExpectSame(const std::vector<Outcome>& got, const std::vector<Outcome>& want) {
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
  ExpectSame(Answers(*Make(GetParam().Make()), 40), Answers(*Make(MakeReference()), 40));
}

TEST_P(EngineDeviceTest, GraphsChangeNoToken) {
  ExpectSame(Answers(*Make(GetParam().Make(), /*graphs=*/true), 40),
             Answers(*Make(GetParam().Make(), /*graphs=*/false), 40));
}

// Some end by a stop token, which the step ahead must not feed: their sessions go on as they would
// have, greedy and drawn.
TEST_P(EngineDeviceTest, StepsThatRunAheadChangeNoToken) {
  std::vector<std::vector<std::vector<int32_t>>> answers;
  for (const bool ahead : {true, false}) {
    for (const bool graphs : {true, false}) {
      const std::unique_ptr<Engine> engine = Make(GetParam().Make(), graphs, ahead);
      answers.emplace_back();
      // One after the other, so that batches are the same: kernels of more rows round differently.
      for (int turn = 0; turn < 3; ++turn) {
        for (int i = 0; i < 6; ++i) {
          Request request =
              MakeRequest(RandomTokens(5 + i, kVocab, 10 * turn + i), 60, absl::StrCat("s", i));
          if (i % 2 == 1) request.sampling = {.temperature = 1, .top_p = 0.9f, .seed = 5 + i};
          for (int token = i; request.stop.stop_token_ids.size() < 4; token += 64) {
            request.stop.stop_token_ids.push_back(token);
          }
          auto stream = engine->Submit(std::move(request));
          CHECK_OK(stream.status());
          answers.back().push_back(Collect(**stream).tokens);
        }
      }
      const bool runs_ahead = ahead && GetParam().device == "cuda";
      EXPECT_EQ(engine->stats().ahead_steps.value() > 0, runs_ahead);
      EXPECT_EQ(answers.back(), answers[0]) << "ahead " << ahead << ", graphs " << graphs;
    }
  }
  const auto stopped = [](const auto& tokens) { return tokens.size() < 60; };
  EXPECT_GT(std::count_if(answers[0].begin(), answers[0].end(), stopped), 3);
}

// Alone, in pieces, from a fork, and after a cancellation: the same conversation.
TEST_P(EngineDeviceTest, AConversationIsTheSameHoweverItCameAbout) {
  const std::unique_ptr<Engine> engine = Make(GetParam().Make());
  const std::vector<int32_t> prompt = RandomTokens(90, kVocab, /*seed=*/3);
  const auto ask = [&](std::vector<int32_t> text, int tokens, const std::string& session) {
    auto stream = engine->Submit(MakeRequest(std::move(text), tokens, session));
    CHECK_OK(stream.status());
    return Collect(**stream);
  };
  const std::vector<int32_t> want = ask(prompt, 20, "whole").tokens;
  ASSERT_EQ(want.size(), 20);

  ASSERT_EQ(ask({prompt.begin(), prompt.begin() + 31}, 0, "pieces").status, absl::OkStatus());
  ASSERT_EQ(engine->ForkSession({"", "pieces"}, {"", "fork"}, absl::Minutes(1)).status(),
            absl::OkStatus());
  const std::vector<int32_t> rest(prompt.begin() + 31, prompt.end());
  EXPECT_EQ(ask(rest, 20, "pieces").tokens, want);
  EXPECT_EQ(ask(rest, 20, "fork").tokens, want);

  // Cancelled somewhere, a session holds what was fed; the rest of the answer is as it would be.
  auto cancelled = engine->Submit(MakeRequest(prompt, 100000, "cancelled")).value();
  std::vector<int32_t> shown;
  while (shown.size() < 5) {
    const std::optional<TokenEvent> event = cancelled->Next(absl::Seconds(60));
    ASSERT_TRUE(event.has_value());
    shown.insert(shown.end(), event->token_ids.begin(), event->token_ids.end());
  }
  cancelled->Cancel();
  const Outcome left = Collect(*cancelled);
  shown.insert(shown.end(), left.tokens.begin(), left.tokens.end());
  const int64_t position = engine->GetSession({"", "cancelled"})->position;
  EXPECT_EQ(position, static_cast<int64_t>(prompt.size() + shown.size()));
  const std::vector<int32_t> more = ask({}, 10, "cancelled").tokens;
  std::vector<int32_t> all = shown;
  all.insert(all.end(), more.begin(), more.end());
  EXPECT_EQ(ask(prompt, static_cast<int>(all.size()), "").tokens, all);
}

// With matrices of every dtype: alone in its steps, a conversation is the same with graphs and
// without, and a fork's is its parent's.
TEST_P(EngineDeviceTest, ForksAndGraphsKeepCoarseStatesAsTheyAre) {
  const std::vector<int32_t> prompt = RandomTokens(90, kVocab, /*seed=*/4);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    SCOPED_TRACE(Name(dtype));
    std::vector<std::vector<int32_t>> answers;
    for (const bool graphs : {true, false}) {
      BackendOptions options;
      options.state_dtype = dtype;
      auto backend = MakeBackend(GetParam().device, options);
      if (!backend.ok()) break;  // has no such states
      const std::unique_ptr<Engine> engine = Make(*std::move(backend), graphs);
      const auto ask = [&](std::vector<int32_t> text, const std::string& session) {
        auto stream = engine->Submit(MakeRequest(std::move(text), 40, session));
        CHECK_OK(stream.status());
        answers.push_back(Collect(**stream).tokens);
        ASSERT_EQ(answers.back().size(), 40);
      };
      ask({prompt.begin(), prompt.begin() + 31}, "parent");
      ASSERT_EQ(engine->ForkSession({"", "parent"}, {"", "fork"}, absl::Minutes(1)).status(),
                absl::OkStatus());
      ask({prompt.begin() + 31, prompt.end()}, "parent");
      ask({prompt.begin() + 31, prompt.end()}, "fork");
      EXPECT_EQ(answers.back(), answers[answers.size() - 2]) << "of the fork";
    }
    for (size_t i = 3; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i], answers[i - 3]) << "without graphs, answer " << i - 3;
    }
  }
}

TEST_P(EngineDeviceTest, ChoicesOfMemoriesAreCounted) {
  const std::unique_ptr<Engine> engine = Make(GetParam().Make());
  constexpr int kTokens = 30;
  for (int i = 0; i < 2 * RoutingCounter::kWatchedOneIn; ++i) {
    auto stream = engine->Submit(MakeRequest(RandomTokens(kTokens, kVocab, i), 1));
    CHECK_OK(stream.status());
    ASSERT_EQ(Collect(**stream).status, absl::OkStatus());
  }
  const RoutingCounts& counts = engine->stats().routing;
  ASSERT_GT(counts.groups(), 0);
  for (int group = 0; group < counts.groups(); ++group) {
    int64_t tokens = 0;
    for (int memory = 0; memory < counts.memories(); ++memory) {
      tokens += counts.tokens(group, memory);
    }
    EXPECT_GE(tokens, 2 * kTokens) << "group " << group;
    EXPECT_EQ(tokens % kTokens, 0) << "group " << group;
  }
}

// The fastest and the reference alone: engines of every instruction set would take their time.
INSTANTIATE_TEST_SUITE_P(Backends, EngineDeviceTest, testing::Values(AvailableBackends().back()),
                         BackendName);

}  // namespace
}  // namespace mneme
