#include <algorithm>
#include <cmath>
#include <optional>
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

struct ConvResult {
  std::vector<double> y;        // entries of active segments, in order
  std::vector<double> windows;  // of every slot and memory
};

struct ConvProblem {
  ConvProblem(uint64_t seed, int channels, int width, std::vector<SegmentSpec> list)
      : channels(channels), width(width), segments(std::move(list)) {
    SeededRandom random(seed);
    rows = Entries(segments) / 2 + 1;
    x = random.NormalValues(static_cast<int64_t>(rows) * channels, 2);
    weight = random.NormalValues(channels * width);
    if (seed % 3 == 0) bias = random.NormalValues(channels, 2);
    for (int e = 0; e < Entries(segments); ++e) entry_rows.push_back(random.Int(0, rows - 1));
    for (int i = 0; i < kSlots * kMemories; ++i) {
      windows.push_back(random.NormalValues((width - 1) * channels, 2));
    }
  }

  struct Loaded {
    SlabPool slabs;
    ShortConvArgs args;
  };
  Loaded Load(Workbench& bench) const {
    Loaded loaded{SlabPool(bench, kSlots, kMemories, (width - 1) * channels,
                           window_dtype.value_or(bench.backend().state_format().window_dtype)),
                  {}};
    // A memory that is fresh somewhere holds what its slab happened to hold: NaN, here.
    for (int i = 0; i < kSlots * kMemories; ++i) {
      const int slot = i / kMemories, memory = i % kMemories;
      bool fresh = false;
      for (const SegmentSpec& s : segments) {
        fresh |= s.fresh && s.slot == slot && s.memory == memory;
      }
      if (!fresh) loaded.slabs.Write(slot, memory, windows[i]);
    }
    loaded.args.x = bench.Activations(x, {rows, channels});
    if (!entry_rows.empty()) loaded.args.entry_rows = bench.Ints(entry_rows);
    loaded.args.weight = bench.Floats(weight, {channels, width});
    if (!bias.empty()) loaded.args.bias = bench.Floats(bias, {channels});
    loaded.args.activation = activation;
    loaded.args.segments = Upload(bench, segments);
    if (says_longest) loaded.args.segments.longest = Longest(segments);
    loaded.args.window = loaded.slabs.view();
    loaded.args.y = bench.NewActivations({Entries(segments), channels});
    return loaded;
  }
  ConvResult Read(Workbench& bench, Loaded& loaded) const {
    std::vector<int> active;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    ConvResult result;
    result.y = PickEntries(bench.Read(loaded.args.y), channels, segments, active);
    for (int i = 0; i < kSlots * kMemories; ++i) {
      const std::vector<double> window = loaded.slabs.Read(i / kMemories, i % kMemories);
      result.windows.insert(result.windows.end(), window.begin(), window.end());
    }
    return result;
  }
  ConvResult Run(Backend& backend) const {
    Workbench bench(backend);
    Loaded loaded = Load(bench);
    const std::vector<std::byte> before = loaded.slabs.Bytes();
    bench.kernels().ShortConv({&loaded.args, 1});
    EXPECT_TRUE(loaded.slabs.OnlyTouched(before, [this](int slot, int memory) {
      for (const SegmentSpec& s : segments) {
        if (s.active() && s.slot == slot && s.memory == memory) return true;
      }
      return false;
    })) << "state outside the segments' windows was written";
    return Read(bench, loaded);
  }

  // As windows of bf16 can have them.
  void RoundInputs() {
    for (double& value : x) value = RoundTo(value, DType::kBF16);
  }
  void RoundWindows() {
    for (std::vector<double>& window : windows) {
      for (double& value : window) value = RoundTo(value, DType::kBF16);
    }
  }

  // The sum's error times silu's largest slope, 1.1, and silu's own error, also of the identity,
  // which has less of both. Windows move,
  // uncomputed: their bound is zero. Where y is NaN on purpose nothing is compared.
  std::vector<double> Bound(const std::vector<double>& want) const {
    std::vector<double> bound;
    const double largest_x = 12, sum = SumError(width + 1);
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t c = i % channels;
      double scale = bias.empty() ? 0 : std::abs(bias[c]);
      for (int j = 0; j < width; ++j) scale += std::abs(weight[c * width + j]) * largest_x;
      bound.push_back(1.1 * sum * scale + (kFunctionError + 4 * kUnitF32) * std::abs(want[i]) +
                      kTinyF32);
    }
    return bound;
  }

  static int Longest(const std::vector<SegmentSpec>& segments) {
    int longest = 0;
    for (const SegmentSpec& s : segments) longest = std::max(longest, s.length);
    return longest;
  }

  static constexpr int kSlots = 6, kMemories = 3;
  int channels, width, rows;
  Activation activation = Activation::kSilu;
  bool says_longest = false;          // a backend may then choose another way
  std::optional<DType> window_dtype;  // unless it is the usual one
  std::vector<SegmentSpec> segments;
  std::vector<double> x, weight;
  std::vector<double> bias;  // or none
  std::vector<int> entry_rows;
  std::vector<std::vector<double>> windows;
};

std::vector<SegmentSpec> RandomConvSegments(uint64_t seed, int longest) {
  return RandomSegments(seed, ConvProblem::kSlots, ConvProblem::kMemories, longest);
}

using ShortConvTest = ComparedBackendTest;

TEST_P(ShortConvTest, MatchesReferenceOnRaggedSegments) {
  uint64_t seed = 0;
  for (const int width : {1, 2, 3, 4, 5, 8}) {
    for (const int channels : {1, 3, 15, 16, 17, 33, 100, 256}) {
      for (const int longest : {1, 3, 9}) {
        ++seed;
        ConvProblem p(seed, channels, width, RandomConvSegments(seed, longest));
        if (seed % 4 == 1) p.activation = Activation::kIdentity;
        const ConvResult want = p.Run(*reference_), got = p.Run(*backend_);
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << channels << " channels, width " << width
                     << ", up to " << longest << " entries");
        EXPECT_THAT(got.y, IsWithin(p.Bound(want.y), want.y));
        EXPECT_THAT(got.windows, HasSameBits(want.windows));
        p.says_longest = true;
        const ConvResult same = p.Run(*backend_);
        EXPECT_THAT(same.y, HasSameBits(got.y));
        EXPECT_THAT(same.windows, HasSameBits(got.windows));
      }
    }
  }
}

TEST_P(ShortConvTest, LongSegmentsMatchReference) {
  uint64_t seed = 500;
  for (const int channels : {24, 37, 520}) {
    for (const int width : {2, 4, 6}) {
      ++seed;
      ConvProblem p(seed, channels, width, RandomConvSegments(seed, 300));
      p.says_longest = seed % 2 == 0;
      if (seed % 3 == 0) p.activation = Activation::kIdentity;
      const ConvResult want = p.Run(*reference_), got = p.Run(*backend_);
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", " << channels << " channels, width " << width);
      EXPECT_THAT(got.y, IsWithin(p.Bound(want.y), want.y));
      EXPECT_THAT(got.windows, HasSameBits(want.windows));
    }
  }
}

TEST_P(ShortConvTest, WithoutEntryRowsEntriesReadTheirOwnRow) {
  ConvProblem p(50, 21, 4, RandomConvSegments(50, 6));
  p.rows = Entries(p.segments);
  p.x = SeededRandom(51).NormalValues(p.rows * 21);
  p.entry_rows.clear();
  const ConvResult want = p.Run(*reference_), got = p.Run(*backend_);
  EXPECT_THAT(got.y, IsWithin(p.Bound(want.y), want.y));
  EXPECT_THAT(got.windows, HasSameBits(want.windows));
}

TEST_P(ShortConvTest, ConvolutionsInOneCallEqualThoseOfSeparateCalls) {
  const auto segments = RandomConvSegments(60, 5);
  const ConvProblem problems[] = {ConvProblem(61, 32, 4, segments),
                                  ConvProblem(62, 48, 4, segments),
                                  ConvProblem(63, 9, 2, RandomConvSegments(64, 3))};
  Workbench bench(*backend_);
  std::vector<ConvProblem::Loaded> loaded;
  std::vector<ShortConvArgs> args;
  for (const ConvProblem& p : problems) {
    loaded.push_back(p.Load(bench));
    args.push_back(loaded.back().args);
  }
  bench.kernels().ShortConv(args);
  for (int i = 0; i < 3; ++i) {
    const ConvResult want = problems[i].Run(*backend_), got = problems[i].Read(bench, loaded[i]);
    EXPECT_THAT(got.y, HasSameBits(want.y)) << i;
    EXPECT_THAT(got.windows, HasSameBits(want.windows)) << i;
  }
}

// The same entries of each segment in several calls: the second one continues from the window.
TEST_P(ShortConvTest, SplittingASegmentChangesNoBit) {
  for (const int width : {1, 2, 4, 7}) {
    for (uint64_t seed = 70; seed < 76; ++seed) {
      const int channels = 37;
      ConvProblem whole(seed, channels, width, RandomConvSegments(seed, 12));
      const ConvResult want = whole.Run(*backend_);

      Workbench bench(*backend_);
      ConvProblem::Loaded loaded = whole.Load(bench);
      const std::vector<int> offsets = Offsets(whole.segments);
      std::vector<std::vector<double>> y(whole.segments.size());
      std::vector<int> done(whole.segments.size(), 0);
      SeededRandom random(seed);
      for (bool left = true; left;) {
        left = false;
        std::vector<SegmentSpec> part = whole.segments;
        std::vector<int> part_rows;
        for (size_t s = 0; s < part.size(); ++s) {
          const int rest = whole.segments[s].length - done[s];
          part[s].length = random.Int(0, std::min(rest, 4));
          part[s].fresh = whole.segments[s].fresh && done[s] == 0 && part[s].length > 0;
          for (int i = 0; i < part[s].length; ++i) {
            part_rows.push_back(whole.entry_rows[offsets[s] + done[s] + i]);
          }
          left |= rest > part[s].length;
        }
        ShortConvArgs args = loaded.args;
        args.entry_rows = bench.Ints(part_rows);
        args.segments = Upload(bench, part);
        args.segments.longest = ConvProblem::Longest(part);
        args.y = bench.NewActivations({Entries(part), channels});
        bench.kernels().ShortConv({&args, 1});
        const std::vector<double> part_y = bench.Read(args.y);
        for (size_t s = 0; s < part.size(); ++s) {
          const std::vector<double> rows =
              PickEntries(part_y, channels, part, {static_cast<int>(s)});
          y[s].insert(y[s].end(), rows.begin(), rows.end());
          done[s] += part[s].length;
        }
      }
      std::vector<double> joined;
      for (size_t s = 0; s < y.size(); ++s) {
        if (whole.segments[s].active()) joined.insert(joined.end(), y[s].begin(), y[s].end());
      }
      EXPECT_THAT(joined, HasSameBits(want.y)) << "seed " << seed << ", width " << width;
      EXPECT_THAT(whole.Read(bench, loaded).windows, HasSameBits(want.windows))
          << "seed " << seed << ", width " << width;
    }
  }
}

TEST_P(ShortConvTest, NeitherThreadsNorOtherSegmentsChangeABit) {
  const ConvProblem all(80, 45, 4, RandomConvSegments(80, 10));
  const ConvResult want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    const ConvResult got = all.Run(*GetParam().Make(threads));
    EXPECT_THAT(got.y, HasSameBits(want.y));
    EXPECT_THAT(got.windows, HasSameBits(want.windows));
  }
  const std::vector<int> offsets = Offsets(all.segments);
  size_t first = 0;
  for (size_t s = 0; s < all.segments.size(); ++s) {
    if (!all.segments[s].active()) continue;
    ConvProblem one = all;
    one.segments = {all.segments[s]};
    one.entry_rows.assign(all.entry_rows.begin() + offsets[s],
                          all.entry_rows.begin() + offsets[s + 1]);
    const size_t n = static_cast<size_t>(all.segments[s].length) * all.channels;
    EXPECT_THAT(one.Run(*backend_).y,
                HasSameBits({want.y.begin() + first, want.y.begin() + first + n}))
        << "segment " << s;
    first += n;
  }
}

// Elements that were never written are NaN, whose bits differ from dtype to dtype.
std::vector<double> WithoutNans(std::vector<double> values) {
  for (double& value : values) {
    if (std::isnan(value)) value = 0;
  }
  return values;
}

// On CUDA windows may be bf16: then inputs are rounded on their way in, and nothing else changes.
TEST_P(ShortConvTest, WindowsInBf16RoundInputs) {
  if (GetParam().device != "cuda") GTEST_SKIP() << "windows are f32 here";
  uint64_t seed = 900;
  for (const int width : {1, 2, 4, 5}) {
    for (const int channels : {1, 24, 37, 256}) {
      for (const int longest : {1, 6, 90}) {
        ++seed;
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << channels << " channels, width " << width);
        ConvProblem p(seed, channels, width, RandomConvSegments(seed, longest));
        p.RoundWindows();
        ConvProblem rounded = p;
        rounded.RoundInputs();
        const ConvResult want = rounded.Run(*backend_);
        p.window_dtype = DType::kBF16;
        for (const bool says_longest : {false, true}) {
          p.says_longest = says_longest;
          const ConvResult got = p.Run(*backend_);
          EXPECT_THAT(got.y, HasSameBits(want.y));
          EXPECT_THAT(WithoutNans(got.windows), HasSameBits(WithoutNans(want.windows)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ShortConvTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
