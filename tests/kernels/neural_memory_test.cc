// NeuralMemory, KeepGate, ChunkMean and Surprise.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Read = NeuralMemoryArgs::Read;
using Norm = MemoryNetwork::Norm;
using Activation = MemoryNetwork::Activation;

constexpr int kSlots = 4;

// A memory's network, and how it is trained.
struct Rule {
  const char* name = "";
  int heads = 2, dim = 16, depth = 2, hidden = 24;
  bool biases = false;
  Activation activation = Activation::kGelu;
  Norm norm = Norm::kNone;
  bool trains_gain = false;
  float gain_offset = 0;
  int step = 1, anchor_period = 1, frozen_period = 0;
  Read read = Read::kRunning;
  bool momentum = true, keep = true, scaled = false;
  int first_position = 0;
  bool initial_of_all = false;

  MemoryNetwork network() const {
    return {.depth = depth,
            .hidden = depth == 1 ? 0 : hidden,
            .biases = biases,
            .activation = activation,
            .norm = norm,
            .eps = 1e-5f,
            .trains_gain = trains_gain,
            .gain_offset = gain_offset};
  }
};

// Each way that a model trains its memory, and odd shapes.
const Rule kRules[] = {
    {.name = "every token"},
    {.name = "one matrix", .depth = 1, .anchor_period = 4},
    {.name = "deep",
     .heads = 1,
     .dim = 33,
     .depth = 4,
     .hidden = 65,
     .activation = Activation::kSilu,
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
    {.name = "the anchor is read", .anchor_period = 5, .read = Read::kAnchor},
    {.name = "the frozen memory is read",
     .anchor_period = 2,
     .frozen_period = 6,
     .read = Read::kFrozen,
     .momentum = false},
    {.name = "mini-batches of one matrix",
     .depth = 1,
     .biases = true,
     .norm = Norm::kLayer,
     .step = 8,
     .anchor_period = 8,
     .read = Read::kAhead,
     .momentum = false,
     .keep = false,
     .scaled = true},
    {.name = "mini-batches of a network",
     .dim = 32,
     .hidden = 300,
     .biases = true,
     .activation = Activation::kGeluTanh,
     .norm = Norm::kLayer,
     .trains_gain = true,
     .step = 8,
     .anchor_period = 8,
     .read = Read::kAhead,
     .momentum = false,
     .keep = false,
     .scaled = true},
};

struct Trained {
  std::vector<double> out;     // entries of active segments, in order
  std::vector<double> states;  // all copies of their memories
};

struct Problem {
  Problem(uint64_t seed, const Rule& rule, std::vector<SegmentSpec> list)
      : rule(rule), segments(std::move(list)) {
    SeededRandom random(seed);
    const int64_t rows = int64_t{Entries(segments)} * rule.heads, n = rows * rule.dim;
    q = random.NormalValues(n);
    k = random.NormalValues(n);
    v = random.NormalValues(n);
    // Keys of about unit length and small rates, as models have them: the memory stays tame.
    for (double& x : k) x = static_cast<float>(x / std::sqrt(rule.dim));
    rate = random.UniformValues(rows, 0, 0.1 / rule.step / rule.depth);
    momentum = random.UniformValues(rows, 0, 0.9);
    keep = random.UniformValues(rows, 0.8, 1);
    scale = random.UniformValues(rule.step, 0.5, 1);
    gain = random.UniformValues(rule.heads * rule.dim, 0.5, 1.5);
    shift = random.NormalValues(rule.heads * rule.dim, 0.1);
    for (const SegmentSpec& s : segments) {
      starts.push_back(rule.first_position +
                       (s.fresh ? 0 : 1 + static_cast<int>(seed % 5) + s.slot));
    }
    for (int t = 0; t < rule.network().tensors(); ++t) {
      const int64_t size = Elements(t);
      for (auto* copy : {&initial, &initial_momenta, &initial_gradients}) {
        copy->push_back(random.NormalValues(size, copy == &initial ? 0.3 : 0.02));
      }
      for (int slot = 0; slot < kSlots; ++slot) {
        for (int copy = 0; copy < kCopies; ++copy) {
          const double range = copy == 0 || copy == 2 || copy == 3 ? 0.3 : 0.02;
          before.push_back(random.NormalValues(size, range));
        }
      }
    }
  }

  static constexpr int kCopies = 5;
  int64_t Elements(int t) const {
    return rule.heads * rule.network().shape(t, rule.dim).elements();
  }
  const std::vector<double>& Before(int t, int slot, int copy) const {
    return before[static_cast<size_t>((t * kSlots + slot) * kCopies + copy)];
  }
  bool Has(int copy) const {
    return copy == 0 || (copy == 1 && rule.momentum) ||
           (copy == 2 && rule.anchor_period != 0 && rule.anchor_period != rule.step) ||
           (copy == 3 && rule.frozen_period != 0) || (copy == 4 && rule.step > 1);
  }

  struct Loaded {
    std::vector<std::unique_ptr<SlabPool>> pools;  // by copy and tensor; null: there is none
    NeuralMemoryArgs args;
    SlabPool* At(int copy, int t, int tensors) { return pools[copy * tensors + t].get(); }
  };
  Loaded Load(Workbench& bench) const {
    const MemoryNetwork network = rule.network();
    const int tensors = network.tensors();
    Loaded loaded;
    NeuralMemoryArgs& args = loaded.args;
    MemoryCopy* copies[kCopies] = {&args.weights, &args.momenta, &args.anchors, &args.frozen,
                                   &args.gradients};
    for (int copy = 0; copy < kCopies; ++copy) {
      for (int t = 0; t < tensors; ++t) {
        loaded.pools.push_back(nullptr);
        if (!Has(copy)) continue;
        loaded.pools.back() = std::make_unique<SlabPool>(bench, kSlots, 1, Elements(t),
                                                         bench.backend().activation_dtype());
        // A memory that is fresh holds what its slab happened to hold: NaN, here.
        for (int slot = 0; slot < kSlots; ++slot) {
          if (!IsFresh(segments, slot, 0))
            loaded.pools.back()->Write(slot, 0, Before(t, slot, copy));
        }
        copies[copy]->at[t] = loaded.pools.back()->view();
      }
    }
    for (int t = 0; t < tensors; ++t) {
      const Shape one = network.shape(t, rule.dim);
      const Shape shape =
          one.rank == 2 ? Shape{rule.heads, one[0], one[1]} : Shape{rule.heads, one[0]};
      args.initial_weights.at[t] = bench.Floats(initial[t], shape);
      if (rule.anchor_period == 0) args.initial_anchor.at[t] = args.initial_weights.at[t];
      if (!rule.initial_of_all) continue;
      args.initial_momenta.at[t] = bench.Floats(initial_momenta[t], shape);
      args.initial_gradients.at[t] = bench.Floats(initial_gradients[t], shape);
      args.initial_anchors.at[t] = bench.Floats(initial_momenta[t], shape);
    }
    const int entries = Entries(segments);
    const Shape vectors{entries, rule.heads, rule.dim}, gates{entries, rule.heads};
    args.network = network;
    args.q = bench.Activations(q, vectors);
    args.k = bench.Activations(k, vectors);
    args.v = bench.Activations(v, vectors);
    args.rate = bench.Activations(rate, gates);
    if (rule.momentum) args.momentum = bench.Activations(momentum, gates);
    if (rule.keep) args.keep = bench.Activations(keep, gates);
    if (rule.scaled) args.step_scale = bench.Floats(scale, {rule.step});
    if (rule.norm != Norm::kNone && !rule.trains_gain) {
      args.gain = bench.Floats(gain, {rule.heads, rule.dim});
      args.shift = bench.Floats(shift, {rule.heads, rule.dim});
    }
    args.rate_scale = 2;
    args.step = rule.step;
    args.anchor_period = rule.anchor_period;
    args.frozen_period = rule.frozen_period;
    args.read = rule.read;
    std::vector<int64_t> positions;
    for (size_t s = 0; s < segments.size(); ++s) {
      for (int i = 0; i < segments[s].length; ++i) positions.push_back(starts[s] + i);
    }
    args.positions = bench.Longs(positions);
    args.first_position = rule.first_position;
    args.segments = Upload(bench, segments);
    args.out = bench.NewActivations(vectors);
    return loaded;
  }
  std::vector<double> States(Loaded& loaded) const {
    std::vector<double> states;
    for (const SegmentSpec& s : segments) {
      if (!s.active()) continue;
      for (const auto& pool : loaded.pools) {
        if (pool == nullptr) continue;
        const auto values = pool->Read(s.slot, 0);
        states.insert(states.end(), values.begin(), values.end());
      }
    }
    return states;
  }
  std::vector<double> Out(Workbench& bench, const Loaded& loaded) const {
    std::vector<int> active;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    return PickEntries(bench.Read(loaded.args.out), rule.heads * rule.dim, segments, active);
  }
  Trained Run(Backend& backend) const {
    Workbench bench(backend);
    Loaded loaded = Load(bench);
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& pool : loaded.pools) {
      bytes.push_back(pool == nullptr ? std::vector<std::byte>{} : pool->Bytes());
    }
    bench.kernels().NeuralMemory(loaded.args);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (loaded.pools[i] == nullptr) continue;
      EXPECT_TRUE(loaded.pools[i]->OnlyTouched(bytes[i], [this](int slot, int memory) {
        return IsActive(segments, slot, memory);
      })) << "state outside the segments' memories was written";
    }
    return {Out(bench, loaded), States(loaded)};
  }
  // Each token goes through the network three times, with a sum and an activation a layer, and its
  // errors stay in the memory, where those of many tokens, which have either sign, add up as the
  // root of their number.
  double Bound() const {
    int longest = 1;
    for (const SegmentSpec& s : segments) longest = std::max(longest, s.length);
    const double wide = std::max(rule.dim, rule.depth > 1 ? rule.hidden : 0);
    return 3 * rule.depth * (SumError(wide) + kFunctionError) * (2 + std::sqrt(longest));
  }

  Rule rule;
  std::vector<SegmentSpec> segments;
  std::vector<int> starts;
  std::vector<double> q, k, v, rate, momentum, keep, scale, gain, shift;
  std::vector<std::vector<double>> initial, initial_momenta, initial_gradients, before;
};

class NeuralMemoryTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> reference_ = MakeReference();
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(NeuralMemoryTest, MatchesReferenceOnRaggedSegments) {
  uint64_t seed = 0;
  for (const Rule& rule : kRules) {
    for (const int longest : {1, 5, 40}) {
      ++seed;
      const Problem problem(seed, rule, RandomSegments(seed, kSlots, 1, longest));
      const Trained want = problem.Run(*reference_), got = problem.Run(*backend_);
      SCOPED_TRACE(testing::Message() << rule.name << ", seed " << seed);
      if (want.out.empty()) continue;
      const double out = RelativeError(got.out, want.out);
      const double states = RelativeError(got.states, want.states);
      EXPECT_LE(out, problem.Bound());
      EXPECT_LE(states, problem.Bound());
      std::printf("  %-30s out %.1e states %.1e bound %.1e\n", rule.name, out, states,
                  problem.Bound());
    }
  }
}

// The specification itself: what a step takes off each weight is the derivative of the loss.
TEST(NeuralMemoryGradientTest, IsThatOfFiniteDifferences) {
  const std::unique_ptr<Backend> reference = MakeReference();
  uint64_t seed = 100;
  for (Rule rule : kRules) {
    rule.heads = 1;
    rule.dim = std::min(rule.dim, 6);
    rule.hidden = std::min(rule.hidden, 5);
    rule.step = rule.anchor_period = 1;
    rule.frozen_period = 0;
    rule.momentum = rule.keep = rule.scaled = rule.initial_of_all = false;
    rule.read = Read::kRunning;
    Problem problem(++seed, rule, {{.length = 1, .slot = 0}});
    problem.rate = {1};
    problem.q = problem.k;
    Workbench bench(*reference);
    Problem::Loaded loaded = problem.Load(bench);
    bench.kernels().NeuralMemory(loaded.args);
    const auto loss = [&](Problem::Loaded& at) {
      at.args.k = {};  // read only
      bench.kernels().NeuralMemory(at.args);
      const std::vector<double> out = bench.Read(at.args.out);
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i)
        sum += (out[i] - problem.v[i]) * (out[i] - problem.v[i]);
      return sum;
    };
    const int tensors = rule.network().tensors();
    for (int t = 0; t < tensors; ++t) {
      const std::vector<double> after = loaded.At(0, t, tensors)->Read(0, 0);
      for (size_t i = 0; i < after.size(); i += 3) {
        constexpr double kStep = 1e-4;
        double sides[2];
        for (const int side : {0, 1}) {
          Problem::Loaded moved = problem.Load(bench);
          std::vector<double> values = problem.Before(t, 0, 0);
          values[i] += side == 0 ? -kStep : kStep;
          moved.At(0, t, tensors)->Write(0, 0, values);
          sides[side] = loss(moved);
        }
        const double want = (sides[1] - sides[0]) / (2 * kStep);
        const double got = problem.Before(t, 0, 0)[i] - after[i];
        // Third derivatives times the step squared, and roundings over the step.
        EXPECT_NEAR(got, want, 1e-5 * (1 + std::abs(want)))
            << rule.name << ", tensor " << t << ", element " << i;
      }
    }
  }
}

TEST_P(NeuralMemoryTest, AnySplitOfASegmentGivesTheSameBits) {
  uint64_t seed = 200;
  for (const Rule& rule : kRules) {
    const int length = 23, width = rule.heads * rule.dim;
    const Problem whole(++seed, rule, {{.length = length, .slot = 1, .fresh = true}});
    const Trained want = whole.Run(*backend_);
    Workbench bench(*backend_);
    Problem::Loaded loaded = whole.Load(bench);
    std::vector<double> out;
    int done = 0;
    for (const int size : {1, 7, 1, 1, 13}) {
      Problem part = whole;
      part.segments[0].length = size;
      part.starts[0] = whole.starts[0] + done;
      for (auto [values, each] : {std::pair(&part.q, width),
                                  {&part.k, width},
                                  {&part.v, width},
                                  {&part.rate, rule.heads},
                                  {&part.momentum, rule.heads},
                                  {&part.keep, rule.heads}}) {
        *values = {values->begin() + done * each, values->begin() + (done + size) * each};
      }
      Problem::Loaded own = part.Load(bench);
      own.args.weights = loaded.args.weights;
      own.args.momenta = loaded.args.momenta;
      own.args.anchors = loaded.args.anchors;
      own.args.frozen = loaded.args.frozen;
      own.args.gradients = loaded.args.gradients;
      bench.kernels().NeuralMemory(own.args);
      const std::vector<double> rows = bench.Read(own.args.out);
      out.insert(out.end(), rows.begin(), rows.end());
      done += size;
    }
    ASSERT_EQ(done, length);
    EXPECT_THAT(out, HasSameBits(want.out)) << rule.name;
    EXPECT_THAT(whole.States(loaded), HasSameBits(want.states)) << rule.name;
  }
}

TEST_P(NeuralMemoryTest, NeitherThreadsNorOtherSegmentsChangeABit) {
  uint64_t seed = 300;
  for (const Rule& rule : kRules) {
    ++seed;
    const Problem all(seed, rule, RandomSegments(seed, kSlots, 1, 12));
    const Trained want = all.Run(*backend_);
    for (const int threads : {1, 3}) {
      const Trained got = all.Run(*GetParam().Make(threads));
      EXPECT_THAT(got.out, HasSameBits(want.out)) << rule.name;
      EXPECT_THAT(got.states, HasSameBits(want.states)) << rule.name;
    }
    const std::vector<int> offsets = Offsets(all.segments);
    const int width = rule.heads * rule.dim;
    size_t first = 0;
    for (size_t s = 0; s < all.segments.size(); ++s) {
      if (!all.segments[s].active()) continue;
      Problem one = all;
      one.segments = {all.segments[s]};
      one.starts = {all.starts[s]};
      for (auto [values, each] : {std::pair(&one.q, width),
                                  {&one.k, width},
                                  {&one.v, width},
                                  {&one.rate, rule.heads},
                                  {&one.momentum, rule.heads},
                                  {&one.keep, rule.heads}}) {
        *values = {values->begin() + offsets[s] * each, values->begin() + offsets[s + 1] * each};
      }
      const size_t n = static_cast<size_t>(all.segments[s].length) * width;
      EXPECT_THAT(one.Run(*backend_).out,
                  HasSameBits({want.out.begin() + first, want.out.begin() + first + n}))
          << rule.name << ", segment " << s;
      first += n;
    }
  }
}

TEST_P(NeuralMemoryTest, GatesAtTheirEnds) {
  Problem problem(400, kRules[0], {{.length = 6, .slot = 2}});
  const auto states_of = [&](int copy) {
    std::vector<double> all;
    for (int t = 0; t < problem.rule.network().tensors(); ++t) {
      const auto& values = problem.Before(t, 2, copy);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const size_t half = states_of(0).size();
  // Nothing is learned and nothing forgotten: what was there stays, bit by bit.
  std::fill(problem.rate.begin(), problem.rate.end(), 0);
  std::fill(problem.momentum.begin(), problem.momentum.end(), 0);
  std::fill(problem.keep.begin(), problem.keep.end(), 1);
  Trained got = problem.Run(*backend_);
  EXPECT_THAT(std::vector<double>(got.states.begin(), got.states.begin() + half),
              HasSameBits(states_of(0)));
  for (size_t i = half; i < got.states.size(); ++i) EXPECT_EQ(got.states[i], 0);
  // All is forgotten: the weights are what was last added to them.
  std::fill(problem.keep.begin(), problem.keep.end(), 0);
  std::fill(problem.rate.begin(), problem.rate.end(), 0.0625);
  got = problem.Run(*backend_);
  EXPECT_THAT(std::vector<double>(got.states.begin(), got.states.begin() + half),
              HasSameBits({got.states.begin() + half, got.states.end()}));
}

TEST_P(NeuralMemoryTest, ReadingLeavesTheMemoryAlone) {
  for (const bool fresh : {false, true}) {
    Rule rule = kRules[0];
    rule.frozen_period = 4;
    for (const Read read : {Read::kRunning, Read::kFrozen}) {
      rule.read = read;
      const Problem problem(500, rule, {{.length = 3, .slot = 1, .fresh = fresh}});
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        Problem::Loaded loaded = problem.Load(bench);
        loaded.args.k = {};
        std::vector<std::vector<std::byte>> bytes;
        for (const auto& pool : loaded.pools) {
          bytes.push_back(pool == nullptr ? std::vector<std::byte>{} : pool->Bytes());
        }
        bench.kernels().NeuralMemory(loaded.args);
        for (size_t i = 0; i < bytes.size(); ++i) {
          if (loaded.pools[i] == nullptr) continue;
          EXPECT_EQ(loaded.pools[i]->Bytes(), bytes[i]);
        }
        return problem.Out(bench, loaded);
      };
      EXPECT_LE(RelativeError(run(*backend_), run(*reference_)), problem.Bound())
          << (fresh ? "fresh" : "written");
    }
  }
}

TEST_P(NeuralMemoryTest, KeepGateMatchesReference) {
  uint64_t seed = 600;
  for (const int heads : {1, 3, 16, 21}) {
    for (const bool gdn : {false, true}) {
      const int entries = 9;
      SeededRandom random(++seed);
      const auto x = random.NormalValues(entries * heads, 4);
      const auto a_log = random.NormalValues(heads), dt_bias = random.NormalValues(heads);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        KeepGateArgs args{.x = bench.Activations(x, {entries, heads})};
        if (gdn) args.a_log = bench.Floats(a_log, {heads});
        if (gdn) args.dt_bias = bench.Floats(dt_bias, {heads});
        args.y = args.x;
        bench.kernels().KeepGate(args);
        return bench.Read(args.y);
      };
      const std::vector<double> want = run(*reference_);
      std::vector<double> bound;
      for (size_t i = 0; i < want.size(); ++i) {
        // The exponent's own relative error counts as often as the exponent is large.
        const double exponent = 4 + std::abs(x[i]) - std::log(std::max(want[i], 1e-30));
        bound.push_back(want[i] * exponent * kFunctionError + kTinyF32);
      }
      EXPECT_THAT(run(*backend_), IsWithin(bound, want)) << "seed " << seed;
    }
  }
}

TEST_P(NeuralMemoryTest, ChunkMeanGoesOnWhereItStopped) {
  const int dim = 21, length = 30, chunk = 7;
  SeededRandom random(700);
  const auto x = random.NormalValues(length * dim);
  const auto run = [&](Backend& backend, const std::vector<int>& sizes) {
    Workbench bench(backend);
    SlabPool sums(bench, kSlots, 1, dim, backend.activation_dtype());
    std::vector<double> all;
    int done = 0;
    for (const int size : sizes) {
      std::vector<int64_t> positions;
      for (int i = 0; i < size; ++i) positions.push_back(14 + done + i);
      ChunkMeanArgs args{
          .x = bench.Activations({x.begin() + done * dim, x.begin() + (done + size) * dim},
                                 {size, dim}),
          .chunk = chunk,
          .positions = bench.Longs(positions),
          .segments = Upload(bench, {{.length = size, .slot = 3}}),
          .sums = sums.view()};
      args.y = args.x;
      bench.kernels().ChunkMean(args);
      const auto rows = bench.Read(args.y);
      all.insert(all.end(), rows.begin(), rows.end());
      done += size;
    }
    return all;
  };
  const std::vector<double> whole = run(*backend_, {length}), want = run(*reference_, {length});
  EXPECT_THAT(run(*backend_, {1, 12, 1, 16}), HasSameBits(whole));
  EXPECT_LE(RelativeError(whole, want), SumError(chunk));
  for (int i = 0; i < dim; ++i) {
    double mean = 0;
    for (int t = chunk; t < 2 * chunk; ++t) mean += x[t * dim + i] / chunk;
    EXPECT_NEAR(want[(2 * chunk - 1) * dim + i], mean, 1e-12);
  }
}

TEST_P(NeuralMemoryTest, SurpriseIsTheMeanLossAndNaNWhereAnythingIsNotFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::nan("");
  const int entries = 9, pairs = 70, heads = 2, dim = 37;
  SeededRandom random(800);
  std::vector<double> loss, read;
  for (const double x : random.NormalValues(entries * pairs)) {
    loss.push_back(static_cast<float>(x * x));
  }
  read = random.NormalValues(entries * heads * dim);
  loss[2 * pairs + 69] = kInf;
  loss[3 * pairs] = kNaN;
  read[4 * heads * dim + heads * dim - 1] = -kInf;
  read[5 * heads * dim] = kNaN;
  const std::vector<int> bad = {2, 3, 4, 5};
  // The entry of each token; that of token 3 comes in another call.
  for (const std::vector<int>& places :
       {std::vector<int>{}, std::vector<int>{8, 2, 0, entries, 5}}) {
    const int tokens = places.empty() ? entries : static_cast<int>(places.size());
    const auto run = [&](Backend& backend) {
      Workbench bench(backend);
      SurpriseArgs args{.loss = bench.Activations(loss, {entries, pairs}),
                        .read = bench.Activations(read, {entries, heads, dim}),
                        .surprise = bench.Floats(std::vector<double>(tokens, -1), {tokens})};
      if (!places.empty()) args.places = bench.Ints(places);
      bench.kernels().Surprise(args);
      return bench.Read(args.surprise);
    };
    const std::vector<double> got = run(*backend_), want = run(*reference_);
    for (int t = 0; t < tokens; ++t) {
      const int entry = places.empty() ? t : places[t];
      if (entry == entries) {
        EXPECT_EQ(got[t], -1) << "token " << t;
        continue;
      }
      if (std::find(bad.begin(), bad.end(), entry) != bad.end()) {
        EXPECT_TRUE(std::isnan(got[t]) && std::isnan(want[t])) << "token " << t;
        continue;
      }
      double mean = 0;
      for (int i = 0; i < pairs; ++i) mean += loss[entry * pairs + i] / pairs;
      EXPECT_NEAR(want[t], mean, mean * 2 * kUnitF32);
      EXPECT_NEAR(got[t], mean, mean * SumError(pairs));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NeuralMemoryTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
