// Rwkv7Step and Rwkv7LayerStep: a step as one operation, beside its parts.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/recurrent_steps.h"
#include "tests/kernels/compared_backend.h"
#include "tests/kernels/rwkv_problems.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Rwkv7StepTest = ComparedBackendTest;

struct RwkvStepResult {
  Values y, states;
};

struct StepCase {
  std::vector<SegmentSpec> segments;
  int heads, dim;
  bool residual;
  // The products that make decays, rates, output gates and gates of the residual have these; none:
  // the step is given what they would make.
  std::vector<int> ranks;
};

RwkvStepResult StepRwkv7(Backend& backend, const StepCase& step, bool try_fused, bool* fused) {
  const std::vector<SegmentSpec>& segments = step.segments;
  constexpr int kMemories = 2;
  const int entries = Entries(segments), channels = step.heads * step.dim;
  int slots = 0;
  for (const SegmentSpec& segment : segments) slots = std::max(slots, segment.slot + 1);
  SeededRandom random(step.dim);
  Workbench bench(backend);
  RecurrentSteps* const steps = RecurrentStepsOf(bench.kernels());
  const int64_t elements = int64_t{step.heads} * step.dim * step.dim;
  SlabPool slabs(bench, slots, kMemories, elements, backend.state_format().memory_dtype);
  for (int i = 0; i < slots * kMemories; ++i) {
    Values state = random.NormalValues(elements);
    for (double& value : state) value = RoundTo(value, DType::kF32);
    if (!IsFresh(segments, i / kMemories, i % kMemories)) {
      slabs.Write(i / kMemories, i % kMemories, state);
    }
  }
  const Shape shape = {entries, step.heads, step.dim}, heads = {step.heads, step.dim};
  const Shape flat = {entries, channels};
  const auto activations = [&](const Shape& of, double scale = 1) {
    return bench.Activations(random.NormalValues(entries * channels, scale), of);
  };
  const auto weights = [&](const Shape& of) {
    return bench.Floats(random.NormalValues(channels), of);
  };
  std::vector<PackedMatrix> ups(step.ranks.size());
  std::vector<LinearArgs> low_rank;
  const auto made = [&](const Shape& of, size_t number, double scale = 1) {
    if (step.ranks.empty()) return activations(of, scale);
    const int rank = step.ranks[number];
    const auto rounded = [&](int64_t count, double deviation) {
      Values values = random.NormalValues(count, deviation);
      for (double& value : values) value = RoundTo(value, DType::kBF16);
      return values;
    };
    const Values x = rounded(int64_t{entries} * rank, 1);
    const Values up = rounded(int64_t{channels} * rank, scale / std::sqrt(rank));
    if (steps == nullptr) {
      Values y;
      for (int entry = 0; entry < entries; ++entry) {
        for (int channel = 0; channel < channels; ++channel) {
          double sum = 0;
          for (int i = 0; i < rank; ++i) sum += x[entry * rank + i] * up[channel * rank + i];
          y.push_back(RoundTo(sum, DType::kF32));
        }
      }
      return bench.Activations(y, of);
    }
    ups[number] = bench.Pack(up, channels, rank, DType::kBF16);
    TensorView y = bench.NewActivations(flat);
    low_rank.push_back({.x = bench.Values(x, {entries, rank}, DType::kBF16),
                        .weights = {&ups[number], 1},
                        .y = y});
    y.shape = of;
    return y;
  };
  Rwkv7StepArgs args;
  const TensorView k = activations(shape), v = activations(flat);
  const TensorView decay = made(shape, 0, 2), rate = made(shape, 1, 2);
  TensorView values = v;
  values.shape = shape;
  args.gates = {.decay = decay,
                .rate = rate,
                .decay_bias = weights(heads),
                .rate_bias = weights(heads),
                .k_k = weights(heads),
                .k_a = weights(heads),
                .k = k,
                .log_decay = decay,
                .c = bench.NewActivations(shape),
                .e = rate};
  if (step.residual) {
    args.residual = {
        .first = activations(flat), .gate = made(flat, 3), .bias = weights({channels}), .v = v};
  }
  args.memory = {
      .rule = {MatrixRule::Decay::kKey, MatrixRule::Correction::kGeneral, MatrixRule::Read::kAfter},
      .q = activations(shape),
      .k = k,
      .v = values,
      .log_decay = decay,
      .c = args.gates.c,
      .e = rate,
      .segments = Upload(bench, segments),
      .state = slabs.view(),
      .out = bench.NewActivations(shape)};
  args.memory.segments.longest = 1;
  args.output = {.x = args.memory.out,
                 .weight = weights(heads),
                 .bias = weights(heads),
                 .eps = 64e-5f,
                 .r = args.memory.q,
                 .k = k,
                 .r_k = weights(heads),
                 .v = values,
                 .gate = made(shape, 2),
                 .y = bench.NewActivations(shape)};
  const std::vector<std::byte> before = slabs.Bytes();
  *fused = try_fused &&
           (step.ranks.empty()
                ? bench.kernels().Rwkv7Step(args)
                : steps != nullptr && steps->Rwkv7LayerStep({.low_rank = low_rank, .step = args}));
  if (!*fused) {
    if (!low_rank.empty()) bench.kernels().Linear(low_rank);
    bench.kernels().Rwkv7Gates(args.gates);
    if (step.residual) bench.kernels().ValueResidual(args.residual);
    bench.kernels().MatrixMemory(args.memory);
    bench.kernels().Rwkv7Output(args.output);
  }
  EXPECT_TRUE(slabs.OnlyTouched(before, [&](int slot, int memory) {
    return IsActive(segments, slot, memory);
  })) << "state outside the segments' memories was written";
  std::vector<int> active;
  RwkvStepResult result;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i].active()) continue;
    active.push_back(static_cast<int>(i));
    const Values state = slabs.Read(segments[i].slot, segments[i].memory);
    result.states.insert(result.states.end(), state.begin(), state.end());
  }
  result.y = PickEntries(bench.Read(args.output.y), channels, segments, active);
  return result;
}

TEST_P(Rwkv7StepTest, AStepOfRwkv7IsItsParts) {
  const bool cuda = GetParam().device == "cuda";
  for (const int dim : {32, 64, 128}) {
    for (const bool residual : {false, true}) {
      SCOPED_TRACE(testing::Message() << dim << " keys, residual " << residual);
      bool fused = false, unused = false;
      const StepCase step = {SingleEntries(), 3, dim, residual, {}};
      const RwkvStepResult got = StepRwkv7(*backend_, step, true, &fused);
      if (cuda) {
        EXPECT_EQ(fused, dim != 32);
      }
      const RwkvStepResult want = StepRwkv7(*backend_, step, false, &unused);
      // The parts' sums in other orders, of a norm's deviations the largest.
      EXPECT_LE(RelativeError(got.y, want.y), 1e-5);
      EXPECT_LE(RelativeError(got.states, want.states), 1e-5);
      const RwkvStepResult exact = StepRwkv7(*reference_, step, false, &unused);
      EXPECT_LE(RelativeError(got.y, exact.y), 1e-5);
      EXPECT_LE(RelativeError(got.states, exact.states), 1e-5);
    }
  }
}

TEST_P(Rwkv7StepTest, AStepOfRwkv7WithItsProductsOfLowRankIsItsParts) {
  const std::unique_ptr<Backend> backend = GetParam().Make(2, DType::kBF16);
  std::vector<SegmentSpec> many;
  for (int i = 0; i < 70; ++i) {
    // One without a token, one that is not of this batch, and one that begins.
    many.push_back({i == 3 ? 0 : 1, i == 5 ? -1 : (i * 37 + 11) % 71, i % 2, i == 40});
  }
  for (const bool residual : {false, true}) {
    std::vector<StepCase> cases = {{SingleEntries(), 3, 64, residual, {64, 32, 128, 32}}};
    if (GetParam().device == "cuda") {  // others go part by part
      cases.push_back({many, 3, 64, residual, {96, 64, 256, 32}});
      cases.push_back({many, 2, 128, residual, {64, 48, 128, 40}});
    }
    for (const StepCase& step : cases) {
      SCOPED_TRACE(testing::Message() << step.segments.size() << " rows, " << step.heads
                                      << " heads of " << step.dim << ", residual " << residual);
      bool fused = false, unused = false;
      const RwkvStepResult got = StepRwkv7(*backend, step, true, &fused);
      if (GetParam().device == "cuda") {
        EXPECT_TRUE(fused);
      }
      const RwkvStepResult exact = StepRwkv7(*reference_, step, false, &unused);
      EXPECT_LE(RelativeError(got.y, exact.y), 1e-5);
      EXPECT_LE(RelativeError(got.states, exact.states), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Rwkv7StepTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
