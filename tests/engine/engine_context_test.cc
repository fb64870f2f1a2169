// The whole engine with a real network whose state grows with every token: sessions fill up, fork
// and go on, on a real device.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/greedy_request.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

constexpr int kMaxContext = 150;

// Grouped heads, one layer's kind of attention for all: over everything, or over a window.
ModelSpec TinyTransformer(std::optional<int> window) {
  ModelSpec spec = {.config = {{"model_type", "transformer"},
                               {"vocab_size", 259},
                               {"hidden_size", 64},
                               {"num_hidden_layers", 2},
                               {"intermediate_size", 128},
                               {"num_heads", 4},
                               {"num_kv_heads", 2}},
                    .dtype = DType::kF32,
                    .initializer_range = 0.15};
  if (window.has_value()) spec.config["window_size"] = *window;
  return spec;
}

class EngineContextTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Engine> Make(const ModelSpec& spec) {
    SetMinLogSeverity(LogSeverity::kError);
    folder_.emplace();
    MakeFolder(spec, *folder_);
    std::unique_ptr<Backend> backend = GetParam().Make();
    auto model = LoadModel(folder_->path(), *backend, nullptr, {.max_context = kMaxContext});
    CHECK_OK(model.status());
    auto engine =
        Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                       {.max_sessions = 6, .max_rows = 6, .max_tokens_per_step = 64}, clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  struct Outcome {
    std::vector<int32_t> tokens;
    TokenEvent last;
  };
  static Outcome Ask(Engine& engine, Request request) {
    Outcome outcome;
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    while (!outcome.last.is_last) {
      std::optional<TokenEvent> event = (*stream)->Next(absl::Seconds(60));
      CHECK(event.has_value()) << "nothing came for a minute";
      outcome.tokens.insert(outcome.tokens.end(), event->token_ids.begin(), event->token_ids.end());
      outcome.last = *std::move(event);
    }
    return outcome;
  }

  // A session of at most so many tokens.
  static void FillUp(Engine& engine, int most, const char* bound) {
    const std::vector<int32_t> prompt = RandomTokens(70, 259, /*seed=*/1);
    const Outcome whole = Ask(engine, GreedyRequest(prompt, 1000, "whole"));
    EXPECT_EQ(whole.last.status, absl::OkStatus());
    EXPECT_EQ(whole.tokens.size(), static_cast<size_t>(most - 70 + 1));
    EXPECT_EQ(whole.last.finish, FinishReason::kLength);
    EXPECT_TRUE(whole.last.context_full);
    EXPECT_EQ(whole.last.session_position, most + 1);

    // In two turns, with a fork in between that is fed something else.
    Outcome first = Ask(engine, GreedyRequest(prompt, 20, "parts"));
    ASSERT_TRUE(engine.ForkSession({"", "parts"}, {"", "fork"}, absl::ZeroDuration()).ok());
    Ask(engine, GreedyRequest(RandomTokens(30, 259, /*seed=*/2), 10, "fork"));
    const Outcome second = Ask(engine, GreedyRequest({}, 1000, "parts"));
    EXPECT_TRUE(second.last.context_full);
    first.tokens.insert(first.tokens.end(), second.tokens.begin(), second.tokens.end());
    EXPECT_EQ(first.tokens, whole.tokens);

    const Outcome refused = Ask(engine, GreedyRequest({5}, 1, "whole"));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.last.status)) << refused.last.status;
    EXPECT_EQ(ReasonOf(refused.last.status), kReasonContextFull);
    EXPECT_EQ(engine.GetSession({"", "whole"})->position, most + 1);
    EXPECT_THAT(std::string(refused.last.status.message()),
                testing::HasSubstr(absl::StrCat(most, " together (", bound, ")")));
  }

  RealClock clock_;
  std::optional<TestFolder> folder_;
};

TEST_P(EngineContextTest, ASessionFillsUpAndCanBeForkedBefore) {
  struct Model {
    ModelSpec spec;
    int most;
    const char* bound;
  };
  std::vector<Model> models = {{TinyTransformer(std::nullopt), kMaxContext, "--max-context"}};
  for (const char* shape : {"mom-hybrid-tiny", "gdn-hybrid-tiny"}) {
    models.push_back({*SpecOfShape(shape), kMaxContext, "--max-context"});
  }
  models.push_back({*SpecOfShape("gpt2-tiny"), 120, "the positions that the model has"});
  models.back().spec.config["n_positions"] = 120;
  for (Model& model : models) {
    SCOPED_TRACE(model.spec.config.dump());
    model.spec.dtype = DType::kF32;
    model.spec.initializer_range = 0.15;
    const auto engine = Make(model.spec);
    FillUp(*engine, model.most, model.bound);
  }
}

TEST_P(EngineContextTest, AWindowHasNoEnd) {
  const auto engine = Make(TinyTransformer(/*window=*/40));
  const std::vector<int32_t> prompt = RandomTokens(3 * kMaxContext, 259, /*seed=*/3);
  const Outcome outcome = Ask(*engine, GreedyRequest(prompt, 50, "s"));
  EXPECT_EQ(outcome.tokens.size(), 50u);
  EXPECT_FALSE(outcome.last.context_full);
  EXPECT_EQ(outcome.last.session_position, 3 * kMaxContext + 50);
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineContextTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
