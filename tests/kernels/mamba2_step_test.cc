// Mamba2Step and Mamba2Output against the operations that they stand for.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/compared_backend.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct Mamba2Result {
  std::vector<double> y, states;
};

// `fused` is whether Mamba2Step did it; else its parts do.
Mamba2Result StepMamba2(Backend& backend, int heads, int dim, int states, bool gated,
                        bool try_fused, bool* fused) {
  const std::vector<SegmentSpec> segments = {{.length = 1, .slot = 2},
                                             {.length = 0, .slot = 1},
                                             {.length = 1, .slot = -1},
                                             {.length = 1, .slot = 0, .memory = 1, .fresh = true},
                                             {.length = 1, .slot = 3, .memory = 1}};
  const std::vector<int> active = {0, 3, 4};
  constexpr int kSlots = 4, kMemories = 2;
  const int entries = Entries(segments), channels = heads * dim;
  SeededRandom random(states + dim);
  Workbench bench(backend);
  SlabPool slabs(bench, kSlots, kMemories, int64_t{channels} * states,
                 backend.state_format().memory_dtype);
  for (int i = 0; i < kSlots * kMemories; ++i) {
    std::vector<double> state = random.NormalValues(int64_t{channels} * states);
    for (double& value : state) value = RoundTo(value, DType::kF32);
    if (!IsFresh(segments, i / kMemories, i % kMemories)) {
      slabs.Write(i / kMemories, i % kMemories, state);
    }
  }
  const Shape flat = {entries, channels}, shape = {entries, heads, dim};
  const auto activations = [&](const Shape& of) {
    return bench.Activations(random.NormalValues(of.elements()), of);
  };
  const auto floats = [&](int n, double least, double most) {
    return bench.Floats(random.UniformValues(n, least, most), {n});
  };
  const TensorView u = activations(shape), v = bench.NewActivations(shape);
  TensorView flat_u = u, read = v;
  flat_u.shape = read.shape = flat;
  Mamba2StepArgs args;
  args.discretize = {.u = u,
                     .dt = activations({entries, heads}),
                     .dt_bias = floats(heads, -2, 2),
                     .a = floats(heads, -8, 0),
                     .least_step = 0.05f,
                     .most_step = 1.5f,
                     .log_decay = bench.NewActivations({entries, heads}),
                     .v = v};
  args.memory = {
      .rule = {MatrixRule::Decay::kHead, MatrixRule::Correction::kNone, MatrixRule::Read::kAfter},
      .q = activations({entries, 1, states}),
      .k = activations({entries, 1, states}),
      .v = v,
      .log_decay = args.discretize.log_decay,
      .segments = Upload(bench, segments),
      .state = slabs.view(),
      .out = v};
  args.memory.segments.longest = 1;
  args.skip = {.x = flat_u, .scale = floats(channels, -1, 1), .y = read};
  const TensorView gate = activations(flat);
  if (gated) args.gate = {.gate = gate, .up = read, .y = bench.NewActivations(flat)};
  const std::vector<std::byte> before = slabs.Bytes();
  *fused = try_fused && bench.kernels().Mamba2Step(args);
  if (!*fused) {
    bench.kernels().Discretize(args.discretize);
    bench.kernels().MatrixMemory(args.memory);
    bench.kernels().AddScaled(args.skip);
    if (gated) bench.kernels().SwiGlu(args.gate);
  }
  EXPECT_TRUE(slabs.OnlyTouched(before, [&](int slot, int memory) {
    return IsActive(segments, slot, memory);
  })) << "state outside the segments' memories was written";
  Mamba2Result result;
  result.y = PickEntries(bench.Read(gated ? args.gate.y : read), channels, segments, active);
  for (const int i : active) {
    const std::vector<double> state = slabs.Read(segments[i].slot, segments[i].memory);
    result.states.insert(result.states.end(), state.begin(), state.end());
  }
  return result;
}

using Mamba2StepTest = ComparedBackendTest;

TEST_P(Mamba2StepTest, AStepOfMamba2IsItsParts) {
  const bool cuda = GetParam().device == "cuda";
  for (const int states : {32, 64, 128, 256}) {
    for (const int dim : {64, 20}) {
      for (const bool gated : {false, true}) {
        SCOPED_TRACE(testing::Message() << states << " states of " << dim << ", gated " << gated);
        bool fused = false, unused = false;
        const Mamba2Result got = StepMamba2(*backend_, 3, dim, states, gated, true, &fused);
        if (cuda) {
          EXPECT_EQ(fused, states != 32);
        }
        const Mamba2Result want = StepMamba2(*backend_, 3, dim, states, gated, false, &unused);
        EXPECT_LE(RelativeError(got.y, want.y), 1e-6);
        EXPECT_LE(RelativeError(got.states, want.states), 1e-6);
        const Mamba2Result reference =
            StepMamba2(*reference_, 3, dim, states, gated, false, &unused);
        EXPECT_LE(RelativeError(got.y, reference.y), 1e-5);
        EXPECT_LE(RelativeError(got.states, reference.states), 1e-5);
      }
    }
  }
}

TEST_P(Mamba2StepTest, TheOutputOfMamba2IsItsParts) {
  for (const int dim : {4, 64, 100, 2048, 4096, 4100, 33}) {
    for (const int groups : {1, 3}) {
      SCOPED_TRACE(testing::Message() << groups << " groups of " << dim);
      const int rows = 5, channels = groups * dim;
      const auto run = [&](bool try_fused, bool* fused) {
        SeededRandom random(dim);
        Workbench bench(*backend_);
        const Shape flat = {rows, channels}, by_group = {rows, groups, dim};
        const auto activations = [&] {
          return bench.Activations(random.NormalValues(rows * channels), flat);
        };
        Mamba2OutputArgs args;
        args.skip = {.x = activations(),
                     .scale = bench.Floats(random.NormalValues(channels), {channels}),
                     .y = activations()};
        args.gate = {.gate = activations(), .up = args.skip.y, .y = args.skip.y};
        args.norm = {.x = args.skip.y,
                     .weight = bench.Floats(random.NormalValues(channels), {groups, dim}),
                     .y = bench.NewActivations(by_group)};
        args.norm.x.shape = by_group;
        *fused = try_fused && bench.kernels().Mamba2Output(args);
        if (!*fused) {
          bench.kernels().AddScaled(args.skip);
          bench.kernels().SwiGlu(args.gate);
          bench.kernels().GatedRmsNorm(args.norm);
        }
        return bench.Read(args.norm.y);
      };
      bool fused = false, unused = false;
      const std::vector<double> got = run(true, &fused), want = run(false, &unused);
      if (GetParam().device == "cuda") {
        EXPECT_EQ(fused, dim % 4 == 0 && dim <= 4096);
      }
      EXPECT_LE(RelativeError(got, want), 2 * (SumError(dim) + kFunctionError));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Mamba2StepTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
