// The fused parts of networks with several streams (kernels/stream_steps.h), on a GPU, against the
// operations that they stand for.
#include "kernels/stream_steps.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Values = std::vector<double>;
using Kind = StreamMixing::Kind;

class CudaStreamStepsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    backend_ = AvailableBackends()[0].Make(2, DType::kBF16);
  }
  std::unique_ptr<Backend> backend_;
};

// Errors are relative in norm: sums of some hundred to some thousand terms, and functions of a few
// ulp; of what is rounded, one rounding.
constexpr double kStepBound = 3e-5;

double ErrorOf(const Values& got, const Values& want) {
  return got.empty() && want.empty() ? 0 : RelativeError(got, want);
}

// --- PassStreams ---------------------------------------------------------------------------------

struct PassProblem {
  Kind kind = Kind::kConstrained;
  int streams = 4, dim = 1024;
  bool reads_only = false, has_write = true, rounds = true, has_mean = true, keeps_input = false;
};

struct Passed {
  bool fused = false;
  Values streams, post, input, normed, mean, sums;
};

Passed RunPass(Backend& backend, const PassProblem& p, uint64_t seed, bool fuse) {
  // A segment of padding and one of a chunk that begins are among them.
  const std::vector<SegmentSpec> segments = {{.length = 1, .slot = 2},
                                             {.length = 0, .slot = 1},
                                             {.length = 1, .slot = -1},
                                             {.length = 1, .slot = 0},
                                             {.length = 1, .slot = 3}};
  const int tokens = Entries(segments), streams = p.streams, dim = p.dim;
  SeededRandom random(seed);
  Workbench bench(backend);
  const auto floats = [&](Shape shape, double scale = 1) {
    return bench.Floats(random.NormalValues(shape.elements(), scale), shape);
  };
  const TensorView x =
      bench.Activations(random.NormalValues(tokens * streams * dim, 2), {tokens, streams, dim});
  const TensorView written = bench.Activations(random.NormalValues(tokens * dim), {tokens, dim});
  const TensorView post =
      bench.Activations(random.NormalValues(tokens * streams), {tokens, streams});
  PassStreamsArgs args = {
      .write = {.x = p.has_write ? written : TensorView{}, .post = post, .y = x},
      .read = {.mixing = {.kind = p.kind,
                          .gain = floats({dim}, 0.3),
                          .alpha = floats({streams, 1 + streams}),
                          .alpha_weight = floats({1 + streams, dim}, 0.2),
                          .scales = floats({3})},
               .x = x,
               .y = bench.NewActivations({tokens, dim})}};
  if (!p.reads_only) {
    args.read.mixing.beta = floats({streams});
    args.read.mixing.beta_weight = floats({dim}, 0.2);
    args.read.post = post;
  }
  SlabPool pool(bench, 4, 1, dim, DType::kF32);
  for (const int slot : {0, 1, 2, 3}) pool.Write(slot, 0, random.NormalValues(dim));
  const TensorView input = args.read.y;
  const DType dtype = p.rounds && fuse ? DType::kBF16 : DType::kF32;
  const auto rounded = [&] {
    return bench.Values(Values(static_cast<size_t>(tokens * dim)), {tokens, dim}, dtype);
  };
  for (RmsNormArgs& norm : args.norms) {
    norm = {.x = input, .weight = floats({dim}), .eps = 1e-3f, .y = rounded()};
  }
  if (p.has_mean) {
    args.mean = {.x = args.norms[1].y,
                 .chunk = 4,
                 .positions = bench.Longs({5, 3, 8, 7}),
                 .segments = Upload(bench, segments),
                 .sums = pool.view(),
                 .y = rounded()};
    args.mean.segments.longest = 1;
  }
  Passed passed;
  if (fuse) {
    if (!p.keeps_input) args.read.y = {};
    passed.fused = StreamStepsOf(bench.kernels())->PassStreams(args);
  } else {
    Kernels& kernels = bench.kernels();
    if (p.has_write) kernels.WriteStreams(args.write);
    kernels.ReadStreams(args.read);
    for (const RmsNormArgs& norm : args.norms) kernels.RmsNorm(norm);
    if (p.has_mean) kernels.ChunkMean(args.mean);
  }
  passed.streams = bench.Read(x);
  passed.post = bench.Read(post);
  if (p.keeps_input) passed.input = bench.Read(input);
  for (const RmsNormArgs& norm : args.norms) {
    for (const double value : bench.Read(norm.y)) passed.normed.push_back(value);
  }
  if (p.has_mean) {
    passed.mean = PickEntries(bench.Read(args.mean.y), dim, segments, {0, 3, 4});
    for (const int slot : {0, 1, 2, 3}) {
      for (const double value : pool.Read(slot, 0)) passed.sums.push_back(value);
    }
  }
  return passed;
}

void ExpectSame(Backend& backend, const PassProblem& p, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << " kind " << static_cast<int>(p.kind)
                                  << " streams " << p.streams << " dim " << p.dim);
  const Passed got = RunPass(backend, p, seed, true), want = RunPass(backend, p, seed, false);
  ASSERT_TRUE(got.fused);
  const double of_products = p.rounds ? kUnitBF16 : kStepBound;
  EXPECT_LE(RelativeError(got.streams, want.streams), kStepBound);
  EXPECT_LE(RelativeError(got.post, want.post), kStepBound);
  EXPECT_LE(ErrorOf(got.input, want.input), kStepBound);
  EXPECT_LE(RelativeError(got.normed, want.normed), of_products);
  if (!p.has_mean) return;
  EXPECT_LE(RelativeError(got.mean, want.mean), of_products);
  EXPECT_LE(RelativeError(got.sums, want.sums), kStepBound);
}

TEST_F(CudaStreamStepsTest, APassIsItsParts) {
  uint64_t seed = 100;
  for (const Kind kind : {Kind::kConstrained, Kind::kSum, Kind::kDynamic}) {
    for (const int streams : {1, 2, 3, 4}) {
      for (const int dim : {4, 64, 1024, 1028, 2048}) {
        for (const bool reads_only : {false, true}) {
          ++seed;
          ExpectSame(*backend_,
                     {.kind = kind,
                      .streams = streams,
                      .dim = dim,
                      .reads_only = reads_only,
                      .has_write = seed % 3 != 0,
                      .rounds = seed % 2 == 0,
                      .has_mean = seed % 5 != 0,
                      .keeps_input = seed % 4 == 0},
                     seed);
        }
      }
    }
  }
}

TEST_F(CudaStreamStepsTest, APassLeavesWhatItCannotTakeToItsParts) {
  EXPECT_FALSE(RunPass(*backend_, {.streams = 5, .dim = 64}, 1, true).fused);
  EXPECT_FALSE(RunPass(*backend_, {.dim = 2052}, 2, true).fused);
  EXPECT_FALSE(RunPass(*backend_, {.dim = 30}, 3, true).fused);
}

// --- GatedMemory ---------------------------------------------------------------------------------

struct GatedResult {
  bool fused = false;
  MemoryProblem::Trained trained;
  Values y;
};

GatedResult RunGated(Backend& backend, const MemoryProblem& p, bool fuse, bool settled) {
  Workbench bench(backend);
  const MemoryProblem::Loaded loaded = p.Load(bench);
  NeuralMemoryArgs memory = loaded.args;
  memory.segments.longest = 0;
  for (const SegmentSpec& s : p.segments) {
    memory.segments.longest = std::max(memory.segments.longest, s.length);
  }
  const int64_t entries = memory.q.shape[0], width = memory.q.shape[1] * memory.q.shape[2];
  SeededRandom random(77);
  const TensorView gate =
      bench.Activations(random.NormalValues(entries * p.rule.heads), {entries, p.rule.heads});
  const TensorView y = bench.Values(Values(static_cast<size_t>(entries * width)), {entries, width},
                                    fuse ? DType::kBF16 : DType::kF32);
  GatedResult result;
  if (fuse) {
    result.fused = StreamStepsOf(bench.kernels())
                       ->GatedMemory({.memory = memory, .gate = gate, .y = y, .settled = settled});
  } else {
    Kernels& kernels = bench.kernels();
    for (const TensorView& logits : {memory.rate, memory.momentum, gate}) {
      if (logits.empty()) continue;
      const ActivateArgs sigmoid[] = {
          {.x = logits, .activation = Activation::kSigmoid, .y = logits}};
      kernels.Activate(sigmoid);
    }
    kernels.KeepGate({.x = memory.keep, .y = memory.keep});
    kernels.NeuralMemory(memory);
    TensorView read = memory.out;
    read.shape = {entries, width};
    kernels.Multiply({.a = read, .b = gate, .y = y});
  }
  result.trained = p.Results(bench, loaded);
  result.y = p.ActiveRows(bench, y, static_cast<int>(width));
  return result;
}

// One of four sessions takes `length` tokens at once, and one begins with `begun`. `empty`
// segments, four at least, are beside theirs: so many that those of one token are most.
void ExpectGatedIsItsParts(Backend& backend, uint64_t seed, const MemoryRule& rule, int length,
                           int begun, bool settled, int empty = 4) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", segments of " << length << ", " << empty
                                  << " of none");
  std::vector<SegmentSpec> segments = {{.length = length, .slot = 2},
                                       {.length = 1, .slot = -1},
                                       {.length = begun, .slot = 3, .fresh = true},
                                       {.length = 1, .slot = 0}};
  segments.insert(segments.begin() + 2, empty, {.length = 0, .slot = 1});
  MemoryProblem p(seed, rule, segments);
  SeededRandom random(seed);
  for (double& x : p.rate) x = static_cast<float>(-4 + x);
  p.keep = random.NormalValues(static_cast<int64_t>(p.keep.size()));
  for (double& x : p.keep) x = static_cast<float>(x - 3);
  const GatedResult got = RunGated(backend, p, true, settled);
  const GatedResult want = RunGated(backend, p, false, false);
  ASSERT_TRUE(got.fused);
  EXPECT_LE(RelativeError(got.trained.out, want.trained.out), kStepBound);
  EXPECT_LE(ErrorOf(got.trained.loss, want.trained.loss), kStepBound);
  EXPECT_LE(RelativeError(got.trained.states, want.trained.states), kStepBound);
  EXPECT_LE(RelativeError(got.y, want.y), kUnitBF16);
}

constexpr MemoryRule kTitansPytorch = {.heads = 4,
                                       .dim = 64,
                                       .hidden = 128,
                                       .norm = MemoryRule::Norm::kLayer,
                                       .trains_gain = true,
                                       .gain_offset = 1,
                                       .step = 4,
                                       .anchor_period = 16};

TEST_F(CudaStreamStepsTest, AGatedMemoryIsItsParts) {
  std::vector<MemoryRule> rules(7, kTitansPytorch);
  rules[1].anchor_period = 4;  // no anchor but W
  rules[2].anchor_period = 0;
  rules[2].loss = false;
  rules[3].hidden = 256;  // more than one block takes
  rules[3].initial_of_all = true;
  rules[4] = {.heads = 2, .dim = 32, .hidden = 40, .step = 3, .anchor_period = 6, .orders = 0};
  rules[5].anchor_period = 8;  // tokens that come alone, or few, begin a period
  rules[5].initial_of_all = true;
  rules[6].step = rules[6].anchor_period = 8;
  rules[6].loss = false;
  // Kernels that begin early do otherwise among few heads than among many.
  constexpr int kEmpty[] = {4, 20, 40};
  uint64_t seed = 300;
  for (const MemoryRule& rule : rules) {
    for (const int length : {1, 3, 5, 9}) {
      for (int round = 0; round < 5; ++round) {
        ExpectGatedIsItsParts(*backend_, ++seed, rule, length, 1 + round, round % 2 == 0,
                              kEmpty[round % 3]);
      }
    }
  }
}

// So few that racecheck gets through them.
TEST_F(CudaStreamStepsTest, TokensThatEndAStepOfAGatedMemory) {
  MemoryRule rule = kTitansPytorch;
  rule.heads = 1;
  rule.anchor_period = 8;
  for (const uint64_t seed : {304, 308}) {
    ExpectGatedIsItsParts(*backend_, seed, rule, /*length=*/1, /*begun=*/1, /*settled=*/true);
    ExpectGatedIsItsParts(*backend_, seed, rule, /*length=*/3, /*begun=*/2, /*settled=*/true);
  }
}

TEST_F(CudaStreamStepsTest, AGatedMemoryLeavesWhatItCannotTakeToItsParts) {
  const std::vector<SegmentSpec> segments = {{.length = 1, .slot = 0}};
  EXPECT_FALSE(RunGated(*backend_, MemoryProblem(1, {.orders = 2}, segments), true, false).fused);
  EXPECT_FALSE(RunGated(*backend_, MemoryProblem(2, {.step = 1}, segments), true, false).fused);
}

// --- TurnedAttention -----------------------------------------------------------------------------

struct TurnedResult {
  bool fused = false;
  Values out, contexts;
};

TurnedResult RunTurned(Backend& backend, const AttentionProblem& p, bool mixes, bool fuse) {
  const AttentionDims& dims = p.dims;
  Workbench bench(backend);
  AttentionContexts contexts(bench, dims, p.slots());
  p.WritePast(contexts);
  std::vector<int> offsets = {0}, slots;
  std::vector<int64_t> begins, positions;
  int longest = 0;
  for (const RowSpec& row : p.rows) {
    for (int i = 0; i < row.length; ++i) positions.push_back(row.position + i);
    offsets.push_back(offsets.back() + row.length);
    slots.push_back(row.slot);
    begins.push_back(row.position);
    longest = std::max(longest, row.length);
  }
  const int64_t tokens = offsets.back(), heads = dims.heads, dim = dims.key_dim;
  SeededRandom random(5);
  const auto activations = [&](Shape shape) {
    return bench.Activations(random.NormalValues(shape.elements()), shape);
  };
  const TensorView q = activations({tokens, heads, dim}), k = activations({tokens, heads, dim}),
                   v = activations({tokens, heads, dim});
  const auto flat = [&](TensorView view) {
    view.shape = {tokens, heads * dim};
    return view;
  };
  ValueResidualArgs mix = {.first = activations({tokens, heads * dim}),
                           .gate = activations({tokens, heads}),
                           .bias = bench.Floats(random.NormalValues(heads), {heads}),
                           .v = flat(v)};
  Values frequencies;
  for (int i = 0; i < 2 * dim / 2; ++i) {
    frequencies.push_back(static_cast<float>(i < dim / 2 ? std::pow(10000.0, -2.0 * i / dim) : 0));
  }
  RopeArgs rope = {.positions = bench.Longs(positions),
                   .frequencies = bench.Floats(frequencies, {2, dim / 2}),
                   .interleaved = true};
  TensorView prefix_keys, prefix_values;
  if (dims.prefix > 0) {
    prefix_keys = activations({dims.prefix, heads, dim});
    prefix_values = activations({dims.prefix, heads, dim});
  }
  // Answers to a few tokens a row may be rounded.
  const bool rounds = fuse && (longest == 1 || tokens <= 2 * static_cast<int64_t>(p.rows.size()));
  const TensorView out = rounds ? bench.Values(Values(static_cast<size_t>(tokens * heads * dim)),
                                               {tokens, heads, dim}, DType::kBF16)
                                : bench.NewActivations({tokens, heads, dim});
  const AttentionArgs attention = {.q = q,
                                   .k = k,
                                   .v = v,
                                   .row_offsets = bench.Ints(offsets),
                                   .slots = bench.Ints(slots),
                                   .positions = bench.Longs(begins),
                                   .longest_row = longest,
                                   .window = dims.window,
                                   .scale = static_cast<float>(ScaleOf(dims)),
                                   .keys = contexts.keys(),
                                   .values = contexts.values(),
                                   .prefix_keys = prefix_keys,
                                   .prefix_values = prefix_values,
                                   .segment = dims.segment,
                                   .out = out};
  TurnedResult result;
  Kernels& kernels = bench.kernels();
  if (fuse) {
    if (!mixes) mix = {};
    result.fused =
        StreamStepsOf(kernels)->TurnedAttention({.mix = mix, .rope = rope, .attention = attention});
  } else {
    if (mixes) kernels.ValueResidual(mix);
    for (const TensorView& turned : {q, k}) {
      rope.x = rope.y = turned;
      kernels.Rope(rope);
    }
    kernels.Attention(attention);
  }
  const Values all = bench.Read(out);
  contexts.Download();
  for (size_t r = 0; r < p.rows.size(); ++r) {
    const RowSpec& row = p.rows[r];
    if (row.slot < 0) continue;
    result.out.insert(result.out.end(), all.begin() + offsets[r] * heads * dim,
                      all.begin() + offsets[r + 1] * heads * dim);
    for (int i = 0; i < row.length; ++i) {
      for (const ContextView& field : {contexts.keys(), contexts.values()}) {
        for (const double x : contexts.Row(field, row.slot, row.position + i)) {
          result.contexts.push_back(x);
        }
      }
    }
  }
  return result;
}

TEST_F(CudaStreamStepsTest, TurnedAttentionIsItsParts) {
  const AttentionDims window = {.heads = 4,
                                .kv_heads = 4,
                                .key_dim = 64,
                                .value_dim = 64,
                                .window = 133,
                                .blocks = 3,
                                .prefix = 4};
  AttentionDims segment = window, wide = window, narrow = window, all = window;
  segment.window = 0;
  segment.segment = 70;
  wide.key_dim = wide.value_dim = 128;
  wide.prefix = 0;
  narrow.key_dim = narrow.value_dim = 16;
  narrow.prefix = 37;
  all.window = 0;
  all.blocks = 8;
  for (const AttentionDims& dims : {window, segment, wide, narrow, all}) {
    for (const int many : {1, 12, 20}) {
      for (const int length : {1, 5, 17}) {
        AttentionProblem p = {.dims = dims, .rows = {}};
        const int64_t begins[] = {0, 1, 63, 64, 132, 133, 191, 192, 200, 401, 130, 65};
        for (int i = 0; i < many; ++i) p.rows.push_back({i, begins[i % 12], 1});
        p.rows[0].length = length;
        if (many > 1) p.rows[3].slot = -1, p.rows[8].length = length == 1 ? 1 : 5;
        for (const bool mixes : {true, false}) {
          SCOPED_TRACE(testing::Message()
                       << dims.Describe() << ", " << many << " rows, the first of " << length
                       << (mixes ? ", mixed" : ""));
          const TurnedResult got = RunTurned(*backend_, p, mixes, true);
          const TurnedResult want = RunTurned(*backend_, p, mixes, false);
          ASSERT_TRUE(got.fused);
          // Parts may round queries and weights, each relative to a sum of weighted values.
          EXPECT_LE(RelativeError(got.out, want.out), 4 * kUnitBF16);
          // Numbers on the edge of two roundings may take the other one.
          EXPECT_LE(RelativeError(got.contexts, want.contexts), kUnitBF16 / 8);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mneme
