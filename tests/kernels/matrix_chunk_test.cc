// Matrix memories of whole prompts on a GPU, in chunks and on 16-bit operands (compute dtype bf16),
// against float64 token by token. delta_chunk_test has more of the gated delta rule.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/matrix_memory_problem.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using ChunkRule = MatrixRule;

// Operands are rounded to bf16, of unit roundoff 2^-9, at most eight times on the way from inputs
// to outputs: k, q, S, V', T, U and P T, S once more; without a correction k, q, S, A and v; with
// the general one k, e, q, S, S c, T, T B or P T, U. What
// follows is linear, decays are at most 1 and the erasing product does not make an error larger, so
// in norm that much may come of it; chance makes it a fifth, or two thirds where beta stays at 2.
constexpr double kChunkBound = 8 * 0x1p-9;

// Every rule that has a chunked form.
std::vector<ChunkRule> ChunkedRules() {
  std::vector<ChunkRule> rules;
  for (const auto decay :
       {ChunkRule::Decay::kNone, ChunkRule::Decay::kConstant, ChunkRule::Decay::kHead,
        ChunkRule::Decay::kKey, ChunkRule::Decay::kValue}) {
    rules.push_back({decay, ChunkRule::Correction::kNone, ChunkRule::Read::kAfter});
  }
  for (const auto decay :
       {ChunkRule::Decay::kNone, ChunkRule::Decay::kHead, ChunkRule::Decay::kKey}) {
    rules.push_back({decay, ChunkRule::Correction::kDelta, ChunkRule::Read::kAfter});
  }
  rules.push_back(
      {ChunkRule::Decay::kKey, ChunkRule::Correction::kNone, ChunkRule::Read::kBeforeWithBonus});
  rules.push_back(
      {ChunkRule::Decay::kKey, ChunkRule::Correction::kGeneral, ChunkRule::Read::kAfter});
  return rules;
}

class CudaMatrixChunkTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!HasHopperKernels()) GTEST_SKIP() << "only Hopper has these kernels";
    backend_ = MakeCuda(DType::kBF16);
  }

  static std::vector<double> ActiveStates(const MatrixProblem& p, const MatrixResult& result) {
    return mneme::ActiveStates(p.segments, p.memories, p.dims.state_elements(), result.states);
  }
  static void ExpectClose(const MatrixProblem& p, const MatrixResult& got,
                          const MatrixResult& want) {
    EXPECT_LE(RelativeError(got.out, want.out), kChunkBound);
    EXPECT_LE(RelativeError(ActiveStates(p, got), ActiveStates(p, want)), kChunkBound);
  }
  void ExpectMatch(const MatrixProblem& p) { ExpectClose(p, p.Run(*backend_), p.Run(*reference_)); }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_ = MakeReference();
};

// Ragged, empty and padding ones, and single tokens.
std::vector<SegmentSpec> RandomRulePrompts(uint64_t seed, int longest) {
  return RandomSegments(seed, MatrixProblem::kSlots, MatrixProblem::kMemories, longest);
}

TEST_F(CudaMatrixChunkTest, MatchesReferenceForEveryRuleAndSize) {
  uint64_t seed = 0;
  for (const ChunkRule rule : ChunkedRules()) {
    for (const int key_dim : {64, 128, 256, 512}) {
      for (const int value_dim : {64, 192}) {
        ++seed;
        const MatrixProblem p(seed, rule, {.key_dim = key_dim, .value_dim = value_dim},
                              RandomRulePrompts(seed, 200));
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << Describe(rule) << ", " << p.dims.Describe());
        ExpectMatch(p);
      }
    }
  }
}

// Values that do not fill the last tile, and sizes that have no chunked form.
TEST_F(CudaMatrixChunkTest, MatchesReferenceForOddSizes) {
  uint64_t seed = 100;
  for (const ChunkRule rule : ChunkedRules()) {
    for (const MatrixDims dims :
         {MatrixDims{1, 64, 16}, MatrixDims{2, 128, 80}, MatrixDims{1, 64, 24},
          MatrixDims{2, 48, 64}, MatrixDims{3, 33, 7}, MatrixDims{1, 640, 64}}) {
      ++seed;
      const MatrixProblem p(seed, rule, dims, RandomRulePrompts(seed, 150));
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", " << Describe(rule) << ", " << dims.Describe());
      ExpectMatch(p);
    }
  }
}

// The other tests would pass if nothing went in chunks.
TEST_F(CudaMatrixChunkTest, ChunksRoundWhereTheirSizesAreAndNothingElseDoes) {
  const std::unique_ptr<Backend> exact = MakeCuda(DType::kF32);
  for (const ChunkRule rule : ChunkedRules()) {
    SCOPED_TRACE(Describe(rule));
    const MatrixProblem chunked(140, rule, {.heads = 2, .key_dim = 64, .value_dim = 64},
                                {{130, 0, 0, true}});
    EXPECT_NE(chunked.Run(*backend_).out, chunked.Run(*exact).out);
    const MatrixProblem by_token(141, rule, {.heads = 2, .key_dim = 48, .value_dim = 64},
                                 {{130, 0, 0, true}});
    EXPECT_THAT(by_token.Run(*backend_).out, HasSameBits(by_token.Run(*exact).out));
  }
}

TEST_F(CudaMatrixChunkTest, MatchesReferenceForGroupsOfHeads) {
  uint64_t seed = 200;
  for (const ChunkRule rule : ChunkedRules()) {
    for (const MatrixDims dims :
         {MatrixDims{4, 64, 64, 2, 2, 4, 4}, MatrixDims{4, 128, 64, 4, 2, 2, 4},
          MatrixDims{6, 64, 64, 3, 2, 6, 1}}) {
      ++seed;
      const MatrixProblem p(seed, rule, dims, RandomRulePrompts(seed, 150));
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", " << Describe(rule) << ", " << dims.Describe());
      ExpectMatch(p);
    }
  }
}

TEST_F(CudaMatrixChunkTest, MatchesReferenceForEveryLength) {
  std::vector<SegmentSpec> segments;
  for (int length = 0; length <= 200; ++length) {
    segments.push_back({length, static_cast<int>(segments.size()), 0, length % 3 == 1});
    if (length % 50 == 7) segments.push_back({length, -1, 0, false});
  }
  const int slots = static_cast<int>(segments.size());
  for (const ChunkRule rule : ChunkedRules()) {
    SCOPED_TRACE(testing::Message() << "seed 300, " << Describe(rule));
    const MatrixProblem p(300, rule, {.key_dim = 64, .value_dim = 64}, segments, slots,
                          /*memories=*/1);
    const MatrixResult want = p.Run(*reference_), got = p.Run(*backend_);
    ExpectClose(p, got, want);
    size_t begin = 0;  // and each by itself
    for (const SegmentSpec& segment : segments) {
      if (!segment.active()) continue;
      const size_t end = begin + static_cast<size_t>(segment.length) * p.dims.value_dim;
      EXPECT_LE(RelativeError({got.out.begin() + begin, got.out.begin() + end},
                              {want.out.begin() + begin, want.out.begin() + end}),
                kChunkBound)
          << segment.length << " entries";
      begin = end;
    }
  }
}

// Long prompts of few heads are cut into spans that are joined.
TEST_F(CudaMatrixChunkTest, MatchesReferenceForLongSegments) {
  for (const ChunkRule rule : ChunkedRules()) {
    SCOPED_TRACE(testing::Message() << "seed 350, " << Describe(rule));
    MatrixProblem p(350, rule, {.heads = 1, .key_dim = 64, .value_dim = 64},
                    {{2100, 0, 0, false}, {1, 1, 0, false}, {130, 2, 0, true}, {1500, 3, 1, true}});
    // Memories that still hold something of the last span.
    for (double& decay : p.log_decay.values) decay = RoundTo(std::max(decay, -0.01), DType::kF32);
    ExpectMatch(p);
  }
}

// None, all at once, and long runs of strong ones; and the delta rule's strength at its ends.
TEST_F(CudaMatrixChunkTest, ExtremeGatesStayFiniteAndMatch) {
  constexpr double kAll = -std::numeric_limits<double>::infinity();
  for (const ChunkRule rule : ChunkedRules()) {
    for (const double decay : {0.0, -1e-6, -3.0, -100.0, -1e4, kAll}) {
      if (rule.decay == ChunkRule::Decay::kNone && decay != 0) continue;
      SCOPED_TRACE(testing::Message() << "seed 400, " << Describe(rule) << ", log decay " << decay);
      MatrixProblem p(400, rule, {.heads = 2, .key_dim = 64, .value_dim = 64},
                      {{200, 0, 0, false}, {67, 1, 1, true}});
      // In runs of 40 entries, with gentle ones between.
      std::vector<double>& decays = p.log_decay.values;
      const size_t width = static_cast<size_t>(p.log_decay.heads) * p.log_decay.width;
      for (size_t i = 0; i < decays.size(); ++i) {
        const bool strong = rule.decay == ChunkRule::Decay::kConstant || i / width / 40 % 2 == 0;
        decays[i] = RoundTo(strong ? decay : -1e-3, DType::kF32);
      }
      for (size_t i = 0; i < p.beta.values.size(); ++i) p.beta.values[i] = i / 7 % 3;  // 0, 1, 2
      const MatrixResult want = p.Run(*reference_), got = p.Run(*backend_);
      const auto finite = [](double x) { return std::isfinite(x); };
      EXPECT_TRUE(std::all_of(got.out.begin(), got.out.end(), finite));
      ExpectClose(p, got, want);
    }
  }
}

TEST_F(CudaMatrixChunkTest, MatchesReferenceWithF16State) {
  const std::unique_ptr<Backend> halves = MakeCuda(DType::kBF16, DType::kF16);
  uint64_t seed = 450;
  for (const ChunkRule rule : ChunkedRules()) {
    for (const int key_dim : {64, 256}) {
      ++seed;
      MatrixProblem p(seed, rule, {.heads = 2, .key_dim = key_dim, .value_dim = 64},
                      RandomRulePrompts(seed, 180));
      for (std::vector<double>& state : p.states) {
        for (double& value : state) value = RoundTo(value, DType::kF16);
      }
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", " << Describe(rule) << ", " << p.dims.Describe());
      ExpectClose(p, p.Run(*halves), p.Run(*reference_));
    }
  }
}

TEST_F(CudaMatrixChunkTest, OutputMayAliasValuesAndRepeatingChangesNoBit) {
  for (const ChunkRule rule : ChunkedRules()) {
    SCOPED_TRACE(testing::Message() << "seed 500, " << Describe(rule));
    const MatrixProblem p(500, rule, {.heads = 2, .key_dim = 64, .value_dim = 128},
                          RandomRulePrompts(500, 400));
    const MatrixResult first = p.Run(*backend_);
    for (const bool in_place : {true, false}) {
      const MatrixResult again = p.Run(*backend_, in_place);
      EXPECT_THAT(again.out, HasSameBits(first.out)) << "in place: " << in_place;
      EXPECT_THAT(again.states, HasSameBits(first.states)) << "in place: " << in_place;
    }
  }
}

// Blocks go from one segment to the next with what the last one left in shared memory.
TEST_F(CudaMatrixChunkTest, ABrokenSegmentStaysAlone) {
  constexpr int kSegments = 400;
  std::vector<SegmentSpec> segments;
  for (int i = 0; i < kSegments; ++i) {
    segments.push_back({i % 4 == 0 ? 128 : 3 + i % 50, i, 0, true});
  }
  const std::vector<int> offsets = Offsets(segments);
  for (const ChunkRule rule : ChunkedRules()) {
    const MatrixProblem whole(550, rule, {.key_dim = 64, .value_dim = 64}, segments, kSegments,
                              /*memories=*/1);
    MatrixProblem broken = whole;
    for (int i = 0; i < kSegments; i += 4) {
      for (MatrixProblem::Input* input : {&broken.q, &broken.k, &broken.v}) {
        std::fill(input->values.begin() + offsets[i] * 64,
                  input->values.begin() + offsets[i + 1] * 64,
                  std::numeric_limits<double>::quiet_NaN());
      }
    }
    const MatrixResult want = whole.Run(*backend_), got = broken.Run(*backend_);
    const int64_t n = whole.dims.state_elements();
    for (int i = 0; i < kSegments; ++i) {
      if (i % 4 == 0) continue;
      SCOPED_TRACE(testing::Message() << "seed 550, " << Describe(rule) << ", segment " << i);
      const auto rows = [&](const MatrixResult& result) {
        return std::vector<double>(result.out.begin() + offsets[i] * 64,
                                   result.out.begin() + offsets[i + 1] * 64);
      };
      const auto state = [&](const MatrixResult& result) {
        return std::vector<double>(result.states.begin() + i * n,
                                   result.states.begin() + (i + 1) * n);
      };
      EXPECT_THAT(rows(got), HasSameBits(rows(want)));
      EXPECT_THAT(state(got), HasSameBits(state(want)));
    }
  }
}

TEST_F(CudaMatrixChunkTest, SplittingASegmentStaysWithinTheBound) {
  constexpr int kTokens = 700;
  for (const ChunkRule rule : ChunkedRules()) {
    const MatrixProblem p(600, rule, {.heads = 2, .key_dim = 128, .value_dim = 64},
                          {{kTokens, 0, 0, true}}, /*slots=*/1, /*memories=*/1);
    const MatrixResult want = p.Run(*reference_);
    for (const int piece : {2, 37, 65, 350}) {
      SCOPED_TRACE(testing::Message()
                   << "seed 600, " << Describe(rule) << ", " << piece << " entries a call");
      Workbench slab_bench(*backend_);
      SlabPool slabs = p.NewSlabs(slab_bench);
      MatrixResult got;
      for (int first = 0; first < kTokens; first += piece) {
        Workbench bench(*backend_);
        std::vector<int> entries;
        for (int e = first; e < std::min(first + piece, kTokens); ++e) entries.push_back(e);
        const std::vector<double> out =
            p.Step(bench, slabs, {{static_cast<int>(entries.size()), 0, 0, first == 0}}, entries);
        got.out.insert(got.out.end(), out.begin(), out.end());
      }
      got.states = p.ReadStates(slabs);
      ExpectClose(p, got, want);
    }
  }
}

// As RWKV-7 has it: what is recalled along a key of length one is erased, all of it or a share of
// each element, and decays are no stronger than exp(-exp(-1/2)).
TEST_F(CudaMatrixChunkTest, ErasingByUnitKeysMatchesReference) {
  const ChunkRule rule = {ChunkRule::Decay::kKey, ChunkRule::Correction::kGeneral,
                          ChunkRule::Read::kAfter};
  for (const bool whole : {false, true}) {
    for (const int key_dim : {64, 128}) {
      SCOPED_TRACE(testing::Message() << "seed 630, " << key_dim << " keys, whole: " << whole);
      MatrixProblem p(630, rule, {.heads = 2, .key_dim = key_dim, .value_dim = 64},
                      {{700, 0, 0, true}, {129, 1, 0, false}, {1, 2, 1, false}, {2, 3, 1, false}});
      SeededRandom random(631);
      for (double& decay : p.log_decay.values) {
        decay = RoundTo(-0.606531 * random.Uniform(), DType::kF32);
      }
      p.c.values = MatrixProblem::UnitVectors(random, 832 * 2, key_dim, 1);
      for (size_t i = 0; i < p.c.values.size(); ++i) {
        const double share = whole ? 1 : random.Uniform();
        p.e.values[i] = RoundTo(-share * p.c.values[i], DType::kF32);
      }
      ExpectMatch(p);
    }
  }
}

// Keys that are not of length one may make a memory larger than its values are, beyond what f16
// holds of a row: such go token by token, in f32.
TEST_F(CudaMatrixChunkTest, LongKeysGoTokenByToken) {
  const std::unique_ptr<Backend> exact = MakeCuda(DType::kF32);
  for (const auto decay : {ChunkRule::Decay::kNone, ChunkRule::Decay::kHead}) {
    const ChunkRule rule = {decay, ChunkRule::Correction::kDelta, ChunkRule::Read::kAfter};
    SCOPED_TRACE(testing::Message() << "seed 650, " << Describe(rule));
    MatrixProblem p(650, rule, {.heads = 2, .key_dim = 64, .value_dim = 64},
                    {{40, 0, 0, true}, {33, 1, 1, true}});
    p.long_keys = true;
    for (double& value : p.k.values) value = RoundTo(4 * value, DType::kF32);
    for (double& value : p.log_decay.values) value = 0;
    const MatrixResult want = p.Run(*reference_), got = p.Run(*backend_);
    double largest = 0;
    for (const double value : ActiveStates(p, want)) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 65504) << "too tame to tell";
    EXPECT_THAT(got.out, HasSameBits(p.Run(*exact).out));
    ExpectClose(p, got, want);
  }
}

}  // namespace
}  // namespace mneme
