// NeuralMemory of the shapes that models have, for which devices have kernels of their own: each
// way to divide them, phases of steps that differ from row to row, and neighbours that are broken.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using NeuralRead = NeuralMemoryArgs::Read;
using Norm = MemoryNetwork::Norm;
using MemoryActivation = MemoryNetwork::Activation;

const MemoryRule kShapeRules[] = {
    {.name = "64 x 256", .dim = 64, .hidden = 256},
    {.name = "64 x 128, a trained gain",
     .dim = 64,
     .hidden = 128,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1},
    {.name = "96 x 384",
     .heads = 1,
     .dim = 96,
     .hidden = 384,
     .activation = MemoryActivation::kSilu,
     .norm = Norm::kRms,
     .trains_gain = true},
    {.name = "48 x 192, no momentum",
     .dim = 48,
     .hidden = 192,
     .activation = MemoryActivation::kGeluTanh,
     .norm = Norm::kLayer,
     .orders = 0},
    {.name = "128 x 256, nothing forgotten", .heads = 1, .dim = 128, .hidden = 256, .keep = false},
    {.name = "20 x 36", .heads = 3, .dim = 20, .hidden = 36, .scaled = true},
    {.name = "one matrix of 64",
     .dim = 64,
     .depth = 1,
     .norm = Norm::kRms,
     .trains_gain = true,
     .first_position = 3,
     .initial_of_all = true},
    {.name = "one matrix of 128", .heads = 1, .dim = 128, .depth = 1},
    {.name = "one matrix of 256, an anchor",
     .heads = 1,
     .dim = 256,
     .depth = 1,
     .norm = Norm::kLayer,
     .anchor_period = 3},
    {.name = "64 x 128, an anchor",
     .dim = 64,
     .hidden = 128,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .anchor_period = 4},
    {.name = "64 x 128, one anchor for ever",
     .dim = 64,
     .hidden = 128,
     .norm = Norm::kRms,
     .trains_gain = true,
     .anchor_period = 0,
     .initial_of_all = true},
    {.name = "32 x 64, an anchor of its own",
     .dim = 32,
     .hidden = 64,
     .anchor_period = 6,
     .initial_of_all = true},
    {.name = "steps of 4 under an anchor",
     .dim = 64,
     .hidden = 128,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .step = 4,
     .anchor_period = 8},
    {.name = "steps of 4",
     .heads = 1,
     .dim = 96,
     .hidden = 384,
     .norm = Norm::kRms,
     .trains_gain = true,
     .step = 4,
     .anchor_period = 4,
     .first_position = 2,
     .initial_of_all = true},
    {.name = "steps of 21, no momentum",
     .dim = 48,
     .hidden = 96,
     .step = 21,
     .anchor_period = 21,
     .orders = 0},
    {.name = "steps of 3, one anchor for ever",
     .dim = 64,
     .depth = 1,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .step = 3,
     .anchor_period = 0},
    {.name = "steps of 5 of one matrix", .dim = 64, .depth = 1, .step = 5, .anchor_period = 5},
    {.name = "mini-batches of one matrix",
     .dim = 64,
     .depth = 1,
     .biases = true,
     .norm = Norm::kLayer,
     .step = 16,
     .anchor_period = 16,
     .read = NeuralRead::kAhead,
     .orders = 0,
     .keep = false,
     .scaled = true},
    {.name = "mini-batches of a network",
     .dim = 64,
     .hidden = 256,
     .biases = true,
     .activation = MemoryActivation::kGeluTanh,
     .norm = Norm::kLayer,
     .step = 6,
     .anchor_period = 6,
     .read = NeuralRead::kAhead,
     .orders = 0,
     .keep = false,
     .scaled = true,
     .initial_of_all = true},
    {.name = "mini-batches of a trained gain",
     .heads = 1,
     .dim = 96,
     .hidden = 384,
     .norm = Norm::kRms,
     .trains_gain = true,
     .step = 20,
     .anchor_period = 20,
     .read = NeuralRead::kAhead,
     .orders = 0,
     .keep = false},
};

// As few heads and as many as leave each another number of blocks of a GPU.
const MemoryRule kAnchorRules[] = {
    {.name = "17 heads, an anchor of 16",
     .heads = 17,
     .dim = 64,
     .hidden = 128,
     .anchor_period = 16},
    {.name = "9 heads, an anchor of 64",
     .heads = 9,
     .dim = 64,
     .hidden = 128,
     .anchor_period = 64,
     .initial_of_all = true},
    {.name = "17 heads, a trained gain",
     .heads = 17,
     .dim = 48,
     .hidden = 96,
     .activation = MemoryActivation::kSilu,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .anchor_period = 40},
    {.name = "5 heads, a static gain, no momentum, nothing forgotten",
     .heads = 5,
     .dim = 64,
     .hidden = 256,
     .activation = MemoryActivation::kGeluTanh,
     .norm = Norm::kRms,
     .anchor_period = 24,
     .orders = 0,
     .keep = false,
     .scaled = true},
    {.name = "2 heads, one anchor for ever",
     .dim = 64,
     .hidden = 128,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .anchor_period = 0,
     .initial_of_all = true},
    {.name = "2 heads, an anchor of 4", .dim = 96, .hidden = 192, .anchor_period = 4},
};

class NeuralMemoryShapesTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> reference_ = MakeReference();
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(NeuralMemoryShapesTest, MatchReference) {
  uint64_t seed = 900;
  for (MemoryRule rule : kShapeRules) {
    for (const int longest : {1, 2, 23}) {
      rule.loss = ++seed % 2 == 0;
      const MemoryProblem problem(seed, rule,
                                  RandomSegments(seed, MemoryProblem::kSlots, 1, longest));
      const auto want = problem.Run(*reference_), got = problem.Run(*backend_);
      if (want.out.empty()) continue;
      SCOPED_TRACE(testing::Message() << rule.name << ", seed " << seed);
      const double out = RelativeError(got.out, want.out);
      const double states = RelativeError(got.states, want.states);
      EXPECT_LE(out, problem.Bound());
      if (rule.loss) {
        EXPECT_LE(RelativeError(got.loss, want.loss), problem.Bound());
      }
      EXPECT_LE(states, problem.Bound());
      std::printf("  %-32s out %.1e states %.1e bound %.1e\n", rule.name, out, states,
                  problem.Bound());
    }
  }
}

// What one prompt reads and leaves behind, in pieces.
struct Fed {
  std::vector<double> out, states;
};
Fed InPieces(Backend& backend, const MemoryProblem& whole, const std::vector<int>& sizes) {
  Workbench bench(backend);
  MemoryProblem::Loaded all = whole.Load(bench);
  Fed fed;
  int done = 0;
  for (const int size : sizes) {
    const MemoryProblem part = whole.Part(0, done, done + size);
    MemoryProblem::Loaded own = part.Load(bench);
    own.args.weights = all.args.weights;
    own.args.momenta = all.args.momenta;
    own.args.anchors = all.args.anchors;
    own.args.gradients = all.args.gradients;
    own.args.pending = all.args.pending;
    bench.kernels().NeuralMemory(own.args);
    const std::vector<double> rows = bench.Read(own.args.out);
    fed.out.insert(fed.out.end(), rows.begin(), rows.end());
    done += size;
  }
  fed.states = whole.States(all);
  return fed;
}

// A prompt at once, in pieces and token by token; from a phase that is not the first of a step.
TEST_P(NeuralMemoryShapesTest, AnySplitGivesTheSame) {
  uint64_t seed = 1000;
  for (const MemoryRule& rule : kShapeRules) {
    SCOPED_TRACE(rule.name);
    const bool fresh = ++seed % 2 == 0;
    const MemoryProblem whole(seed, rule, {{.length = 37, .slot = 1, .fresh = fresh}});
    const Fed want = InPieces(*backend_, whole, {37});
    const Fed got = InPieces(*backend_, whole, {1, 1, 9, 1, 1, 1, 4, 1, 18});
    const bool same_bits = GetParam().bit_exact() || !rule.has_windows();
    EXPECT_THAT(got.out, IsSame(same_bits, want.out, whole.Bound()));
    EXPECT_THAT(got.states, IsSame(same_bits, want.states, whole.Bound()));
  }
}

// More tokens than go through a network at once, of steps that are longer than that, too.
TEST_P(NeuralMemoryShapesTest, LongPromptsOfStepsOfSeveralTokens) {
  const MemoryRule rules[] = {
      {.name = "steps of 16 under an anchor",
       .dim = 64,
       .hidden = 128,
       .norm = Norm::kLayer,
       .trains_gain = true,
       .gain_offset = 1,
       .step = 16,
       .anchor_period = 128},
      {.name = "steps of 3 under an anchor",
       .dim = 64,
       .hidden = 256,
       .norm = Norm::kRms,
       .trains_gain = true,
       .step = 3,
       .anchor_period = 99,
       .loss = true},
      {.name = "steps of 70",
       .dim = 48,
       .hidden = 96,
       .norm = Norm::kLayer,
       .trains_gain = true,
       .step = 70,
       .anchor_period = 140,
       .loss = true},
      {.name = "steps of 24 of one matrix, one anchor for ever",
       .dim = 64,
       .depth = 1,
       .norm = Norm::kLayer,
       .step = 24,
       .anchor_period = 0},
  };
  uint64_t seed = 1300;
  for (const MemoryRule& rule : rules) {
    SCOPED_TRACE(rule.name);
    const bool fresh = ++seed % 2 == 0;
    const MemoryProblem whole(seed, rule, {{.length = 211, .slot = 1, .fresh = fresh}});
    const auto want = whole.Run(*reference_), got = whole.Run(*backend_);
    const double out = RelativeError(got.out, want.out);
    const double states = RelativeError(got.states, want.states);
    EXPECT_LE(out, whole.Bound());
    EXPECT_LE(states, whole.Bound());
    if (rule.loss) {
      EXPECT_LE(RelativeError(got.loss, want.loss), whole.Bound());
    }
    std::printf("  %-32s out %.1e states %.1e bound %.1e\n", rule.name, out, states, whole.Bound());
    const Fed at_once = InPieces(*backend_, whole, {211});
    const Fed in_pieces = InPieces(*backend_, whole, {1, 30, 99, 1, 80});
    EXPECT_THAT(in_pieces.out, HasSameBits(at_once.out));
    EXPECT_THAT(in_pieces.states, HasSameBits(at_once.states));
  }
}

// Tokens under an anchor, from every phase of its period; with what is told of the segments'
// lengths, and without; and where products may round.
TEST_P(NeuralMemoryShapesTest, TokensUnderAnAnchor) {
  uint64_t seed = 1400;
  for (const MemoryRule& rule : kAnchorRules) {
    SCOPED_TRACE(rule.name);
    for (const bool told : {false, true}) {
      const MemoryProblem problem(
          ++seed, rule,
          told ? std::vector<SegmentSpec>{{.length = 83, .slot = 2}, {.length = 83, .slot = 0}}
               : std::vector<SegmentSpec>{{.length = 101, .slot = 1, .fresh = true},
                                          {.length = 1, .slot = 2},
                                          {.length = 33, .slot = 0},
                                          {.length = 2, .slot = 3}});
      const auto want = problem.Run(*reference_);
      Workbench bench(*backend_);
      MemoryProblem::Loaded loaded = problem.Load(bench);
      if (told) loaded.args.segments.longest = 83, loaded.args.segments.longer = 2;
      bench.kernels().NeuralMemory(loaded.args);
      const auto got = problem.Results(bench, loaded);
      const double out = RelativeError(got.out, want.out);
      const double states = RelativeError(got.states, want.states);
      const double loss = RelativeError(got.loss, want.loss);
      EXPECT_LE(out, problem.Bound());
      EXPECT_LE(states, problem.Bound());
      EXPECT_LE(loss, problem.Bound());
      std::printf("  %-56s out %.1e states %.1e loss %.1e bound %.1e\n", rule.name, out, states,
                  loss, problem.Bound());
    }
  }
}

// What is forgotten takes its errors along. Values that follow from keys are learned, where others
// would leave weights that are all forgotten.
TEST_P(NeuralMemoryShapesTest, LongPromptsUnderAnAnchorStayCloseToFloat64) {
  for (const int period : {16, 64}) {
    const MemoryRule rule = {
        .name = "an anchor", .heads = 1, .dim = 64, .hidden = 128, .anchor_period = period};
    MemoryProblem problem(1500, rule, {{.length = 4000, .slot = 1, .fresh = true}});
    constexpr double kMost = 0.995;
    for (double& keep : problem.keep) keep = static_cast<float>(kMost - 0.02 * (1 - keep));
    for (size_t i = 0; i < problem.v.size(); ++i) problem.v[i] = 8 * problem.k[i];
    const auto want = problem.Run(*reference_), got = problem.Run(*backend_);
    problem.segments[0].length = static_cast<int>(1 / (1 - kMost));
    const double out = RelativeError(got.out, want.out);
    const double states = RelativeError(got.states, want.states);
    EXPECT_LE(out, problem.Bound()) << period;
    EXPECT_LE(states, problem.Bound()) << period;
    std::printf("  %-32s out %.1e states %.1e bound %.1e\n", rule.name, out, states,
                problem.Bound());
  }
}

// Rows of every phase, of no tokens and of padding, beside a session whose state is not a number.
TEST_P(NeuralMemoryShapesTest, BrokenNeighboursStayAlone) {
  uint64_t seed = 1100;
  for (const MemoryRule& rule : kShapeRules) {
    SCOPED_TRACE(rule.name);
    const std::vector<SegmentSpec> segments = {{.length = 1, .slot = 2},
                                               {.length = 0, .slot = 1},
                                               {.length = 3, .slot = 0, .fresh = true},
                                               {.length = 1, .slot = -1},
                                               {.length = 6, .slot = 3}};
    const MemoryProblem whole(++seed, rule, segments);
    MemoryProblem broken = whole;
    for (auto& field : broken.fields) {
      std::fill(field.before[3].begin(), field.before[3].end(),
                std::numeric_limits<double>::quiet_NaN());
    }
    const auto want = whole.Run(*backend_), got = broken.Run(*backend_);
    const size_t width = static_cast<size_t>(rule.heads) * rule.dim;
    EXPECT_THAT(std::vector<double>(got.out.begin(), got.out.begin() + 4 * width),
                HasSameBits({want.out.begin(), want.out.begin() + 4 * width}));
    const size_t states = want.states.size() / 3 * 2;
    EXPECT_THAT(std::vector<double>(got.states.begin(), got.states.begin() + states),
                HasSameBits({want.states.begin(), want.states.begin() + states}));
    EXPECT_FALSE(std::isfinite(got.out.back()));
  }
}

// Which slots the sessions have, and in which order they come, changes no bit.
TEST_P(NeuralMemoryShapesTest, SlotsMayBePermuted) {
  uint64_t seed = 1200;
  for (const MemoryRule& rule : kShapeRules) {
    SCOPED_TRACE(rule.name);
    const MemoryProblem problem = MemoryProblem(++seed, rule,
                                                {{.length = 2, .slot = 0},
                                                 {.length = 1, .slot = 1, .fresh = true},
                                                 {.length = 5, .slot = 3}});
    MemoryProblem moved = problem;
    const int to[] = {3, 0, 2, 1};
    for (SegmentSpec& segment : moved.segments) segment.slot = to[segment.slot];
    for (size_t f = 0; f < moved.fields.size(); ++f) {
      for (int slot = 0; slot < MemoryProblem::kSlots; ++slot) {
        moved.fields[f].before[static_cast<size_t>(to[slot])] =
            problem.fields[f].before[static_cast<size_t>(slot)];
      }
    }
    const auto want = problem.Run(*backend_), got = moved.Run(*backend_);
    EXPECT_THAT(got.out, HasSameBits(want.out));
    EXPECT_THAT(got.states, HasSameBits(want.states));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NeuralMemoryShapesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
