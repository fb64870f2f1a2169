// The gated delta rule of whole prompts on a GPU, in chunks and on 16-bit operands (compute dtype
// bf16), against float64 token by token.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/state_row.h"
#include "tests/kernels/delta_rule_problem.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

// Operands are rounded to f16, of unit roundoff 2^-11, eight times on the way from inputs to
// outputs: k, q, S, V', T, U and P T, S once more. What follows is linear, and the erasing product
// does not make an error larger, so in norm that much may come of it; chance makes it a tenth.
constexpr double kDeltaChunkBound = 8 * 0x1p-11;

class CudaDeltaChunkTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    backend_ = MakeCuda(DType::kBF16);
  }

  static std::vector<double> ActiveStates(const DeltaProblem& p, const DeltaResult& result) {
    return mneme::ActiveStates(p.segments, p.memories, p.dims.state_elements(), result.states);
  }
  static void ExpectClose(const DeltaProblem& p, const DeltaResult& got, const DeltaResult& want,
                          double bound = kDeltaChunkBound) {
    EXPECT_LE(RelativeError(got.out, want.out), bound);
    EXPECT_LE(RelativeError(ActiveStates(p, got), ActiveStates(p, want)), bound);
  }
  void ExpectMatch(const DeltaProblem& p) { ExpectClose(p, p.Run(*backend_), p.Run(*reference_)); }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_ = MakeReference();
};

std::vector<SegmentSpec> RandomPrompts(uint64_t seed, int longest) {
  return RandomSegments(seed, DeltaProblem::kSlots, DeltaProblem::kMemories, longest);
}

TEST_F(CudaDeltaChunkTest, MatchesReferenceForEveryHeadSize) {
  uint64_t seed = 0;
  for (const int key_dim : {64, 128, 256}) {
    for (const int value_dim : {key_dim, 16, 48, 80, 192}) {
      ++seed;
      const DeltaProblem p(seed, {1, 1, key_dim, value_dim}, RandomPrompts(seed, 200));
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << p.dims.Describe());
      ExpectMatch(p);
    }
  }
}

// Sizes that have no chunked form go token by token.
TEST_F(CudaDeltaChunkTest, MatchesReferenceForOtherSizes) {
  uint64_t seed = 50;
  for (const DeltaDims dims :
       {DeltaDims{1, 1, 32, 32}, DeltaDims{2, 2, 64, 24}, DeltaDims{1, 2, 48, 80}}) {
    ++seed;
    const DeltaProblem p(seed, dims, RandomPrompts(seed, 70));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << p.dims.Describe());
    ExpectMatch(p);
  }
}

TEST_F(CudaDeltaChunkTest, MatchesReferenceForGroupedHeads) {
  uint64_t seed = 100;
  for (const DeltaDims dims :
       {DeltaDims{2, 2, 64, 64}, DeltaDims{2, 4, 64, 128}, DeltaDims{1, 3, 128, 64}}) {
    ++seed;
    const DeltaProblem p(seed, dims, RandomPrompts(seed, 150));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
    ExpectMatch(p);
  }
}

TEST_F(CudaDeltaChunkTest, MatchesReferenceForEveryLength) {
  std::vector<SegmentSpec> segments;
  for (int length = 0; length <= 200; ++length) {
    const bool fresh = length > 0 && length % 3 == 0;
    segments.push_back({length, static_cast<int>(segments.size()), 0, fresh});
    if (length % 50 == 7) segments.push_back({length, -1, 0, false});
  }
  const DeltaProblem p(150, {1, 1, 64, 16}, segments, /*max_beta=*/1,
                       static_cast<int>(segments.size()), /*memories=*/1);
  SCOPED_TRACE("seed 150");
  const DeltaResult want = p.Run(*reference_), got = p.Run(*backend_);
  ExpectClose(p, got, want);
  // And each by itself.
  size_t begin = 0;
  for (const SegmentSpec& segment : segments) {
    if (!segment.active()) continue;
    const size_t end = begin + static_cast<size_t>(segment.length) * p.dims.value_dim;
    EXPECT_LE(RelativeError({got.out.begin() + begin, got.out.begin() + end},
                            {want.out.begin() + begin, want.out.begin() + end}),
              kDeltaChunkBound)
        << segment.length << " entries";
    begin = end;
  }
}

TEST_F(CudaDeltaChunkTest, MatchesReferenceWithNegativeEigenvalues) {
  for (uint64_t seed = 200; seed < 203; ++seed) {
    const DeltaProblem p(seed, {2, 2, 64, 64}, RandomPrompts(seed, 300), /*max_beta=*/2);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ExpectMatch(p);
  }
}

// f16 operands are kept in range by a power of two for each row.
TEST_F(CudaDeltaChunkTest, ValuesMayHaveAnySize) {
  for (const double scale : {0x1p-60, 0x1p-20, 0x1p20, 0x1p60}) {
    DeltaProblem p(210, {1, 1, 128, 64}, {{300, 0, 0, true}, {130, 1, 1, false}});
    for (double& value : p.v) value *= scale;
    for (std::vector<double>& state : p.states) {
      for (double& value : state) value *= scale;
    }
    SCOPED_TRACE(testing::Message() << "seed 210, scale " << scale);
    ExpectMatch(p);
  }
}

TEST_F(CudaDeltaChunkTest, MatchesReferenceWithF16State) {
  const std::unique_ptr<Backend> halves = MakeCuda(DType::kBF16, DType::kF16);
  uint64_t seed = 220;
  for (const int key_dim : {64, 256}) {
    ++seed;
    DeltaProblem p(seed, {1, 2, key_dim, 64}, RandomPrompts(seed, 180));
    for (std::vector<double>& state : p.states) {
      for (double& value : state) value = RoundTo(value, DType::kF16);
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << p.dims.Describe());
    ExpectClose(p, p.Run(*halves), p.Run(*reference_));
  }
}

// A matrix that a prompt leaves in integers, and that the next part of the prompt goes on from.
TEST_F(CudaDeltaChunkTest, MatchesReferenceWithInt8State) {
  const std::unique_ptr<Backend> ints = MakeCuda(DType::kBF16, DType::kI8);
  uint64_t seed = 225;
  for (const int key_dim : {64, 128, 256}) {
    ++seed;
    constexpr int kFirst = 150, kSecond = 90;
    const DeltaDims dims = {1, 2, key_dim, 80};
    const DeltaProblem p(seed, dims, {{kFirst + kSecond, 0, 0, true}}, /*max_beta=*/1,
                         /*slots=*/1, /*memories=*/1);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
    const DeltaResult want = p.Run(*reference_);
    std::vector<int> first, second;
    for (int e = 0; e < kFirst + kSecond; ++e) (e < kFirst ? first : second).push_back(e);

    Workbench bench(*ints);
    const int64_t pitch = StateRowPitch(DType::kI8, key_dim), rows = int64_t{2} * 80;
    SlabPool slabs(bench, 1, 1, rows * pitch, DType::kI8);
    std::vector<double> out = p.Step(bench, slabs, {{kFirst, 0, 0, true}}, first);
    const std::vector<double> rest = p.Step(bench, slabs, {{kSecond, 0, 0, false}}, second);
    out.insert(out.end(), rest.begin(), rest.end());
    std::vector<double> state;
    const std::vector<std::byte> bytes = slabs.Bytes();
    for (int64_t row = 0; row < rows; ++row) {
      const std::byte* at = bytes.data() + slabs.view().offset + row * pitch;
      float scale;
      std::memcpy(&scale, at + pitch - sizeof(scale), sizeof(scale));
      for (int d = 0; d < key_dim; ++d) state.push_back(double{scale} * static_cast<int8_t>(at[d]));
    }
    // A rounding moves an element by up to a 254th of the largest of its row, which is less than
    // five times their root mean square; twice on the way.
    const double bound = kDeltaChunkBound + 2 * 5.0 / 254;
    EXPECT_LE(RelativeError(out, want.out), bound);
    EXPECT_LE(RelativeError(state, want.states), bound);
  }
}

TEST_F(CudaDeltaChunkTest, OutputMayAliasValues) {
  const DeltaProblem p(230, {2, 4, 64, 80}, RandomPrompts(230, 190));
  const DeltaResult want = p.Run(*backend_), got = p.Run(*backend_, /*in_place=*/true);
  EXPECT_THAT(got.out, HasSameBits(want.out));
  EXPECT_THAT(got.states, HasSameBits(want.states));
}

// In whichever order blocks come to take the segments.
TEST_F(CudaDeltaChunkTest, RepeatingACallChangesNoBit) {
  const DeltaProblem p(240, {2, 2, 64, 64}, RandomPrompts(240, 400));
  const DeltaResult first = p.Run(*backend_);
  for (int round = 0; round < 3; ++round) {
    const DeltaResult again = p.Run(*backend_);
    EXPECT_THAT(again.out, HasSameBits(first.out));
    EXPECT_THAT(again.states, HasSameBits(first.states));
  }
}

// Blocks go from one segment to the next with what the last one left in shared memory.
TEST_F(CudaDeltaChunkTest, ABrokenSegmentStaysAlone) {
  std::vector<SegmentSpec> segments;
  for (int i = 0; i < 400; ++i) {
    segments.push_back({i % 4 == 0 ? 128 : 3 + i % 50, i, 0, true});
  }
  const DeltaProblem whole(250, {1, 1, 64, 16}, segments, /*max_beta=*/1, 400, /*memories=*/1);
  DeltaProblem broken = whole;
  const std::vector<int> offsets = Offsets(segments);
  for (int i = 0; i < 400; i += 4) {
    for (int e = offsets[i]; e < offsets[i + 1]; ++e) {
      std::fill_n(broken.k.begin() + e * 64, 64, std::numeric_limits<double>::quiet_NaN());
      std::fill_n(broken.q.begin() + e * 64, 64, std::numeric_limits<double>::quiet_NaN());
      std::fill_n(broken.v.begin() + e * 16, 16, std::numeric_limits<double>::quiet_NaN());
    }
  }
  const DeltaResult want = whole.Run(*backend_), got = broken.Run(*backend_);
  const int64_t n = whole.dims.state_elements();
  for (int i = 0; i < 400; ++i) {
    if (i % 4 == 0) continue;
    SCOPED_TRACE(testing::Message() << "seed 250, segment " << i);
    const auto rows = [&](const DeltaResult& result) {
      return std::vector<double>(result.out.begin() + offsets[i] * 16,
                                 result.out.begin() + offsets[i + 1] * 16);
    };
    const auto state = [&](const DeltaResult& result) {
      return std::vector<double>(result.states.begin() + i * n,
                                 result.states.begin() + (i + 1) * n);
    };
    EXPECT_THAT(rows(got), HasSameBits(rows(want)));
    EXPECT_THAT(state(got), HasSameBits(state(want)));
  }
}

// One segment of a prompt, `piece` entries a call.
DeltaResult RunInPieces(const DeltaProblem& p, Backend& backend, int piece) {
  const int tokens = p.segments[0].length;
  DeltaResult result;
  Workbench slab_bench(backend);
  SlabPool slabs = p.NewSlabs(slab_bench);
  p.LoadStates(slabs);
  for (int first = 0; first < tokens; first += piece) {
    Workbench bench(backend);
    SegmentSpec part = p.segments[0];
    part.length = std::min(piece, tokens - first);
    part.fresh = part.fresh && first == 0;
    std::vector<int> entries;
    for (int i = 0; i < part.length; ++i) entries.push_back(first + i);
    const std::vector<double> out = p.Step(bench, slabs, {part}, entries);
    result.out.insert(result.out.end(), out.begin(), out.end());
  }
  result.states = p.ReadStates(slabs);
  return result;
}

TEST_F(CudaDeltaChunkTest, SplittingASegmentStaysWithinTheBound) {
  const DeltaProblem p(300, {2, 2, 128, 48}, {{700, 0, 0, true}}, /*max_beta=*/1, /*slots=*/1,
                       /*memories=*/1);
  SCOPED_TRACE("seed 300");
  const DeltaResult want = p.Run(*reference_);
  for (const int piece : {1, 2, 37, 64, 65, 350, 700}) {
    SCOPED_TRACE(testing::Message() << piece << " entries a call");
    ExpectClose(p, RunInPieces(p, *backend_, piece), want);
  }
}

// Errors do not build up, from memories that forget at once to those that never do.
TEST_F(CudaDeltaChunkTest, SixtyFourThousandTokensStayWithinTheBound) {
  for (const double strongest_decay : {0.7, 1e-3, 0.0}) {
    DeltaProblem p(400, {1, 1, 64, 16}, {{65536, 0, 0, true}}, /*max_beta=*/1, /*slots=*/1,
                   /*memories=*/1);
    SeededRandom random(401);
    for (double& value : p.log_decay) {
      value = RoundTo(-random.Uniform(0, strongest_decay), DType::kF32);
    }
    SCOPED_TRACE(testing::Message() << "seed 400, log decay down to " << -strongest_decay);
    const DeltaResult want = RunInPieces(p, *reference_, 65536);
    ExpectClose(p, RunInPieces(p, *backend_, 8000), want);
    ExpectClose(p, RunInPieces(p, *backend_, 65536), want);
  }
}

}  // namespace
}  // namespace mneme
