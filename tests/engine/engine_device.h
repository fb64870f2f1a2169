// Engines with a real network on a real device, and what they answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/greedy_request.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {

inline constexpr int kDeviceVocab = 259;

// The tokens that a device draws, and the bits that it draws them by.
struct DeviceAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the tokens

  void Add(const TokenEvent& event) {
    tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
    for (const TokenLogprob& entry : event.logprobs) logprobs.push_back(entry.logprob);
  }
  friend bool operator==(const DeviceAnswer&, const DeviceAnswer&) = default;
};

inline void PrintTo(const DeviceAnswer& answer, std::ostream* out) {
  *out << testing::PrintToString(answer.tokens) << ", log-probabilities "
       << testing::PrintToString(answer.logprobs);
}

struct DeviceOutcome : DeviceAnswer {  // of all choices, one behind the other
  absl::Status status;
};

inline DeviceOutcome CollectChoices(TokenStream& stream) {
  DeviceOutcome outcome;
  std::map<int, DeviceAnswer> choices;
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
inline void StopAtSome(Request& request, int first) {
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

inline void PrintTo(const EngineCase& engine_case, std::ostream* out) {
  PrintTo(engine_case.backend, out);
  *out << (engine_case.fused ? " fused" : "");
}

inline std::vector<EngineCase> EngineCases() {
  const BackendUnderTest fastest = AvailableBackends().back();
  return {{fastest, false}, {fastest, true}};
}

inline std::string CaseName(const testing::TestParamInfo<EngineCase>& info) {
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
  static void ExpectSameChoices(const DeviceAnswer& got, const DeviceAnswer& want, int n) {
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

}  // namespace mneme
