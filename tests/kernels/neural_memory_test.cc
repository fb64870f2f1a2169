// NeuralMemory on every backend: against the reference, and against itself.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using NeuralRead = NeuralMemoryArgs::Read;
using Norm = MemoryNetwork::Norm;
using MemoryActivation = MemoryNetwork::Activation;

// Each way that a model trains its memory, and odd shapes.
const MemoryRule kNeuralRules[] = {
    {.name = "every token"},
    {.name = "one matrix", .depth = 1, .anchor_period = 4},
    {.name = "deep",
     .heads = 1,
     .dim = 33,
     .depth = 4,
     .hidden = 65,
     .activation = MemoryActivation::kSilu,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1},
    {.name = "chunks under an anchor",
     .norm = Norm::kRms,
     .trains_gain = true,
     .step = 4,
     .anchor_period = 16,
     .first_position = 3,
     .initial_of_all = true},
    {.name = "chunks, never another anchor",
     .heads = 3,
     .dim = 7,
     .hidden = 5,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .step = 3,
     .anchor_period = 0},
    {.name = "the anchor is read", .anchor_period = 5, .read = NeuralRead::kAnchor},
    {.name = "the frozen memory is read",
     .anchor_period = 2,
     .frozen_period = 6,
     .read = NeuralRead::kFrozen,
     .orders = 0},
    {.name = "frozen within a step",
     .step = 4,
     .anchor_period = 8,
     .frozen_period = 6,
     .read = NeuralRead::kFrozen},
    {.name = "mini-batches of one matrix",
     .depth = 1,
     .biases = true,
     .norm = Norm::kLayer,
     .step = 8,
     .anchor_period = 8,
     .read = NeuralRead::kAhead,
     .orders = 0,
     .keep = false,
     .scaled = true},
    {.name = "mini-batches of a network",
     .dim = 32,
     .hidden = 300,
     .biases = true,
     .activation = MemoryActivation::kGeluTanh,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .step = 8,
     .anchor_period = 8,
     .read = NeuralRead::kAhead,
     .keys = 2,
     .orders = 0,
     .keep = false,
     .scaled = true},
    {.name = "several pairs a token", .keys = 3, .orders = 2, .mix = 2},
    {.name = "more pairs than rows of scratch",
     .biases = true,
     .step = 10,
     .anchor_period = 20,
     .keys = 2,
     .orders = 0,
     .scaled = true,
     .loss = false},
    {.name = "mixed, clamped, gated",
     .depth = 3,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .step = 3,
     .anchor_period = 12,
     .keys = 2,
     .orders = 2,
     .mix = 3,
     .tensor_rates = true,
     .transition = true,
     .max_grad_norm = 0.5,
     .first_position = 4,
     .initial_of_all = true},
    {.name = "gated at every step", .step = 2, .anchor_period = 2, .transition = true},
    {.name = "a residual of chunks",
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .step = 4,
     .anchor_period = 8,
     .tensor_rates = true,
     .residual = true,
     .before = true},
    {.name = "a residual, three orders",
     .dim = 20,
     .biases = true,
     .anchor_period = 4,
     .orders = 3,
     .residual = true,
     .before = true},
    {.name = "orthogonal",
     .norm = Norm::kLayer,
     .trains_gain = true,
     .gain_offset = 1,
     .step = 8,
     .anchor_period = 32,
     .orders = 1,
     .tensor_rates = true,
     .residual = true,
     .before = true,
     .spectral_norm = true},
    {.name = "orthogonal, one matrix, every token",
     .depth = 1,
     .orders = 0,
     .max_grad_norm = 2,
     .spectral_norm = true},
};

class NeuralMemoryTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> reference_ = MakeReference();
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(NeuralMemoryTest, MatchesReferenceOnRaggedSegments) {
  uint64_t seed = 0;
  for (const MemoryRule& rule : kNeuralRules) {
    for (int longest : {1, 5, 40}) {
      ++seed;
      // One orthogonal step: the next one's direction hangs on every rounding of the first.
      if (rule.spectral_norm) longest = std::min(longest, rule.step);
      const MemoryProblem problem(seed, rule,
                                  RandomSegments(seed, MemoryProblem::kSlots, 1, longest));
      const auto want = problem.Run(*reference_), got = problem.Run(*backend_);
      SCOPED_TRACE(testing::Message() << rule.name << ", seed " << seed);
      if (want.out.empty()) continue;
      const double out = RelativeError(got.out, want.out);
      const double states = RelativeError(got.states, want.states);
      const double loss = rule.loss ? RelativeError(got.loss, want.loss) : 0;
      EXPECT_LE(out, problem.Bound());
      EXPECT_LE(states, problem.Bound());
      EXPECT_LE(loss, problem.Bound());
      std::printf("  %-36s out %.1e states %.1e loss %.1e bound %.1e\n", rule.name, out, states,
                  loss, problem.Bound());
    }
  }
}

// Feeds parts of these sizes, one after the other, to the same slabs.
MemoryProblem::Trained RunInParts(Backend& backend, const MemoryProblem& whole,
                                  const std::vector<int>& sizes) {
  Workbench bench(backend);
  MemoryProblem::Loaded loaded = whole.Load(bench);
  MemoryProblem::Trained all;
  int done = 0;
  for (const int size : sizes) {
    const MemoryProblem part = whole.Part(0, done, done + size);
    MemoryProblem::Loaded own = part.Load(bench);
    own.args.weights = loaded.args.weights;
    own.args.momenta = loaded.args.momenta;
    own.args.anchors = loaded.args.anchors;
    own.args.frozen = loaded.args.frozen;
    own.args.gradients = loaded.args.gradients;
    own.args.pending = loaded.args.pending;
    own.args.before = loaded.args.before;
    bench.kernels().NeuralMemory(own.args);
    const auto rows = part.Results(bench, own);
    all.out.insert(all.out.end(), rows.out.begin(), rows.out.end());
    all.loss.insert(all.loss.end(), rows.loss.begin(), rows.loss.end());
    done += size;
  }
  EXPECT_EQ(done, whole.segments[0].length);
  all.states = whole.States(loaded);
  return all;
}

TEST_P(NeuralMemoryTest, AnySplitOfASegmentGivesTheSameBits) {
  uint64_t seed = 200;
  for (const MemoryRule& rule : kNeuralRules) {
    for (const bool fresh : {true, false}) {
      const MemoryProblem whole(++seed, rule, {{.length = 23, .slot = 1, .fresh = fresh}});
      const auto want = whole.Run(*backend_);
      for (const std::vector<int>& sizes :
           {std::vector<int>{1, 7, 1, 1, 13}, std::vector<int>(23, 1), {11, 12}, {22, 1}}) {
        const auto got = RunInParts(*backend_, whole, sizes);
        SCOPED_TRACE(testing::Message() << rule.name << ", " << sizes.size() << " parts");
        EXPECT_THAT(got.out, HasSameBits(want.out));
        EXPECT_THAT(got.states, HasSameBits(want.states));
        // The loss of a token whose step goes on behind the part leaves out the residual.
        if (!rule.residual) {
          EXPECT_THAT(got.loss, HasSameBits(want.loss));
        }
      }
    }
  }
}

TEST_P(NeuralMemoryTest, StepsEndAtEveryOffsetOfASegment) {
  uint64_t seed = 800;
  for (const MemoryRule& rule : kNeuralRules) {
    if (rule.step == 1 || rule.spectral_norm) continue;
    for (int first = 1; first <= rule.step; ++first) {
      for (const int length : {rule.step - 1, rule.step, rule.step + 1}) {
        if (length == 0) continue;
        MemoryRule at = rule;
        at.first_position = first;
        at.initial_of_all = true;
        const MemoryProblem problem(++seed, at, {{.length = length, .slot = 1, .fresh = true}});
        const auto want = problem.Run(*reference_), got = problem.Run(*backend_);
        SCOPED_TRACE(testing::Message() << rule.name << ", from " << first << ", " << length);
        EXPECT_LE(RelativeError(got.out, want.out), problem.Bound());
        EXPECT_LE(RelativeError(got.states, want.states), problem.Bound());
      }
    }
  }
}

TEST_P(NeuralMemoryTest, NeitherThreadsNorOtherSegmentsChangeABit) {
  uint64_t seed = 300;
  for (const MemoryRule& rule : kNeuralRules) {
    ++seed;
    const MemoryProblem all(seed, rule, RandomSegments(seed, MemoryProblem::kSlots, 1, 12));
    const auto want = all.Run(*backend_);
    for (const int threads : {1, 3}) {
      const auto got = all.Run(*GetParam().Make(threads));
      EXPECT_THAT(got.out, HasSameBits(want.out)) << rule.name;
      EXPECT_THAT(got.loss, HasSameBits(want.loss)) << rule.name;
      EXPECT_THAT(got.states, HasSameBits(want.states)) << rule.name;
    }
    const int width = rule.heads * rule.dim;
    size_t first = 0;
    for (size_t s = 0; s < all.segments.size(); ++s) {
      if (!all.segments[s].active()) continue;
      const int length = all.segments[s].length;
      const size_t n = static_cast<size_t>(length) * width;
      EXPECT_THAT(all.Part(static_cast<int>(s), 0, length).Run(*backend_).out,
                  HasSameBits({want.out.begin() + first, want.out.begin() + first + n}))
          << rule.name << ", segment " << s;
      first += n;
    }
  }
}

TEST_P(NeuralMemoryTest, GatesAtTheirEnds) {
  MemoryProblem problem(400, kNeuralRules[0], {{.length = 6, .slot = 2}});
  const auto states_of = [&](const char* copy) {
    std::vector<double> all;
    for (int t = 0; t < problem.rule.network().tensors(); ++t) {
      const auto& values = problem.fields[problem.FieldIndex(copy, t)].before[2];
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const size_t half = states_of("weights").size();
  // Nothing is learned and nothing forgotten: what was there stays, bit by bit.
  std::fill(problem.rate.begin(), problem.rate.end(), 0);
  std::fill(problem.momentum.begin(), problem.momentum.end(), 0);
  std::fill(problem.keep.begin(), problem.keep.end(), 1);
  auto got = problem.Run(*backend_);
  EXPECT_THAT(std::vector<double>(got.states.begin(), got.states.begin() + half),
              HasSameBits(states_of("weights")));
  for (size_t i = half; i < got.states.size(); ++i) EXPECT_EQ(got.states[i], 0);
  // All is forgotten: the weights are what was last added to them.
  std::fill(problem.keep.begin(), problem.keep.end(), 0);
  std::fill(problem.rate.begin(), problem.rate.end(), 0.0625);
  got = problem.Run(*backend_);
  EXPECT_THAT(std::vector<double>(got.states.begin(), got.states.begin() + half),
              HasSameBits({got.states.begin() + half, got.states.end()}));
}

// Clamping leaves what is zero alone, and gives what is small half of the largest norm.
TEST_P(NeuralMemoryTest, ClampedGradientsAtTheirEnds) {
  MemoryRule rule = kNeuralRules[1];
  rule.orders = 0;
  rule.keep = false;
  rule.max_grad_norm = 0.5;
  rule.heads = 1;
  MemoryProblem problem(450, rule, {{.length = 1, .slot = 2}});
  const std::vector<double> before = problem.fields[0].before[2];
  const auto weights_at = [&](double rate) {
    problem.rate = {rate};
    std::vector<double> states = problem.Run(*backend_).states;
    states.resize(before.size());  // of which weights are the first
    return states;
  };
  EXPECT_THAT(weights_at(0), HasSameBits(before));
  for (const auto& [rate, norm] : {std::pair(0x1p-20, 0.25), {0x1p20, 0.5}}) {
    const std::vector<double> after = weights_at(rate);
    double squares = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      squares += (after[i] - before[i]) * (after[i] - before[i]);
    }
    // Weights are about 0.3, whose roundings are those of the difference.
    EXPECT_NEAR(std::sqrt(squares), norm, 1e-5) << rate;
  }
}

TEST_P(NeuralMemoryTest, ReadingLeavesTheMemoryAlone) {
  for (const bool fresh : {false, true}) {
    MemoryRule rule = kNeuralRules[0];
    rule.frozen_period = 4;
    rule.loss = false;
    for (const NeuralRead read : {NeuralRead::kRunning, NeuralRead::kFrozen}) {
      rule.read = read;
      const MemoryProblem problem(500, rule, {{.length = 37, .slot = 1, .fresh = fresh}});
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        MemoryProblem::Loaded loaded = problem.Load(bench);
        loaded.args.k = {};
        std::vector<std::vector<std::byte>> bytes;
        for (const auto& pool : loaded.pools) bytes.push_back(pool->Bytes());
        bench.kernels().NeuralMemory(loaded.args);
        for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(loaded.pools[i]->Bytes(), bytes[i]);
        return problem.Results(bench, loaded).out;
      };
      EXPECT_LE(RelativeError(run(*backend_), run(*reference_)), problem.Bound())
          << (fresh ? "fresh" : "written");
    }
  }
}

// Forgotten weights take their errors along: after any number of tokens there are those of the last
// 1 / (1 - keep) of them, if a step does not amplify what is in the memory. That of one matrix
// without a norm, which goes towards its tokens' values, does not, nor does one whose gradients are
// taken elsewhere.
TEST_P(NeuralMemoryTest, StaysCloseToFloat64OverTwentyThousandTokens) {
  const MemoryRule one_matrix = {.name = "one matrix", .heads = 1, .depth = 1};
  const MemoryRule deep = {.name = "at its initial weights",
                           .heads = 1,
                           .norm = Norm::kLayer,
                           .trains_gain = true,
                           .gain_offset = 1,
                           .anchor_period = 0};
  MemoryRule chunks = deep;
  chunks.name = "chunks";
  chunks.step = 8;
  uint64_t seed = 1000;
  for (const MemoryRule& rule : {one_matrix, deep, chunks}) {
    constexpr double kMost = 0.98;
    MemoryProblem problem(++seed, rule, {{.length = 20000, .slot = 1, .fresh = true}});
    for (double& keep : problem.keep) keep = static_cast<float>(keep - (1 - kMost));
    const auto want = problem.Run(*reference_), got = problem.Run(*backend_);
    problem.segments[0].length = static_cast<int>(1 / (1 - kMost));
    const double out = RelativeError(got.out, want.out);
    const double states = RelativeError(got.states, want.states);
    const double loss = RelativeError(got.loss, want.loss);
    EXPECT_LE(out, problem.Bound()) << rule.name;
    EXPECT_LE(states, problem.Bound()) << rule.name;
    EXPECT_LE(loss, problem.Bound()) << rule.name;
    std::printf("  %-36s out %.1e states %.1e loss %.1e bound %.1e\n", rule.name, out, states, loss,
                problem.Bound());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NeuralMemoryTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
