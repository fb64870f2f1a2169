// TokenShift, and NormAndShift, which does it behind a LayerNorm.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/compared_backend.h"
#include "tests/kernels/rwkv_problems.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using TokenShiftTest = ComparedBackendTest;

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

TEST_P(TokenShiftTest, TokenShiftMatchesReferenceOnRaggedSegments) {
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

TEST_P(TokenShiftTest, SplittingTheTokensOfAShiftChangesNoBit) {
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

TEST_P(TokenShiftTest, NeitherThreadsNorOtherRowsChangeABitOfAShift) {
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

TEST_P(TokenShiftTest, NoTokensAreNotShifted) {
  ShiftProblem p(9, 16, 2, false, {{0, 0, 0, false}, {0, 1, 0, false}});
  EXPECT_TRUE(p.Run(*backend_).y.empty());
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

TEST_P(TokenShiftTest, NormAndShiftIsItsParts) {
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

INSTANTIATE_TEST_SUITE_P(Backends, TokenShiftTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
