// TokenShift, Rwkv7Gates, ValueResidual and Rwkv7Output, and what is made of them.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/recurrent_steps.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

constexpr int kRwkvDims[] = {1, 3, 16, 33, 64, 100, 600};

using Values = std::vector<double>;

class RwkvTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

// --- TokenShift ----------------------------------------------------------------------------------

struct ShiftResult {
  Values y;     // of active segments' entries, mix by mix
  Values last;  // of every slot and memory
};

struct ShiftProblem {
  ShiftProblem(uint64_t seed, int dim, int mixes, bool by_token, std::vector<SegmentSpec> list)
      : dim(dim), mixes(mixes), segments(std::move(list)) {
    SeededRandom random(seed);
    x = random.NormalValues(int64_t{Entries(segments)} * dim, 2);
    mix = random.NormalValues(mixes * dim);
    if (by_token) token_mix = random.NormalValues(int64_t{mixes} * Entries(segments) * dim);
    for (int i = 0; i < kSlots * kMemories; ++i) last.push_back(random.NormalValues(dim, 2));
  }

  ShiftResult Run(Backend& backend) const {
    Workbench bench(backend);
    const int entries = Entries(segments);
    SlabPool slabs(bench, kSlots, kMemories, dim, bench.backend().state_format().window_dtype);
    // A fresh memory holds what its slab happened to hold: NaN, here.
    for (int i = 0; i < kSlots * kMemories; ++i) {
      const bool fresh = IsFresh(segments, i / kMemories, i % kMemories);
      if (!fresh) slabs.Write(i / kMemories, i % kMemories, last[i]);
    }
    TokenShiftArgs args;
    args.x = bench.Activations(x, {entries, dim});
    args.mix = bench.Floats(mix, {mixes, dim});
    if (!token_mix.empty()) args.token_mix = bench.Activations(token_mix, {mixes, entries, dim});
    args.segments = Upload(bench, segments);
    args.last = slabs.view();
    args.advance = advance;
    args.y = in_place ? args.token_mix : bench.NewActivations({mixes, entries, dim});
    const std::vector<std::byte> before = slabs.Bytes();
    bench.kernels().TokenShift(args);
    EXPECT_TRUE(slabs.OnlyTouched(before, [this](int slot, int memory) {
      return advance && IsActive(segments, slot, memory);
    })) << "state outside the segments' memories was written";
    std::vector<int> active;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    ShiftResult result;
    const Values y = bench.Read(args.y);
    for (int m = 0; m < mixes; ++m) {
      const int64_t each = int64_t{entries} * dim;
      const Values own(y.begin() + m * each, y.begin() + (m + 1) * each);
      const Values picked = PickEntries(own, dim, segments, active);
      result.y.insert(result.y.end(), picked.begin(), picked.end());
    }
    for (int i = 0; i < kSlots * kMemories; ++i) {
      // A memory that still is NaN was fresh, and not written.
      for (const double value : slabs.Read(i / kMemories, i % kMemories)) {
        result.last.push_back(std::isnan(value) ? kUnwritten : value);
      }
    }
    return result;
  }

  static constexpr int kSlots = 6, kMemories = 2;
  static constexpr double kUnwritten = 1e30;
  int dim, mixes;
  bool advance = true, in_place = false;
  std::vector<SegmentSpec> segments;
  Values x, mix, token_mix;
  std::vector<Values> last;
};

TEST_P(RwkvTest, TokenShiftMatchesReferenceOnRaggedSegments) {
  uint64_t seed = 0;
  for (const int dim : kRwkvDims) {
    for (const int mixes : {1, 2, 5, 6}) {
      for (const bool by_token : {false, true}) {
        for (const int longest : {1, 9}) {
          ++seed;
          ShiftProblem p(
              seed, dim, mixes, by_token,
              RandomSegments(seed, ShiftProblem::kSlots, ShiftProblem::kMemories, longest));
          p.advance = seed % 3 != 0;
          const ShiftResult want = p.Run(*reference_), got = p.Run(*backend_);
          // Two sums and a product with numbers of at most some 12, 24 and 12.
          const Values bound(want.y.size(), 4 * kUnitF32 * 24 * 12);
          EXPECT_THAT(got.y, IsWithin(bound, want.y)) << "seed " << seed << " dim " << dim;
          EXPECT_THAT(got.last, HasSameBits(want.last)) << "seed " << seed << " dim " << dim;
          if (!by_token) continue;
          p.in_place = true;
          EXPECT_THAT(p.Run(*backend_).y, HasSameBits(got.y)) << "seed " << seed;
        }
      }
    }
  }
}

TEST_P(RwkvTest, SplittingTheTokensOfAShiftChangesNoBit) {
  const int dim = 100, mixes = 6, tokens = 9;
  const ShiftProblem whole(7, dim, mixes, false, {{tokens, 3, 1, true}});
  const ShiftResult want = whole.Run(*backend_);
  ShiftProblem part = whole;
  std::vector<Values> by_mix(mixes);
  for (int begin = 0, length; begin < tokens; begin += length) {
    length = std::min(begin == 0 ? 1 : 4, tokens - begin);
    part.segments = {{length, 3, 1, begin == 0}};
    part.x.assign(whole.x.begin() + begin * dim, whole.x.begin() + (begin + length) * dim);
    const ShiftResult got = part.Run(*backend_);
    for (int m = 0; m < mixes; ++m) {
      const auto first = got.y.begin() + m * length * dim;
      by_mix[m].insert(by_mix[m].end(), first, first + length * dim);
    }
    const int memory = 3 * ShiftProblem::kMemories + 1;
    part.last[memory].assign(got.last.begin() + memory * dim,
                             got.last.begin() + (memory + 1) * dim);
  }
  Values joined;
  for (const Values& values : by_mix) joined.insert(joined.end(), values.begin(), values.end());
  EXPECT_THAT(joined, HasSameBits(want.y));
}

TEST_P(RwkvTest, NeitherThreadsNorOtherRowsChangeABitOfAShift) {
  const int dim = 1000, mixes = 6;
  const ShiftProblem all(8, dim, mixes, true,
                         {{3, 0, 0, false}, {40, 1, 0, true}, {1, 2, 1, false}});
  const ShiftResult want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    const ShiftResult got = all.Run(*GetParam().Make(threads));
    EXPECT_THAT(got.y, HasSameBits(want.y));
    EXPECT_THAT(got.last, HasSameBits(want.last));
  }
  ShiftProblem alone = all;
  alone.segments = {{1, 2, 1, false}};
  alone.x.assign(all.x.end() - dim, all.x.end());
  alone.token_mix.clear();
  Values expected;
  for (int m = 0; m < mixes; ++m) {
    const auto end = all.token_mix.begin() + (m + 1) * 44 * dim;
    alone.token_mix.insert(alone.token_mix.end(), end - dim, end);
    const auto y_end = want.y.begin() + (m + 1) * 44 * dim;
    expected.insert(expected.end(), y_end - dim, y_end);
  }
  EXPECT_THAT(alone.Run(*backend_).y, HasSameBits(expected));
}

TEST_P(RwkvTest, NoTokensAreNotShifted) {
  ShiftProblem p(9, 16, 2, false, {{0, 0, 0, false}, {0, 1, 0, false}});
  EXPECT_TRUE(p.Run(*backend_).y.empty());
}

// --- Rwkv7Gates ----------------------------------------------------------------------------------

struct RwkvGateValues {
  Values log_decay, c, e, k;
};

struct RwkvGatesProblem {
  RwkvGatesProblem(uint64_t seed, int entries, int heads, int dim)
      : entries(entries), heads(heads), dim(dim) {
    SeededRandom random(seed);
    const int64_t n = int64_t{entries} * heads * dim;
    decay = random.NormalValues(n, 6);
    rate = random.NormalValues(n, 6);
    k = random.NormalValues(n);
    decay_bias = random.NormalValues(heads * dim);
    rate_bias = random.NormalValues(heads * dim);
    k_k = random.NormalValues(heads * dim);
    k_a = random.NormalValues(heads * dim);
  }

  RwkvGateValues Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    const Shape shape = {entries, heads, dim}, channels = {heads, dim};
    Rwkv7GatesArgs args;
    args.decay = bench.Activations(decay, shape);
    args.rate = bench.Activations(rate, shape);
    args.k = bench.Activations(k, shape);
    args.decay_bias = bench.Floats(decay_bias, channels);
    args.rate_bias = bench.Floats(rate_bias, channels);
    args.k_k = bench.Floats(k_k, channels);
    args.k_a = bench.Floats(k_a, channels);
    args.eps = eps;
    args.least = least;
    args.log_decay = in_place ? args.decay : bench.NewActivations(shape);
    args.e = in_place ? args.rate : bench.NewActivations(shape);
    args.c = bench.NewActivations(shape);
    bench.kernels().Rwkv7Gates(args);
    return {bench.Read(args.log_decay), bench.Read(args.c), bench.Read(args.e), bench.Read(args.k)};
  }

  // A sigmoid of z has a function, and the rounding of z, which moves it, relatively, by at most
  // |z| u sigmoid(-z). The norm is as of L2Norm, of products. k (1 + (a - 1) k_a) is relative to
  // the terms.
  RwkvGateValues Bound(const RwkvGateValues& want) const {
    RwkvGateValues bound;
    for (size_t i = 0; i < want.c.size(); ++i) {
      const size_t channel = i % (static_cast<size_t>(heads) * dim);
      const auto sigmoid_error = [](double x, double bias) {
        const double z = x + bias;
        return kFunctionError + 4 * kUnitF32 + 2 * std::abs(z) * kUnitF32 / (1 + std::exp(z));
      };
      const double decays = sigmoid_error(decay[i], decay_bias[channel]);
      const double rates = sigmoid_error(rate[i], rate_bias[channel]);
      const double norms = SumError(dim) / 2 + 8 * kUnitF32 + kFunctionError;
      bound.log_decay.push_back((decays + 2 * kUnitF32) * std::abs(want.log_decay[i]) + kTinyF32);
      bound.c.push_back(norms * std::abs(want.c[i]) + kTinyF32);
      bound.e.push_back((norms + rates + kUnitF32) * std::abs(want.e[i]) + kTinyF32);
      bound.k.push_back(std::abs(k[i]) * (rates + 4 * kUnitF32) * (1 + 2 * std::abs(k_a[channel])));
    }
    return bound;
  }

  int entries, heads, dim;
  float eps = 1e-6f, least = 0;
  Values decay, rate, k, decay_bias, rate_bias, k_k, k_a;
};

void ExpectGates(const RwkvGateValues& got, const RwkvGateValues& want,
                 const RwkvGateValues& bound) {
  EXPECT_THAT(got.log_decay, IsWithin(bound.log_decay, want.log_decay));
  EXPECT_THAT(got.c, IsWithin(bound.c, want.c));
  EXPECT_THAT(got.e, IsWithin(bound.e, want.e));
  EXPECT_THAT(got.k, IsWithin(bound.k, want.k));
}
void ExpectSameGates(const RwkvGateValues& got, const RwkvGateValues& want) {
  EXPECT_THAT(got.log_decay, HasSameBits(want.log_decay));
  EXPECT_THAT(got.c, HasSameBits(want.c));
  EXPECT_THAT(got.e, HasSameBits(want.e));
  EXPECT_THAT(got.k, HasSameBits(want.k));
}

TEST_P(RwkvTest, GatesMatchReference) {
  for (const int dim : kRwkvDims) {
    for (const int entries : {0, 1, 7}) {
      SCOPED_TRACE(testing::Message() << entries << " x 3 x " << dim);
      const RwkvGatesProblem p(dim, entries, 3, dim);
      const RwkvGateValues want = p.Run(*reference_), got = p.Run(*backend_);
      ExpectGates(got, want, p.Bound(want));
      ExpectSameGates(p.Run(*backend_, /*in_place=*/true), got);
    }
  }
}

// RwkvGateValues that are all but open or shut, keys of any size, none at all, and both kinds of
// norm.
TEST_P(RwkvTest, GatesHoldOverTheWholeRange) {
  for (const float least : {0.0f, 1e-12f}) {
    for (const double scale : {0.0, 1e-15, 1e-6, 1.0, 1e6}) {
      SCOPED_TRACE(testing::Message() << "least " << least << " scale " << scale);
      RwkvGatesProblem p(3, 41, 1, 33);
      p.least = least;
      p.eps = least > 0 ? 0 : 1e-6f;
      for (size_t i = 0; i < p.k.size(); ++i) {
        p.k[i] = RoundTo(p.k[i] * scale, DType::kF32);
        p.decay[i] = -80 + 4.0 * static_cast<double>(i / 33);
        p.rate[i] = -p.decay[i];
      }
      const RwkvGateValues want = p.Run(*reference_), got = p.Run(*backend_);
      ExpectGates(got, want, p.Bound(want));
      for (const Values* values : {&got.log_decay, &got.c, &got.e, &got.k}) {
        for (const double value : *values) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST_P(RwkvTest, NeitherThreadsNorOtherTokensChangeABitOfAGate) {
  const RwkvGatesProblem all(5, 50, 4, 33);
  const RwkvGateValues want = all.Run(*backend_);
  for (const int threads : {1, 3}) ExpectSameGates(all.Run(*GetParam().Make(threads)), want);
  const auto tail = [](const Values& v) { return Values(v.end() - 4 * 33, v.end()); };
  RwkvGatesProblem one = all;
  one.entries = 1;
  one.decay = tail(all.decay);
  one.rate = tail(all.rate);
  one.k = tail(all.k);
  ExpectSameGates(one.Run(*backend_),
                  {tail(want.log_decay), tail(want.c), tail(want.e), tail(want.k)});
}

// --- ValueResidual -------------------------------------------------------------------------------

TEST_P(RwkvTest, ValueResidualMatchesReference) {
  for (const int dim : kRwkvDims) {
    for (const int entries : {0, 1, 70}) {
      SeededRandom random(dim);
      const int64_t n = int64_t{entries} * dim;
      const Values first = random.NormalValues(n), gate = random.NormalValues(n, 8);
      const Values bias = random.NormalValues(dim), v = random.NormalValues(n);
      const auto run = [&](Backend& backend) {
        Workbench bench(backend);
        ValueResidualArgs args;
        args.first = bench.Activations(first, {entries, dim});
        args.gate = bench.Activations(gate, {entries, dim});
        args.bias = bench.Floats(bias, {dim});
        args.v = bench.Activations(v, {entries, dim});
        bench.kernels().ValueResidual(args);
        return bench.Read(args.v);
      };
      const Values want = run(*reference_), got = run(*backend_);
      Values bound;
      for (int64_t i = 0; i < n; ++i) {
        // The sigmoid's argument is off by |z| u, its slope is at most 1/4.
        const double z = std::abs(gate[i]) + std::abs(bias[i % dim]);
        bound.push_back((std::abs(first[i]) + std::abs(v[i])) *
                            (kFunctionError + 6 * kUnitF32 + z / 4 * kUnitF32) +
                        kTinyF32);
      }
      EXPECT_THAT(got, IsWithin(bound, want)) << entries << " x " << dim;
      EXPECT_THAT(run(*GetParam().Make(3)), HasSameBits(got));
    }
  }
}

// --- Rwkv7Output ---------------------------------------------------------------------------------

struct RwkvOutputProblem {
  RwkvOutputProblem(uint64_t seed, int entries, int heads, int key_dim, int value_dim)
      : entries(entries), heads(heads), key_dim(key_dim), value_dim(value_dim) {
    SeededRandom random(seed);
    const int64_t keys = int64_t{entries} * heads * key_dim;
    const int64_t values = int64_t{entries} * heads * value_dim;
    x = random.NormalValues(values);
    r = random.NormalValues(keys);
    k = random.NormalValues(keys);
    v = random.NormalValues(values);
    gate = random.NormalValues(values);
    weight = random.NormalValues(heads * value_dim);
    bias = random.NormalValues(heads * value_dim);
    r_k = random.NormalValues(heads * key_dim);
  }

  enum class Alias { kNone, kX, kGate };
  Values Run(Backend& backend, Alias alias = Alias::kNone) const {
    Workbench bench(backend);
    const Shape keys = {entries, heads, key_dim}, values = {entries, heads, value_dim};
    Rwkv7OutputArgs args;
    args.x = bench.Activations(x, values);
    args.weight = bench.Floats(weight, {heads, value_dim});
    args.bias = bench.Floats(bias, {heads, value_dim});
    args.eps = 64e-5f;
    args.r = bench.Activations(r, keys);
    args.k = bench.Activations(k, keys);
    args.r_k = bench.Floats(r_k, {heads, key_dim});
    args.v = bench.Activations(v, values);
    args.gate = bench.Activations(gate, values);
    args.y = alias == Alias::kX      ? args.x
             : alias == Alias::kGate ? args.gate
                                     : bench.NewActivations(values);
    bench.kernels().Rwkv7Output(args);
    return bench.Read(args.y);
  }

  // The norm of a row that is about as large as its deviation from its mean; the bonus, relative to
  // its terms; two sums and a product.
  Values Bound() const {
    Values bound;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t row = i / value_dim, channel = i % (static_cast<size_t>(heads) * value_dim);
      double mean = 0, variance = 0, magnitude = 0, terms = 0;
      for (int j = 0; j < value_dim; ++j) {
        mean += x[row * value_dim + j] / value_dim;
        magnitude += std::abs(x[row * value_dim + j]) / value_dim;
      }
      for (int j = 0; j < value_dim; ++j) {
        variance += std::pow(x[row * value_dim + j] - mean, 2) / value_dim;
      }
      for (int j = 0; j < key_dim; ++j) {
        terms +=
            std::abs(r[row * key_dim + j] * k[row * key_dim + j] * r_k[row % heads * key_dim + j]);
      }
      const double deviation = std::sqrt(variance + 64e-5);
      const double shift = (SumError(value_dim) + 4 * kUnitF32) * magnitude / deviation;
      const double normed = std::abs(x[i] - mean) / deviation * std::abs(weight[channel]);
      const double error =
          1.1 * shift * (std::abs(weight[channel]) + normed) +
          (SumError(value_dim) / 2 + 10 * kUnitF32 + kFunctionError) * normed +
          (SumError(key_dim) + 4 * kUnitF32) * terms * std::abs(v[i]) +
          4 * kUnitF32 * (normed + std::abs(bias[channel]) + terms * std::abs(v[i]));
      bound.push_back(error * std::abs(gate[i]) + kTinyF32);
    }
    return bound;
  }

  int entries, heads, key_dim, value_dim;
  Values x, r, k, v, gate, weight, bias, r_k;
};

TEST_P(RwkvTest, OutputMatchesReference) {
  using Alias = RwkvOutputProblem::Alias;
  for (const int value_dim : {2, 16, 33, 64, 128}) {
    for (const int key_dim : {1, 16, 33, 64}) {
      for (const int entries : {0, 1, 7}) {
        SCOPED_TRACE(testing::Message() << entries << " x 3, " << key_dim << ", " << value_dim);
        const RwkvOutputProblem p(value_dim + key_dim, entries, 3, key_dim, value_dim);
        const Values got = p.Run(*backend_);
        EXPECT_THAT(got, IsWithin(p.Bound(), p.Run(*reference_)));
        EXPECT_THAT(p.Run(*backend_, Alias::kX), HasSameBits(got));
        EXPECT_THAT(p.Run(*backend_, Alias::kGate), HasSameBits(got));
        EXPECT_THAT(p.Run(*reference_, Alias::kGate), HasSameBits(p.Run(*reference_)));
      }
    }
  }
}

TEST_P(RwkvTest, NeitherThreadsNorOtherTokensChangeABitOfAnOutput) {
  const RwkvOutputProblem all(5, 50, 4, 33, 20);
  const Values want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    EXPECT_THAT(all.Run(*GetParam().Make(threads)), HasSameBits(want));
  }
  const auto tail = [](const Values& v, int width) { return Values(v.end() - 4 * width, v.end()); };
  RwkvOutputProblem one = all;
  one.entries = 1;
  one.x = tail(all.x, 20);
  one.v = tail(all.v, 20);
  one.gate = tail(all.gate, 20);
  one.r = tail(all.r, 33);
  one.k = tail(all.k, 33);
  EXPECT_THAT(one.Run(*backend_), HasSameBits(tail(want, 20)));
}

// --- NormAndShift --------------------------------------------------------------------------------

// Single entries, none, padding, fresh and other memories.
std::vector<SegmentSpec> SingleEntries() {
  return {{1, 2, 0, false}, {0, 1, 0, false}, {1, -1, 0, false}, {1, 0, 1, true}, {1, 3, 1, false}};
}

struct NormedShift {
  Values x, y, last;  // of active segments' entries; y mix by mix
};

// `fused` is whether NormAndShift did it; else its parts do.
NormedShift NormAndShift(Backend& backend, int dim, int mixes, bool advance, bool try_fused,
                         bool* fused) {
  const std::vector<SegmentSpec> segments = SingleEntries();
  const std::vector<int> active = {0, 3, 4};
  constexpr int kSlots = 4, kMemories = 2;
  const int entries = Entries(segments);
  SeededRandom random(dim);
  Workbench bench(backend);
  SlabPool slabs(bench, kSlots, kMemories, dim, backend.state_format().window_dtype);
  for (int i = 0; i < kSlots * kMemories; ++i) {
    const Values last = random.NormalValues(dim, 2);
    if (!IsFresh(segments, i / kMemories, i % kMemories)) {
      slabs.Write(i / kMemories, i % kMemories, last);
    }
  }
  const LayerNormArgs norm = {
      .x = bench.Activations(random.NormalValues(entries * dim, 3), {entries, dim}),
      .weight = bench.Floats(random.NormalValues(dim), {dim}),
      .bias = bench.Floats(random.NormalValues(dim), {dim}),
      .y = bench.NewActivations({entries, dim})};
  TokenShiftArgs shift = {.x = norm.y,
                          .mix = bench.Floats(random.NormalValues(mixes * dim), {mixes, dim}),
                          .segments = Upload(bench, segments),
                          .last = slabs.view(),
                          .advance = advance,
                          .y = bench.NewActivations({mixes, entries, dim})};
  shift.segments.longest = 1;
  *fused = try_fused && bench.kernels().NormAndShift(norm, shift);
  if (!*fused) {
    bench.kernels().LayerNorm(norm);
    bench.kernels().TokenShift(shift);
  }
  NormedShift result = {PickEntries(bench.Read(norm.y), dim, segments, active), {}, {}};
  const Values y = bench.Read(shift.y);
  for (int m = 0; m < mixes; ++m) {
    const auto first = y.begin() + m * entries * dim;
    const Values own = PickEntries({first, first + entries * dim}, dim, segments, active);
    result.y.insert(result.y.end(), own.begin(), own.end());
  }
  for (const int i : active) {
    const Values last = slabs.Read(segments[i].slot, segments[i].memory);
    if (segments[i].fresh && !advance) continue;  // holds anything
    result.last.insert(result.last.end(), last.begin(), last.end());
  }
  return result;
}

TEST_P(RwkvTest, NormAndShiftIsItsParts) {
  for (const int dim : {4, 64, 100, 256, 600, 1024, 2048, 4096, 4100, 33}) {
    for (const bool advance : {false, true}) {
      SCOPED_TRACE(testing::Message() << dim << " channels, advance " << advance);
      bool fused = false, unused = false;
      const NormedShift got = NormAndShift(*backend_, dim, 6, advance, true, &fused);
      if (GetParam().device == "cuda") {
        EXPECT_EQ(fused, dim % 4 == 0 && dim <= 4096);
      }
      const NormedShift want = NormAndShift(*backend_, dim, 6, advance, false, &unused);
      // The order of two sums, of the mean and of the variance.
      const double bound = 4 * SumError(dim) + kFunctionError;
      EXPECT_LE(RelativeError(got.x, want.x), bound);
      EXPECT_LE(RelativeError(got.y, want.y), bound);
      EXPECT_LE(RelativeError(got.last, want.last), bound);
    }
  }
}

// --- Rwkv7Step -----------------------------------------------------------------------------------

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

TEST_P(RwkvTest, AStepOfRwkv7IsItsParts) {
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

TEST_P(RwkvTest, AStepOfRwkv7WithItsProductsOfLowRankIsItsParts) {
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

INSTANTIATE_TEST_SUITE_P(Backends, RwkvTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
