// DeltaMemoryPass on a GPU against the operations it stands for, on the same GPU.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// Both round keys and queries to f16, of unit roundoff 2^-11, after norms that may differ in their
// last digits: a few numbers are rounded the other way.
constexpr double kBound = 0x1p-11;

struct PassDims {
  int heads, value_heads, key_dim, value_dim;
  bool grouped;  // k, v and gates by entry; else by token, as q

  int keys() const { return heads * key_dim; }
  int values() const { return value_heads * value_dim; }
};

struct PassResult {
  bool fused;
  std::vector<double> out;  // entries of active segments, in order
  std::vector<double> states, windows;
};

struct PassProblem {
  static constexpr int kSlots = 6, kMemories = 3, kWidth = 4;

  PassProblem(uint64_t seed, PassDims dims, int longest)
      : dims(dims), longest(longest), segments(RandomSegments(seed, kSlots, kMemories, longest)) {
    SeededRandom random(seed);
    entries = Entries(segments);
    tokens = entries / 2 + 1;
    for (int e = 0; e < entries; ++e) entry_tokens.push_back(random.Int(0, tokens - 1));
    const int rows = dims.grouped ? entries : tokens;
    q = random.NormalValues(int64_t{tokens} * dims.keys(), 2);
    k = random.NormalValues(int64_t{rows} * dims.keys(), 2);
    v = random.NormalValues(int64_t{rows} * dims.values(), 2);
    a = random.NormalValues(int64_t{rows} * dims.value_heads);
    b = random.NormalValues(int64_t{rows} * dims.value_heads);
    a_log = random.NormalValues(dims.value_heads);
    dt_bias = random.NormalValues(dims.value_heads);
    q_conv = random.NormalValues(dims.keys() * kWidth);
    k_conv = random.NormalValues(dims.keys() * kWidth);
    v_conv = random.NormalValues(dims.values() * kWidth);
    state = random.NormalValues(StateElements());
    key_window = random.NormalValues((kWidth - 1) * dims.keys());
    value_window = random.NormalValues((kWidth - 1) * dims.values());
  }
  int64_t StateElements() const { return int64_t{dims.values()} * dims.key_dim; }

  // What is fresh holds what its slab happened to hold: NaN, here.
  void Load(SlabPool& slabs, const std::vector<double>& values) const {
    for (int i = 0; i < kSlots * kMemories; ++i) {
      bool fresh = false;
      for (const SegmentSpec& s : segments) {
        fresh |= s.fresh && s.slot == i / kMemories && s.memory == i % kMemories;
      }
      if (!fresh) slabs.Write(i / kMemories, i % kMemories, values);
    }
  }
  void ReadActive(SlabPool& slabs, std::vector<double>& to) const {
    for (const SegmentSpec& s : segments) {
      if (!s.active()) continue;
      const std::vector<double> values = slabs.Read(s.slot, s.memory);
      to.insert(to.end(), values.begin(), values.end());
    }
  }

  // As Backend::output_dtype may have them.
  void RoundProjections() { Round({&q, &k, &v}); }
  // As StateFormat::bf16_window_dtype may.
  void RoundWindows() { Round({&key_window, &value_window}); }
  static void Round(std::initializer_list<std::vector<double>*> all) {
    for (std::vector<double>* values : all) {
      for (double& value : *values) value = RoundTo(value, DType::kBF16);
    }
  }

  PassResult Run(Backend& backend, bool fuse, bool says_longer = false,
                 DType projected = DType::kF32, DType window_dtype = DType::kF32) const {
    Workbench bench(backend);
    const int64_t history = kWidth - 1;
    SlabPool states(bench, kSlots, kMemories, StateElements(), DType::kF32);
    SlabPool q_windows(bench, kSlots, kMemories, history * dims.keys(), window_dtype);
    SlabPool k_windows(bench, kSlots, kMemories, history * dims.keys(), window_dtype);
    SlabPool v_windows(bench, kSlots, kMemories, history * dims.values(), window_dtype);
    Load(states, state);
    Load(q_windows, key_window);
    Load(k_windows, key_window);
    Load(v_windows, value_window);

    Segments uploaded = Upload(bench, segments);
    if (longest == 1) uploaded.longest = 1;  // a decode step says so
    if (says_longer) {                       // a device may then take the others apart
      for (const SegmentSpec& s : segments) uploaded.longer += s.length > 1 ? 1 : 0;
    }
    const int rows = dims.grouped ? entries : tokens;
    const TensorView tokens_of = bench.Ints(entry_tokens);
    const TensorView rows_of = dims.grouped ? TensorView{} : tokens_of;
    const auto convolution = [&](const std::vector<double>& x, int64_t count, TensorView from,
                                 const std::vector<double>& weight, int channels,
                                 SlabPool& windows) {
      return ShortConvArgs{.x = bench.Values(x, {count, channels}, projected),
                           .entry_rows = from,
                           .weight = bench.Floats(weight, {channels, kWidth}),
                           .segments = uploaded,
                           .window = windows.view(),
                           .y = bench.NewActivations({entries, channels})};
    };
    DeltaMemoryPassArgs args{
        .q = convolution(q, tokens, tokens_of, q_conv, dims.keys(), q_windows),
        .k = convolution(k, rows, rows_of, k_conv, dims.keys(), k_windows),
        .v = convolution(v, rows, rows_of, v_conv, dims.values(), v_windows),
        .q_scale = 1 / std::sqrt(static_cast<float>(dims.key_dim)),
        .gates = {.a = bench.Activations(a, {rows, dims.value_heads}),
                  .b = bench.Activations(b, {rows, dims.value_heads}),
                  .a_log = bench.Floats(a_log, {dims.value_heads}),
                  .dt_bias = bench.Floats(dt_bias, {dims.value_heads}),
                  .entry_rows = rows_of,
                  .log_decay = bench.NewActivations({entries, dims.value_heads}),
                  .beta = bench.NewActivations({entries, dims.value_heads})}};
    const auto shaped = [&](TensorView view, Shape shape) {
      view.shape = shape;
      return view;
    };
    args.rule.q = shaped(args.q.y, {entries, dims.heads, dims.key_dim});
    args.rule.k = shaped(args.k.y, {entries, dims.heads, dims.key_dim});
    args.rule.v = shaped(args.v.y, {entries, dims.value_heads, dims.value_dim});
    args.rule.log_decay = args.gates.log_decay;
    args.rule.beta = args.gates.beta;
    args.rule.segments = uploaded;
    args.rule.state = states.view();
    args.rule.out = args.rule.v;

    Kernels& kernels = bench.kernels();
    PassResult result;
    result.fused = fuse && kernels.DeltaMemoryPass(args);
    if (!result.fused) {
      const ShortConvArgs convolutions[] = {args.q, args.k, args.v};
      kernels.ShortConv(convolutions);
      kernels.L2Norm({.x = args.rule.q, .scale = args.q_scale, .y = args.rule.q});
      kernels.L2Norm({.x = args.rule.k, .y = args.rule.k});
      kernels.DeltaGates(args.gates);
      kernels.GatedDeltaRule(args.rule);
    }
    std::vector<int> active;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    result.out = PickEntries(bench.Read(args.rule.out), dims.values(), segments, active);
    ReadActive(states, result.states);
    for (SlabPool* windows : {&q_windows, &k_windows, &v_windows}) {
      ReadActive(*windows, result.windows);
    }
    return result;
  }

  PassDims dims;
  int longest;
  std::vector<SegmentSpec> segments;
  int entries, tokens;
  std::vector<int> entry_tokens;
  std::vector<double> q, k, v, a, b, a_log, dt_bias, q_conv, k_conv, v_conv;
  std::vector<double> state, key_window, value_window;
};

class CudaDeltaMemoryPassTest : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBackends()[0].device != "cuda") GTEST_SKIP() << "needs MNEME_TEST_DEVICE=cuda";
  }
  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("cuda", options);
    CHECK(backend.ok()) << backend.status();
    return *std::move(backend);
  }
};

TEST_F(CudaDeltaMemoryPassTest, AgreesWithItsParts) {
  const std::unique_ptr<Backend> backend = Make({.compute_dtype = DType::kBF16});
  uint64_t seed = 500;
  for (const PassDims dims : {PassDims{4, 4, 256, 256, true}, PassDims{2, 4, 128, 64, false},
                              PassDims{1, 1, 64, 48, true}, PassDims{3, 3, 64, 80, false}}) {
    for (const int longest : {2, 5, 17, 40, 150}) {
      ++seed;
      SCOPED_TRACE("seed " + std::to_string(seed));
      const PassProblem p(seed, dims, longest);
      const PassResult want = p.Run(*backend, /*fuse=*/false);
      for (const bool says_longer : {false, true}) {
        const PassResult got = p.Run(*backend, /*fuse=*/true, says_longer);
        EXPECT_TRUE(got.fused);
        EXPECT_LE(RelativeError(got.out, want.out), kBound);
        EXPECT_LE(RelativeError(got.states, want.states), kBound);
        EXPECT_THAT(got.windows, HasSameBits(want.windows));
      }
    }
  }
}

TEST_F(CudaDeltaMemoryPassTest, TakesRoundedProjectionsAndWindowsAsTheNumbersTheyAre) {
  const std::unique_ptr<Backend> backend = Make({.compute_dtype = DType::kBF16});
  uint64_t seed = 700;
  for (const PassDims dims : {PassDims{4, 4, 256, 256, true}, PassDims{2, 4, 128, 64, false},
                              PassDims{1, 1, 64, 48, true}}) {
    for (const int longest : {1, 2, 17, 150}) {
      ++seed;
      SCOPED_TRACE("seed " + std::to_string(seed));
      PassProblem p(seed, dims, longest);
      p.RoundWindows();
      const PassProblem exact = p;
      p.RoundProjections();
      for (const bool fuse : {false, true}) {
        for (const bool says_longer : {false, true}) {
          const PassResult want = p.Run(*backend, fuse, says_longer);
          // Inputs of windows in bf16 are rounded, if they were not before.
          for (const PassResult& got :
               {p.Run(*backend, fuse, says_longer, DType::kBF16),
                p.Run(*backend, fuse, says_longer, DType::kBF16, DType::kBF16),
                exact.Run(*backend, fuse, says_longer, DType::kF32, DType::kBF16)}) {
            EXPECT_EQ(got.fused, fuse);
            EXPECT_THAT(got.out, HasSameBits(want.out));
            EXPECT_THAT(got.states, HasSameBits(want.states));
            EXPECT_THAT(got.windows, HasSameBits(want.windows));
          }
        }
      }
    }
  }
}

TEST_F(CudaDeltaMemoryPassTest, TokensAgreeWithItsParts) {
  const std::unique_ptr<Backend> backend = Make({});
  uint64_t seed = 600;
  for (const PassDims dims : {PassDims{4, 4, 256, 256, true}, PassDims{2, 4, 64, 48, false},
                              PassDims{2, 4, 40, 24, true}, PassDims{3, 3, 40, 24, false}}) {
    ++seed;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PassProblem p(seed, dims, /*longest=*/1);
    const PassResult want = p.Run(*backend, /*fuse=*/false);
    const PassResult got = p.Run(*backend, /*fuse=*/true);
    EXPECT_TRUE(got.fused);
    EXPECT_LE(RelativeError(got.out, want.out), 1e-5);
    EXPECT_LE(RelativeError(got.states, want.states), 1e-5);
    EXPECT_THAT(got.windows, HasSameBits(want.windows));
  }
}

}  // namespace
}  // namespace mneme
