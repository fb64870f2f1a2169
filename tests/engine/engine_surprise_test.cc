// The whole engine with memories that are trained while they read: how surprising they find what
// they are fed, and what becomes of those that diverge.
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/state_pool.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/greedy_request.h"
#include "tests/engine/outcome.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/fake_model.h"
#include "tools/layer_tape.h"

namespace mneme {
namespace {

using testing::HasSubstr;

constexpr int kSurpriseVocab = 259;

class EngineSurpriseTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngineSurpriseTest() { SetMinLogSeverity(LogSeverity::kFatal); }

  std::unique_ptr<Engine> Make(const std::string& folder) {
    return Make(folder, GetParam().Make(), /*graphs=*/true);
  }
  std::unique_ptr<Engine> Make(const std::string& folder, std::unique_ptr<Backend> backend,
                               bool graphs) {
    auto model = LoadModel(folder, *backend, nullptr);
    CHECK_OK(model.status());
    auto engine = Engine::Create(
        std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
        {.max_sessions = 8, .graphs = graphs, .max_rows = 8, .max_tokens_per_step = 16}, clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  static Outcome Ask(Engine& engine, Request request) {
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    return Collect(**stream);
  }

  RealClock clock_;
};

void MakeTiny(const char* shape, const TestFolder& folder) {
  ModelSpec spec = SpecOfShape(shape).value();
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.3;
  MakeFolder(spec, folder);
}

// The loss of every token, mean over heads and layers, as layers tell it one by one.
double MeanLoss(const std::string& folder, Backend& backend, std::span<const int32_t> tokens) {
  const auto model = LoadModel(folder, backend, nullptr).value();
  LayerTape tape({"loss"});
  double sum = 0;
  int64_t count = 0;
  {
    const auto pool = StatePool::Create(backend, *model, 1).value();
    const auto runner =
        ModelRunner::Create(backend, *model, *pool, {.tokens = static_cast<int>(tokens.size())})
            .value();
    runner->set_observer(&tape);
    StepPlan plan;
    plan.AddRow({.slot = *pool->Acquire(), .position = 0, .tokens = tokens, .samples = true});
    CHECK_OK(runner->Forward(plan));
  }
  const InsertedPositions inserted = model->info().inserted;
  for (const auto& [key, track] : tape.tracks()) {
    for (size_t token = 1; token <= tokens.size(); ++token) {
      const int64_t row = inserted.Of(static_cast<int64_t>(token)) - 1;
      for (int64_t i = 0; i < track.width; ++i) sum += track.values[row * track.width + i];
    }
    count += track.width * static_cast<int64_t>(tokens.size());
  }
  return sum / static_cast<double>(count);
}

TEST_P(EngineSurpriseTest, UsageHasTheMeanLossOfWhatWasFedAndCountersHaveAllOfIt) {
  for (const char* shape : {"titans-lmm-tiny", "titans-mac-tiny", "titans-mag-tiny",
                            "ttt-linear-tiny", "titans-pytorch-tiny"}) {
    const TestFolder folder;
    MakeTiny(shape, folder);
    const std::unique_ptr<Engine> engine = Make(folder.path());
    // Prompts longer than a step, and than a segment.
    Request request = GreedyRequest(RandomTokens(37, kSurpriseVocab, 1), 20, "s");
    request.surprise = true;
    const Outcome outcome = Ask(*engine, request);
    ASSERT_EQ(outcome.status(), absl::OkStatus()) << shape;
    ASSERT_TRUE(outcome.last.usage.surprise.has_value()) << shape;
    std::vector<int32_t> fed = request.prompt.at_start;
    fed.insert(fed.end(), outcome.tokens.begin(), outcome.tokens.end() - 1);
    ASSERT_EQ(outcome.last.usage.fed_tokens, static_cast<int64_t>(fed.size()));
    const std::unique_ptr<Backend> backend = GetParam().Make();
    const double want = MeanLoss(folder.path(), *backend, fed);
    EXPECT_GT(want, 0) << shape;
    EXPECT_NEAR(*outcome.last.usage.surprise, want, 1e-3 * want) << shape;

    const TrainingStats& training = engine->stats().training;
    const ModelInfo& info = engine->model_info();
    double sum = 0;
    for (const TrainingStats::Group& group : training.at) {
      const int64_t count = group.layers == 0 ? 0 : static_cast<int64_t>(fed.size());
      EXPECT_EQ(group.surprise.count(), count) << shape;
      EXPECT_EQ(group.steps.value(),
                group.layers * (info.inserted.Of(count) / info.trained.front().step))
          << shape;
      sum += group.surprise.sum() * group.layers;
    }
    sum /= static_cast<double>(info.trained.size() * fed.size());
    EXPECT_NEAR(sum, *outcome.last.usage.surprise, 1e-6 * want) << shape;
    EXPECT_EQ(training.divergences.value(), 0);
    EXPECT_FALSE(Ask(*engine, GreedyRequest({5}, 2, "s")).last.usage.surprise.has_value())
        << "nobody asked";
  }
}

TEST_P(EngineSurpriseTest, ModelsOfOtherMemoriesHaveNone) {
  const TestFolder folder;
  MakeTiny("mom-tiny", folder);
  const std::unique_ptr<Engine> engine = Make(folder.path());
  EXPECT_EQ(engine->stats().training.groups.count(), 0);
  Request request = GreedyRequest({1, 2}, 2);
  request.surprise = true;
  const absl::Status refused = engine->Submit(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(FieldOf(refused), "response.surprise");
}

constexpr int32_t kPoison = 7;

// A model whose memory learns next to nothing of all tokens but one, and so much of that one that a
// few of them are too many: its rate is up to 1e6, and where in between follows from the one
// channel that tells this token from others.
void MakeDiverging(const TestFolder& folder) {
  ModelSpec spec = SpecOfShape("titans-lmm-tiny").value();
  spec.dtype = DType::kF32;
  spec.config["memory_theta_max"] = 1e6;
  MakeFolder(spec, folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  const auto set_column = [&](const std::string& name, auto value) {
    StoredTensor& tensor = tensors.at(name);
    auto* const values = reinterpret_cast<float*>(tensor.bytes.data());
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      values[row * tensor.shape[1]] = static_cast<float>(value(row));
    }
  };
  set_column("model.embed_tokens.weight", [](int64_t row) { return row == kPoison ? 1 : -1; });
  for (const auto& [name, tensor] : tensors) {
    if (absl::EndsWith(name, "memory.b_proj.weight")) {
      set_column(name, [](int64_t) { return 10; });
    }
  }
  WriteTensors(tensors, folder.File("model.safetensors"));
}

// Normal tokens.
std::vector<int32_t> Harmless(int count, uint64_t seed) {
  std::vector<int32_t> tokens = RandomTokens(count, kSurpriseVocab, seed);
  for (int32_t& token : tokens) token = token == kPoison ? kPoison + 1 : token;
  return tokens;
}

Request HarmlessRequest(const std::string& session) {
  Request request = GreedyRequest(Harmless(21, 3), 40, session);
  request.sampling.logit_bias = {{kPoison, -100}};
  return request;
}

void ExpectDiverged(Engine& engine, const Outcome& outcome, const std::string& session,
                    int64_t first, int64_t end) {
  EXPECT_TRUE(absl::IsInternal(outcome.status())) << outcome.status();
  EXPECT_EQ(ReasonOf(outcome.status()), kReasonMemoryDiverged);
  EXPECT_THAT(outcome.status().message(), HasSubstr("the memory of layer 0 diverged at position "));
  const std::optional<int64_t> position = PositionOf(outcome.status());
  ASSERT_TRUE(position.has_value());
  EXPECT_GE(*position, first);
  EXPECT_LT(*position, end);
  EXPECT_THAT(outcome.status().message(), HasSubstr(absl::StrCat("position ", *position, ":")));
  EXPECT_TRUE(absl::IsNotFound(engine.GetSession({"", session}).status()));
}

TEST_P(EngineSurpriseTest, AMemoryThatDivergesFailsItsRequestAlone) {
  const TestFolder folder;
  MakeDiverging(folder);
  // The reference, where steps are recorded and queued ahead, stands for any device.
  enum class Way { kGraphs, kEager, kAhead };
  for (const Way way : {Way::kGraphs, Way::kEager, Way::kAhead}) {
    const auto make = [&] {
      std::unique_ptr<Backend> backend = GetParam().Make();
      if (way == Way::kAhead) {
        auto device = std::make_unique<FaultyBackend>();
        device->set_asynchronous(true);
        backend = std::move(device);
      }
      return Make(folder.path(), std::move(backend), /*graphs=*/way != Way::kEager);
    };
    const Outcome alone = Ask(*make(), HarmlessRequest("alone"));
    ASSERT_EQ(alone.status(), absl::OkStatus());
    const std::unique_ptr<Engine> engine = make();
    std::vector<int32_t> prompt = Harmless(10, 4);
    prompt.insert(prompt.end(), 12, kPoison);
    // One diverges while it reads, in the middle of a prompt; one when it has been given the token
    // often enough; and one is well, before, beside and after them.
    auto well = engine->Submit(HarmlessRequest("well")).value();
    auto reads = engine->Submit(GreedyRequest(prompt, 4, "reads")).value();
    Request draws = GreedyRequest(Harmless(9, 5), 30, "draws");
    draws.sampling.logit_bias = {{kPoison, 100}};
    auto drawn = engine->Submit(draws).value();
    ExpectDiverged(*engine, Collect(*reads), "reads", 10, 22);
    const Outcome drew = Collect(*drawn);
    ExpectDiverged(*engine, drew, "draws", 9, 9 + 12);
    EXPECT_GT(drew.tokens.size(), 1u) << "until then";
    const Outcome healthy = Collect(*well);
    EXPECT_EQ(healthy.status(), absl::OkStatus());
    EXPECT_EQ(healthy.tokens.size(), alone.tokens.size());
    if (way == Way::kAhead) {
      EXPECT_GT(engine->stats().ahead_steps.value(), 0);
    }
    if (GetParam().bit_exact() || way == Way::kAhead) {
      EXPECT_EQ(healthy.tokens, alone.tokens);
      EXPECT_EQ(healthy.logprobs, alone.logprobs);
    }

    const EngineStats& stats = engine->stats();
    EXPECT_EQ(stats.training.divergences.value(), 2);
    EXPECT_EQ(stats.ended_by(SessionEnd::kSpoilt).value(), 2);
    EXPECT_EQ(stats.failed_steps.value(), 0);
    EXPECT_EQ(engine->health(), absl::OkStatus());
    // Its slab is anybody's again, and so is the name.
    EXPECT_EQ(Ask(*engine, HarmlessRequest("reads")).status(), absl::OkStatus());
    Request gone = GreedyRequest({1}, 1, "draws");
    gone.create_session = false;
    EXPECT_TRUE(absl::IsNotFound(Ask(*engine, gone).status()));
    EXPECT_EQ(Ask(*engine, GreedyRequest({1}, 1, "well")).status(), absl::OkStatus());
  }
}

INSTANTIATE_TEST_SUITE_P(Fastest, EngineSurpriseTest, testing::Values(AvailableBackends().back()),
                         BackendName);

}  // namespace
}  // namespace mneme
