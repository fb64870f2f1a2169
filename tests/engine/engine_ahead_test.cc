// Steps that run ahead of the host, recorded as graphs or not, on a real device: what they answer
// is what steps one by one would.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_device.h"
#include "tests/engine/greedy_request.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using EngineAheadTest = EngineDeviceTest;

// Networks with two graphs for as many rows: rows that meet their inserted positions, or begin a
// segment, in any step, and in none.
TEST_P(EngineAheadTest, StepsOfEitherKindGoThroughGraphsAndAhead) {
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
TEST_P(EngineAheadTest, GraphsAndStepsThatRunAheadChangeNoTokenOfAnyNetwork) {
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
    std::map<int, DeviceAnswer> first;
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

// As many rows as a graph has, so that there are no padding rows that steps without a graph lack.
TEST_P(EngineAheadTest, GraphsAndStepsThatRunAheadChangeNoBitOfRowsTogether) {
  std::map<int, DeviceAnswer> first;
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
TEST_P(EngineAheadTest, StepsThatRunAheadChangeNoBitBesidePadding) {
  std::map<int, DeviceAnswer> first;
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
TEST_P(EngineAheadTest, AChoiceThatStopsLeavesTheOtherAsItWouldBe) {
  if (!GetParam().fused) GTEST_SKIP() << "other kernels do not promise it";
  std::vector<DeviceAnswer> first;
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
          EXPECT_EQ(static_cast<const DeviceAnswer&>(outcome), first[i])
              << "request " << i << ", ahead " << ahead << ", graphs " << graphs;
        }
      }
    }
  }
  EXPECT_GT(stopped, 0);
}

// Some end by a stop token, which the step ahead must not feed: their sessions go on as they would
// have, greedy and drawn.
TEST_P(EngineAheadTest, StepsThatRunAheadChangeNoBit) {
  std::vector<std::vector<DeviceAnswer>> answers;
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
  const auto stopped = [](const DeviceAnswer& answer) { return answer.tokens.size() < 60; };
  EXPECT_GT(std::count_if(answers[0].begin(), answers[0].end(), stopped), 3);
}

// The fastest and the reference alone: engines of every instruction set would take their time.
INSTANTIATE_TEST_SUITE_P(Backends, EngineAheadTest, testing::ValuesIn(EngineCases()), CaseName);

}  // namespace
}  // namespace mneme
