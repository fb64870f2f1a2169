// Memories that hold steps back (kernels/held_steps.h), against float64 token by token: on backends
// that do.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/held_steps.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Norm = MemoryNetwork::Norm;
using Read = NeuralMemoryArgs::Read;

const MemoryRule kRules[] = {
    {.name = "plain", .loss = false},
    {.name = "layer norm, trained gain",
     .heads = 3,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .first_position = 7,
     .initial_of_all = true},
    {.name = "rms norm, static gain",
     .activation = MemoryNetwork::Activation::kSilu,
     .norm = Norm::kRms},
    {.name = "nothing forgotten", .keep = false, .scaled = true},
    {.name = "340m",
     .dim = 64,
     .hidden = 128,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1},
    {.name = "340m, four times as wide", .dim = 64, .hidden = 256},
    {.name = "760m", .heads = 1, .dim = 96, .hidden = 384},
    // Steps of several tokens that are read ahead. None begins in the middle of nothing: at a
    // step's first token its gradients are zero.
    {.name = "ahead",
     .dim = 64,
     .depth = 1,
     .biases = true,
     .norm = Norm::kLayer,
     .step = 16,
     .anchor_period = 16,
     .read = Read::kAhead,
     .orders = 0,
     .keep = false,
     .scaled = true},
    {.name = "ahead, no norm, no bias",
     .heads = 3,
     .dim = 20,
     .depth = 1,
     .step = 11,
     .anchor_period = 11,
     .read = Read::kAhead,
     .orders = 0,
     .keep = false,
     .loss = false},
    {.name = "ahead, behind a prefix",
     .dim = 96,
     .depth = 1,
     .biases = true,
     .norm = Norm::kRms,
     .step = 16,
     .anchor_period = 16,
     .read = Read::kAhead,
     .orders = 0,
     .keep = false,
     .scaled = true,
     .first_position = 3,
     .initial_of_all = true},
    {.name = "ahead, wide",
     .heads = 1,
     .dim = 128,
     .depth = 1,
     .biases = true,
     .norm = Norm::kLayer,
     .step = 16,
     .anchor_period = 16,
     .read = Read::kAhead,
     .orders = 0,
     .keep = false},
};

// The same tokens of several problems as one, segment by segment.
MemoryProblem Joined(std::vector<MemoryProblem> parts) {
  MemoryProblem all = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    MemoryProblem& part = parts[i];
    all.segments.push_back(part.segments[0]);
    all.starts.push_back(part.starts[0]);
    for (auto [to, from] : {std::pair(&all.q, &part.q),
                            {&all.k, &part.k},
                            {&all.v, &part.v},
                            {&all.rate, &part.rate},
                            {&all.momentum, &part.momentum},
                            {&all.keep, &part.keep}}) {
      to->insert(to->end(), from->begin(), from->end());
    }
  }
  return all;
}

class HeldStepsTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    steps_ = HeldMemoryStepsOf(backend_->kernels());
    if (steps_ == nullptr) GTEST_SKIP() << "holds nothing back";
  }

  // Feeds segments, all of as many tokens, in parts of these sizes, all at once; then settles.
  // `writes`: the part from which on steps of few heads are written.
  MemoryProblem::Trained Run(const MemoryProblem& whole, int capacity,
                             const std::vector<int>& sizes, int writes = 1 << 20) {
    Workbench bench(*backend_);
    MemoryProblem::Loaded loaded = whole.Load(bench);
    const int64_t dim = whole.rule.dim, hidden = whole.rule.network().hidden;
    const int64_t heads = whole.rule.heads;
    // A fresh session's fields hold NaN.
    SlabPool numbers(bench, MemoryProblem::kSlots, 1, heads * HeldNumbers(capacity), DType::kF32);
    SlabPool vectors(bench, MemoryProblem::kSlots, 1, heads * capacity * HeldVectors(dim, hidden),
                     DType::kF32);
    for (const SegmentSpec& s : whole.segments) {
      if (s.fresh) continue;
      numbers.Write(s.slot, 0,
                    std::vector<double>(static_cast<size_t>(heads * HeldNumbers(capacity)), 0.0));
    }
    const HeldSteps held = {
        .capacity = capacity, .numbers = numbers.view(), .vectors = vectors.view()};
    std::vector<MemoryProblem::Trained> rows(whole.segments.size());
    int done = 0, number = 0;
    for (const int size : sizes) {
      std::vector<MemoryProblem> parts;
      for (size_t s = 0; s < whole.segments.size(); ++s) {
        parts.push_back(whole.Part(static_cast<int>(s), done, done + size));
      }
      const MemoryProblem part = Joined(parts);
      MemoryProblem::Loaded own = part.Load(bench);
      own.args.weights = loaded.args.weights;
      own.args.momenta = loaded.args.momenta;
      own.args.gradients = loaded.args.gradients;
      EXPECT_TRUE(steps_->HeldMemory(
          {.streams = {}, .memory = own.args, .held = held, .always_holds = number++ < writes}));
      const auto got = part.Results(bench, own);
      const auto take = [&](const std::vector<double>& from, size_t s, std::vector<double>& to) {
        const size_t width = from.size() / whole.segments.size();
        to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(s * width),
                  from.begin() + static_cast<ptrdiff_t>((s + 1) * width));
      };
      for (size_t s = 0; s < rows.size(); ++s) {
        take(got.out, s, rows[s].out);
        take(got.loss, s, rows[s].loss);
      }
      done += size;
    }
    EXPECT_EQ(done, whole.segments[0].length);
    std::vector<int> slots = {-1};
    for (const SegmentSpec& s : whole.segments) slots.push_back(s.slot);
    for (int again = 0; again < 2; ++again) {  // the second time there is nothing left
      steps_->SettleNetwork({.slots = bench.Ints(slots),
                             .heads = whole.rule.heads,
                             .dim = whole.rule.dim,
                             .hidden = whole.rule.network().hidden,
                             .weights = loaded.args.weights,
                             .momenta = loaded.args.momenta,
                             .gradients = loaded.args.gradients,
                             .held = held});
    }
    MemoryProblem::Trained all;
    for (const auto& own : rows) {
      all.out.insert(all.out.end(), own.out.begin(), own.out.end());
      all.loss.insert(all.loss.end(), own.loss.begin(), own.loss.end());
    }
    all.states = whole.States(loaded);
    return all;
  }

  void ExpectClose(const MemoryProblem& problem, const MemoryProblem::Trained& got,
                   const MemoryProblem::Trained& want) {
    EXPECT_LE(RelativeError(got.out, want.out), problem.Bound());
    EXPECT_LE(RelativeError(got.states, want.states), problem.Bound());
    if (problem.rule.loss) {
      EXPECT_LE(RelativeError(got.loss, want.loss), problem.Bound());
    }
  }

  std::unique_ptr<Backend> reference_ = MakeReference();
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  HeldMemorySteps* steps_ = nullptr;
};

TEST_P(HeldStepsTest, EveryPeriodMatchesFloat64) {
  uint64_t seed = 0;
  for (const MemoryRule& rule : kRules) {
    for (const bool fresh : {true, false}) {
      const MemoryProblem problem(++seed, rule,
                                  {{.length = 35, .slot = 2, .fresh = fresh},
                                   {.length = 35, .slot = 0, .fresh = true},
                                   {.length = 35, .slot = 3, .fresh = fresh}});
      const auto want = problem.Run(*reference_);
      for (const int period : {2, 4, 8, 16}) {
        SCOPED_TRACE(testing::Message() << rule.name << ", a period of " << period);
        const auto got = Run(problem, period - 1, std::vector<int>(35, 1));
        ExpectClose(problem, got, want);
        std::printf("  %-28s period %2d out %.1e states %.1e bound %.1e\n", rule.name, period,
                    RelativeError(got.out, want.out), RelativeError(got.states, want.states),
                    problem.Bound());
      }
    }
  }
}

TEST_P(HeldStepsTest, LongerSegmentsMeetStepsHeldBack) {
  uint64_t seed = 100;
  for (const MemoryRule& rule : kRules) {
    for (const bool fresh : {true, false}) {
      const MemoryProblem problem(
          ++seed, rule,
          {{.length = 34, .slot = 1, .fresh = fresh}, {.length = 34, .slot = 2, .fresh = fresh}});
      const auto want = problem.Run(*reference_);
      for (const std::vector<int>& sizes :
           {std::vector<int>{1, 7, 1, 1, 13, 1, 1, 1, 1, 1, 5, 1}, {9, 1, 1, 1, 1, 1, 20}}) {
        SCOPED_TRACE(testing::Message() << rule.name << ", " << sizes.size() << " parts");
        ExpectClose(problem, Run(problem, 3, sizes), want);
      }
    }
  }
}

// The same rows give the same bits, and one of them by itself the same but for rounding: its heads
// may be divided among more blocks.
TEST_P(HeldStepsTest, RowsAreTheirOwn) {
  uint64_t seed = 200;
  for (const MemoryRule& rule : kRules) {
    const MemoryProblem problem(
        ++seed, rule,
        {{.length = 9, .slot = 1, .fresh = true}, {.length = 9, .slot = 2, .fresh = false}});
    const std::vector<int> sizes(9, 1);
    const auto both = Run(problem, 3, sizes), again = Run(problem, 3, sizes);
    EXPECT_THAT(again.out, HasSameBits(both.out)) << rule.name;
    EXPECT_THAT(again.states, HasSameBits(both.states)) << rule.name;
    const auto alone = Run(problem.Part(1, 0, 9), 3, sizes);
    EXPECT_LE(RelativeError(alone.out, {both.out.begin() + static_cast<ptrdiff_t>(alone.out.size()),
                                        both.out.end()}),
              problem.Bound())
        << rule.name;
  }
}

// Steps of few heads are written, behind those that were held back of the same sessions.
TEST_P(HeldStepsTest, FewHeadsAddWhatTheyFindHeldBack) {
  uint64_t seed = 400;
  for (const MemoryRule& rule : kRules) {
    for (const bool fresh : {true, false}) {
      const MemoryProblem problem(
          ++seed, rule,
          {{.length = 12, .slot = 1, .fresh = fresh}, {.length = 12, .slot = 2, .fresh = fresh}});
      const auto want = problem.Run(*reference_);
      for (const int writes : {0, 3, 5, 11}) {
        SCOPED_TRACE(testing::Message() << rule.name << ", written from " << writes << " on");
        ExpectClose(problem, Run(problem, 7, std::vector<int>(12, 1), writes), want);
      }
    }
  }
}

// So many heads that a part of the device takes several, one after the other. Where a session's
// heads lie among them makes no difference.
TEST_P(HeldStepsTest, HeadsFollowEachOther) {
  const MemoryRule many[] = {
      {.name = "340m",
       .heads = 50,
       .dim = 64,
       .hidden = 128,
       .norm = Norm::kLayer,
       .trains_gain = true,
       .gain_offset = 1,
       .initial_of_all = true},
      {.name = "340m, four times as wide", .heads = 25, .dim = 64, .hidden = 256},
      {.name = "760m", .heads = 14, .dim = 96, .hidden = 384, .norm = Norm::kRms},
  };
  constexpr int kLength = 5;
  uint64_t seed = 300;
  for (const MemoryRule& rule : many) {
    const MemoryProblem problem(++seed, rule,
                                {{.length = kLength, .slot = 3, .fresh = true},
                                 {.length = kLength, .slot = 1, .fresh = false},
                                 {.length = kLength, .slot = 0, .fresh = false}});
    const std::vector<int> sizes(kLength, 1);
    const auto got = Run(problem, 2, sizes);
    {
      SCOPED_TRACE(rule.name);
      ExpectClose(problem, got, problem.Run(*reference_));
    }
    std::vector<MemoryProblem> parts;
    for (const int s : {1, 2, 0}) parts.push_back(problem.Part(s, 0, kLength));
    const auto moved = Run(Joined(parts), 2, sizes);
    for (auto [is, was] : {std::pair(&moved.out, &got.out), {&moved.states, &got.states}}) {
      std::vector<double> turned = *was;
      std::rotate(turned.begin(), turned.begin() + static_cast<ptrdiff_t>(turned.size() / 3),
                  turned.end());
      EXPECT_THAT(*is, HasSameBits(turned)) << rule.name;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HeldStepsTest);
INSTANTIATE_TEST_SUITE_P(Backends, HeldStepsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
