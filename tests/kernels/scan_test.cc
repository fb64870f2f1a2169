// SelectiveScan, Discretize and AddScaled.

#include <algorithm>
#include <cmath>
#include <limits>
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

double Softplus(double z) { return z > 20 ? z : std::log1p(std::exp(z)); }

// The relative error of softplus(x + bias): the sum's rounding moves it by at most as much as the
// sum is large, and its parts are functions of their own.
double StepError(double z) { return 2 * kFunctionError + (2 + std::abs(z)) * kUnitF32; }

struct ScanResult {
  std::vector<double> y;       // entries of active segments, in order
  std::vector<double> states;  // of every slot and memory
};

enum class ScanAlias { kNone, kU, kDt, kGate };

struct ScanProblem {
  ScanProblem(uint64_t seed, int channels, int states, std::vector<SegmentSpec> list)
      : channels(channels), states(states), segments(std::move(list)) {
    SeededRandom random(seed);
    const int64_t n = int64_t{Entries(segments)} * channels;
    u = random.NormalValues(n, 2);
    dt = random.NormalValues(n, 2);
    gate = random.NormalValues(n, 2);
    b = random.NormalValues(int64_t{Entries(segments)} * states);
    c = random.NormalValues(int64_t{Entries(segments)} * states);
    a = random.UniformValues(int64_t{states} * channels, -3, 0);
    dt_bias = random.NormalValues(channels, 2);
    skip = random.NormalValues(channels);
    for (int i = 0; i < kSlots * kMemories; ++i) {
      before.push_back(random.NormalValues(int64_t{states} * channels, 2));
    }
  }

  struct Loaded {
    SlabPool slabs;
    SelectiveScanArgs args;
  };
  Loaded Load(Workbench& bench, ScanAlias alias = ScanAlias::kNone) const {
    Loaded loaded{SlabPool(bench, kSlots, kMemories, int64_t{states} * channels,
                           bench.backend().activation_dtype()),
                  {}};
    // A memory that is fresh somewhere holds what its slab happened to hold: NaN, here.
    for (int i = 0; i < kSlots * kMemories; ++i) {
      const bool fresh = std::any_of(segments.begin(), segments.end(), [i](const SegmentSpec& s) {
        return s.fresh && s.slot == i / kMemories && s.memory == i % kMemories;
      });
      if (!fresh) loaded.slabs.Write(i / kMemories, i % kMemories, before[i]);
    }
    SelectiveScanArgs& args = loaded.args;
    const Shape shape{Entries(segments), channels}, small{Entries(segments), states};
    args.u = bench.Activations(u, shape);
    args.dt = bench.Activations(dt, shape);
    args.b = bench.Activations(b, small);
    args.c = bench.Activations(c, small);
    args.a = bench.Floats(a, {states, channels});
    args.dt_bias = bench.Floats(dt_bias, {channels});
    args.skip = bench.Floats(skip, {channels});
    args.gate = bench.Activations(gate, shape);
    args.segments = Upload(bench, segments);
    // Steps go another way than prompts, if a device is told.
    const auto longer = [](const SegmentSpec& s) { return s.length > 1; };
    if (std::none_of(segments.begin(), segments.end(), longer)) args.segments.longest = 1;
    args.state = loaded.slabs.view();
    args.y = alias == ScanAlias::kU      ? args.u
             : alias == ScanAlias::kDt   ? args.dt
             : alias == ScanAlias::kGate ? args.gate
                                         : bench.NewActivations(shape);
    return loaded;
  }
  ScanResult Read(Workbench& bench, Loaded& loaded) const {
    std::vector<int> active;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    ScanResult result;
    result.y = PickEntries(bench.Read(loaded.args.y), channels, segments, active);
    for (const int s : active) {
      const auto state = loaded.slabs.Read(segments[s].slot, segments[s].memory);
      result.states.insert(result.states.end(), state.begin(), state.end());
    }
    return result;
  }
  ScanResult Run(Backend& backend, ScanAlias alias = ScanAlias::kNone) const {
    Workbench bench(backend);
    Loaded loaded = Load(bench, alias);
    const std::vector<std::byte> bytes = loaded.slabs.Bytes();
    bench.kernels().SelectiveScan(loaded.args);
    EXPECT_TRUE(loaded.slabs.OnlyTouched(bytes, [this](int slot, int memory) {
      return std::any_of(segments.begin(), segments.end(), [&](const SegmentSpec& s) {
        return s.active() && s.slot == slot && s.memory == memory;
      });
    })) << "state outside the segments' memories was written";
    return Read(bench, loaded);
  }

  // Goes along with the recurrence: a state's error decays with it, and each token adds that of its
  // decay times what the terms of the state amount to, and that of its input.
  ScanResult Bound() const {
    ScanResult bound;
    int first = 0;
    for (const SegmentSpec& s : segments) {
      const int end = first + s.length;
      if (!s.active()) {
        first = end;
        continue;
      }
      const size_t size = static_cast<size_t>(states) * channels;
      std::vector<double> terms(size), errors(size);
      if (!s.fresh) {
        for (size_t i = 0; i < size; ++i) terms[i] = std::abs(before[Memory(s)][i]);
      }
      for (int e = first; e < end; ++e) {
        for (int i = 0; i < channels; ++i) {
          const size_t at = static_cast<size_t>(e) * channels + i;
          const double z = dt[at] + dt_bias[i], step = Softplus(z), of_step = StepError(z);
          double sum = std::abs(skip[i] * u[at]), error = 0;
          for (int n = 0; n < states; ++n) {
            const size_t of = static_cast<size_t>(n) * channels + i;
            const double x = step * a[of], decay = std::exp(x);
            const double input = std::abs(step * u[at] * b[static_cast<size_t>(e) * states + n]);
            const double of_decay = kFunctionError - x * (of_step + 2 * kUnitF32);
            errors[of] = decay * (errors[of] + (of_decay + kUnitF32) * terms[of]) +
                         kTinyF32 * (1 + terms[of]) + (of_step + 4 * kUnitF32) * input;
            terms[of] = decay * terms[of] + input;
            errors[of] += kUnitF32 * terms[of];
            const double read = std::abs(c[static_cast<size_t>(e) * states + n]);
            sum += read * terms[of];
            error += read * errors[of];
          }
          const double open = std::abs(gate[at] / (1 + std::exp(-gate[at])));
          bound.y.push_back((error + SumError(states + 1) * sum) * open +
                            (kFunctionError + 4 * kUnitF32) * sum * open + kTinyF32 * (1 + sum));
        }
      }
      bound.states.insert(bound.states.end(), errors.begin(), errors.end());
      first = end;
    }
    return bound;
  }

  static int Memory(const SegmentSpec& s) { return s.slot * kMemories + s.memory; }

  static constexpr int kSlots = 6, kMemories = 3;
  int channels, states;
  std::vector<SegmentSpec> segments;
  std::vector<double> u, dt, gate, b, c, a, dt_bias, skip;
  std::vector<std::vector<double>> before;
};

std::vector<SegmentSpec> RandomScanSegments(uint64_t seed, int longest) {
  return RandomSegments(seed, ScanProblem::kSlots, ScanProblem::kMemories, longest);
}

// A GPU takes long segments another way.
std::vector<SegmentSpec> WithALongOne(std::vector<SegmentSpec> segments, int length) {
  std::find_if(segments.begin(), segments.end(), [](const SegmentSpec& s) {
    return s.active();
  })->length = length;
  return segments;
}

class ScanTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const ScanProblem& problem) {
    const ScanResult want = problem.Run(*reference_), got = problem.Run(*backend_);
    const ScanResult bound = problem.Bound();
    EXPECT_THAT(got.y, IsWithin(bound.y, want.y));
    EXPECT_THAT(got.states, IsWithin(bound.states, want.states));
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(ScanTest, MatchesReferenceOnRaggedSegments) {
  uint64_t seed = 0;
  for (const int states : {1, 3, 8, 16, 17, 31, 64, 70, 256}) {
    for (const int channels : {1, 15, 16, 33, 100}) {
      for (const int longest : {1, 5}) {
        ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << channels << " channels, "
                                        << states << " states, up to " << longest << " entries");
        ExpectMatch(ScanProblem(seed, channels, states, RandomScanSegments(seed, longest)));
      }
    }
  }
}

TEST_P(ScanTest, LongSegmentsMatchReference) {
  for (const int states : {4, 16}) {
    SCOPED_TRACE(testing::Message() << states << " states");
    ScanProblem problem(300 + states, 40, states,
                        {{.length = 3000, .slot = 1, .fresh = true}, {.length = 700, .slot = 4}});
    // Slow to forget, so that early tokens count at the end.
    for (double& rate : problem.a) rate = RoundTo(rate * 1e-4, DType::kF32);
    ExpectMatch(problem);
  }
}

// As a GPU cuts them: of one chunk, of several, a last one of one entry, beside single entries,
// empty and padding segments, whatever a slab holds; and more states than it cuts segments for.
TEST_P(ScanTest, SegmentsOfAllLengthsMatchReference) {
  const std::vector<SegmentSpec> segments = {{.length = 64, .slot = 0},
                                             {.length = 1, .slot = 1},
                                             {.length = 65, .slot = 2, .fresh = true},
                                             {.length = 0, .slot = 3},
                                             {.length = 70, .slot = -1},
                                             {.length = 128, .slot = 0, .memory = 1, .fresh = true},
                                             {.length = 129, .slot = 1, .memory = 1},
                                             {.length = 1, .slot = 2, .memory = 1, .fresh = true},
                                             {.length = 63, .slot = 3, .memory = 1, .fresh = true},
                                             {.length = 700, .slot = 4},
                                             {.length = 0, .slot = 5},
                                             {.length = 3, .slot = 5, .memory = 2}};
  uint64_t seed = 400;
  for (const int states : {1, 5, 8, 16, 24}) {
    for (const int channels : {20, 131}) {
      ++seed;
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", " << channels << " channels, " << states << " states");
      ScanProblem problem(seed, channels, states, segments);
      for (size_t i = 0; i < problem.a.size(); i += 2) {
        problem.a[i] = RoundTo(problem.a[i] * 1e-3, DType::kF32);
      }
      ExpectMatch(problem);
    }
  }
}

// Single entries of so many channels that a GPU's blocks have one or several of them, each.
TEST_P(ScanTest, SingleEntriesOfManyChannelsMatchReference) {
  std::vector<SegmentSpec> segments;
  for (int i = 0; i < ScanProblem::kSlots * ScanProblem::kMemories; ++i) {
    segments.push_back({.length = 1,
                        .slot = i / ScanProblem::kMemories,
                        .memory = i % ScanProblem::kMemories,
                        .fresh = i % 5 == 2});
  }
  segments[4].length = 0;
  segments[7].slot = -1;
  ExpectMatch(ScanProblem(90, 16900, 5, segments));
  segments.resize(6);
  const ScanProblem few(91, 8196, 16, segments);
  ExpectMatch(few);
  // Channels of one entry are dealt out in another way.
  ScanProblem first = few;
  first.segments.resize(1);
  for (auto [values, width] : {std::pair(&first.u, first.channels),
                               {&first.dt, first.channels},
                               {&first.gate, first.channels},
                               {&first.b, first.states},
                               {&first.c, first.states}}) {
    values->resize(width);
  }
  const ScanResult all = few.Run(*backend_), one = first.Run(*backend_);
  EXPECT_THAT(one.y, HasSameBits({all.y.begin(), all.y.begin() + few.channels}));
  EXPECT_THAT(one.states,
              HasSameBits({all.states.begin(), all.states.begin() + one.states.size()}));
}

// Steps from nothing to what forgets all at once, and gates that are shut or wide open.
TEST_P(ScanTest, HoldsFromNoStepToAllForgotten) {
  ScanProblem problem(7, 48, 16, WithALongOne(RandomScanSegments(7, 6), 200));
  const double extremes[] = {-200, -90, -30, -1, 0, 1, 19.999, 20.001, 60, 3000};
  for (size_t i = 0; i < problem.dt.size(); ++i) {
    problem.dt[i] = RoundTo(extremes[i % 10], DType::kF32);
    problem.gate[i] = RoundTo(extremes[(i / 10) % 9], DType::kF32);
  }
  for (size_t i = 0; i < problem.a.size(); i += 5) problem.a[i] = RoundTo(-1e30, DType::kF32);
  for (double& bias : problem.dt_bias) bias = 0;
  ExpectMatch(problem);
}

TEST_P(ScanTest, OutputsMayBeInputs) {
  const ScanProblem problem(11, 37, 16, WithALongOne(RandomScanSegments(11, 7), 150));
  const ScanResult want = problem.Run(*backend_);
  for (const ScanAlias alias : {ScanAlias::kU, ScanAlias::kDt, ScanAlias::kGate}) {
    const ScanResult got = problem.Run(*backend_, alias);
    EXPECT_THAT(got.y, HasSameBits(want.y));
    EXPECT_THAT(got.states, HasSameBits(want.states));
  }
}

// The same entries of each segment in several calls, which go on from the state.
TEST_P(ScanTest, SplittingASegmentChangesNoBit) {
  for (const int states : {5, 16}) {
    const int length = 23, channels = 35;
    const ScanProblem whole(20 + states, channels, states,
                            {{.length = length, .slot = 3, .memory = 1, .fresh = true}});
    const ScanResult want = whole.Run(*backend_);
    Workbench bench(*backend_);
    ScanProblem::Loaded loaded = whole.Load(bench);
    std::vector<double> y;
    int done = 0;
    for (const int size : {1, 7, 1, 1, 13}) {
      ScanProblem part = whole;
      part.segments[0].length = size;
      part.segments[0].fresh = done == 0;
      for (auto [values, width] : {std::pair(&part.u, channels),
                                   {&part.dt, channels},
                                   {&part.gate, channels},
                                   {&part.b, states},
                                   {&part.c, states}}) {
        *values = {values->begin() + done * width, values->begin() + (done + size) * width};
      }
      ScanProblem::Loaded own = part.Load(bench);
      own.args.state = loaded.args.state;
      bench.kernels().SelectiveScan(own.args);
      const std::vector<double> rows = bench.Read(own.args.y);
      y.insert(y.end(), rows.begin(), rows.end());
      done += size;
    }
    ASSERT_EQ(done, length);
    EXPECT_THAT(y, HasSameBits(want.y)) << states << " states";
    EXPECT_THAT(loaded.slabs.Read(3, 1), HasSameBits(want.states)) << states << " states";
  }
}

TEST_P(ScanTest, NeitherThreadsNorOtherSegmentsChangeABit) {
  const ScanProblem all(80, 130, 16, RandomScanSegments(80, 10));
  const ScanResult want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    const ScanResult got = all.Run(*GetParam().Make(threads));
    EXPECT_THAT(got.y, HasSameBits(want.y));
    EXPECT_THAT(got.states, HasSameBits(want.states));
  }
  const std::vector<int> offsets = Offsets(all.segments);
  size_t first = 0;
  for (size_t s = 0; s < all.segments.size(); ++s) {
    if (!all.segments[s].active()) continue;
    ScanProblem one = all;
    one.segments = {all.segments[s]};
    for (auto [values, width] : {std::pair(&one.u, one.channels),
                                 {&one.dt, one.channels},
                                 {&one.gate, one.channels},
                                 {&one.b, one.states},
                                 {&one.c, one.states}}) {
      *values = {values->begin() + offsets[s] * width, values->begin() + offsets[s + 1] * width};
    }
    const size_t n = static_cast<size_t>(all.segments[s].length) * all.channels;
    EXPECT_THAT(one.Run(*backend_).y,
                HasSameBits({want.y.begin() + first, want.y.begin() + first + n}))
        << "segment " << s;
    first += n;
  }
}

struct Discretized {
  std::vector<double> log_decay, v;
};

struct DiscretizeProblem {
  DiscretizeProblem(uint64_t seed, int entries, int heads, int dim)
      : entries(entries), heads(heads), dim(dim) {
    SeededRandom random(seed);
    u = random.NormalValues(int64_t{entries} * heads * dim, 2);
    dt = random.NormalValues(int64_t{entries} * heads, 3);
    dt_bias = random.NormalValues(heads, 2);
    a = random.UniformValues(heads, -16, 0);
  }
  Discretized Run(Backend& backend) const {
    Workbench bench(backend);
    DiscretizeArgs args;
    args.u = bench.Activations(u, {entries, heads, dim});
    args.dt = bench.Activations(dt, {entries, heads});
    args.dt_bias = bench.Floats(dt_bias, {heads});
    args.a = bench.Floats(a, {heads});
    args.least_step = least;
    args.most_step = most;
    args.log_decay = bench.NewActivations({entries, heads});
    args.v = bench.NewActivations({entries, heads, dim});
    bench.kernels().Discretize(args);
    return {bench.Read(args.log_decay), bench.Read(args.v)};
  }
  // Clamping to the limits adds no error.
  Discretized Bound(const Discretized& want) const {
    Discretized bound;
    for (size_t row = 0; row < dt.size(); ++row) {
      const double error = StepError(dt[row] + dt_bias[row % heads]) + kUnitF32;
      bound.log_decay.push_back(error * std::abs(want.log_decay[row]) + 16 * kTinyF32);
      for (int i = 0; i < dim; ++i) {
        bound.v.push_back(error * std::abs(want.v[row * dim + i]) + 16 * kTinyF32);
      }
    }
    return bound;
  }

  int entries, heads, dim;
  float least = 0, most = std::numeric_limits<float>::infinity();
  std::vector<double> u, dt, dt_bias, a;
};

TEST_P(ScanTest, DiscretizeMatchesReference) {
  uint64_t seed = 400;
  for (const int heads : {1, 3, 16, 21}) {
    for (const int dim : {1, 16, 24, 65}) {
      for (const int entries : {0, 1, 9}) {
        for (const bool limited : {false, true}) {
          ++seed;
          DiscretizeProblem problem(seed, entries, heads, dim);
          if (limited) problem.least = 0.05f, problem.most = 0.5f;
          const Discretized want = problem.Run(*reference_), got = problem.Run(*backend_);
          const Discretized bound = problem.Bound(want);
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << heads << " heads of " << dim
                                          << ", limited " << limited);
          EXPECT_THAT(got.log_decay, IsWithin(bound.log_decay, want.log_decay));
          EXPECT_THAT(got.v, IsWithin(bound.v, want.v));
        }
      }
    }
  }
}

TEST_P(ScanTest, StepsStayWithinTheirLimits) {
  DiscretizeProblem problem(500, 1, 3, 1);
  problem.least = 0.25f;
  problem.most = 0.5f;
  problem.dt = {-300, 0, 300};
  problem.dt_bias = {0, 0, 0};
  problem.a = {-1, -1, -2};
  problem.u = {4, 0, -8};
  const Discretized got = problem.Run(*backend_);
  EXPECT_THAT(got.log_decay, HasSameBits({-0.25, -0.5, -1}));
  EXPECT_THAT(got.v, HasSameBits({1, 0, -4}));
}

TEST_P(ScanTest, AddScaledMatchesReference) {
  uint64_t seed = 600;
  for (const int dim : {1, 15, 16, 100}) {
    for (const int rows : {0, 1, 13}) {
      ++seed;
      SeededRandom random(seed);
      const auto x = random.NormalValues(rows * dim), scale = random.NormalValues(dim);
      const auto before = random.NormalValues(rows * dim);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        const AddScaledArgs args = {.x = bench.Activations(x, {rows, dim}),
                                    .scale = bench.Floats(scale, {dim}),
                                    .y = bench.Activations(before, {rows, dim})};
        bench.kernels().AddScaled(args);
        return bench.Read(args.y);
      };
      std::vector<double> bound;
      for (int i = 0; i < rows * dim; ++i) {
        bound.push_back(2 * kUnitF32 * (std::abs(before[i]) + 2 * std::abs(x[i] * scale[i % dim])));
      }
      EXPECT_THAT(run(*backend_), IsWithin(bound, run(*reference_))) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ScanTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
