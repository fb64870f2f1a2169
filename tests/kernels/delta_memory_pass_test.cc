// DeltaMemoryPass on a GPU against the operations it stands for, on the same GPU and in float64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/kernels/delta_memory_pass_problem.h"
#include "tests/support/backends.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

// Both round keys and queries to f16, of unit roundoff 2^-11, after norms that may differ in their
// last digits: a few numbers are rounded the other way.
constexpr double kPassBound = 0x1p-11;

class CudaDeltaMemoryPassTest : public CudaTest {
 protected:
  static constexpr int kSlots = 6, kMemories = 3;

  static std::unique_ptr<Backend> Make(const BackendOptions& options) {
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("cuda", options);
    CHECK(backend.ok()) << backend.status();
    return *std::move(backend);
  }
  static PassProblem RandomProblem(uint64_t seed, PassDims dims, int longest) {
    return PassProblem(seed, dims, RandomSegments(seed, kSlots, kMemories, longest), kSlots,
                       kMemories);
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
      const PassProblem p = RandomProblem(seed, dims, longest);
      const PassResult want = p.Run(*backend, {});
      for (const bool says_longer : {false, true}) {
        const PassResult got = p.Run(*backend, {.fuse = true, .says_longer = says_longer});
        EXPECT_TRUE(got.fused);
        EXPECT_LE(RelativeError(got.out, want.out), kPassBound);
        EXPECT_LE(RelativeError(got.states, want.states), kPassBound);
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
      PassProblem p = RandomProblem(seed, dims, longest);
      p.RoundWindows();
      const PassProblem exact = p;
      p.RoundProjections();
      for (const bool fuse : {false, true}) {
        for (const bool says_longer : {false, true}) {
          const PassOptions plain = {.fuse = fuse, .says_longer = says_longer};
          PassOptions projected = plain, both = plain, windows = plain;
          projected.projected = both.projected = both.window = windows.window = DType::kBF16;
          const PassResult want = p.Run(*backend, plain);
          // Inputs of windows in bf16 are rounded, if they were not before.
          for (const PassResult& got :
               {p.Run(*backend, projected), p.Run(*backend, both), exact.Run(*backend, windows)}) {
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
    const PassProblem p = RandomProblem(seed, dims, /*longest=*/1);
    const PassResult want = p.Run(*backend, {});
    const PassResult got = p.Run(*backend, {.fuse = true});
    EXPECT_TRUE(got.fused);
    EXPECT_LE(RelativeError(got.out, want.out), 1e-5);
    EXPECT_LE(RelativeError(got.states, want.states), 1e-5);
    EXPECT_THAT(got.windows, HasSameBits(want.windows));
  }
}

// Norms that no model has: any number that a kernel assumes shows. Keys are so short that the eps
// of 0.01 counts, and no longer than those of length one.
class CudaDeltaMemoryPassNormsTest : public CudaDeltaMemoryPassTest {
 protected:
  static PassProblem WithOtherNorms(PassProblem p) {
    p.ShortenKeys();
    p.norms = {.q = {.scale = 0.3f, .eps = 1e-2f}, .k = {.scale = 0.6f, .eps = 1e-2f}};
    return p;
  }
  // The same problem with one of the four numbers as models have it.
  static std::vector<PassProblem> Assumptions(const PassProblem& p) {
    const QueryKeyNorms usual = {.q = {.scale = 1 / std::sqrt(static_cast<float>(p.dims.key_dim))}};
    std::vector<PassProblem> all(4, p);
    all[0].norms.q.scale = usual.q.scale;
    all[1].norms.q.eps = usual.q.eps;
    all[2].norms.k.scale = usual.k.scale;
    all[3].norms.k.eps = usual.k.eps;
    return all;
  }
  // That `got` has each of the four numbers: with another its outputs would be further off.
  static void ExpectHonoured(const PassProblem& p, Backend& backend, const PassResult& got,
                             const PassResult& want, double bound) {
    EXPECT_TRUE(got.fused);
    EXPECT_LE(RelativeError(got.out, want.out), bound);
    EXPECT_LE(RelativeError(got.states, want.states), bound);
    EXPECT_THAT(got.windows, HasSameBits(want.windows));
    for (const PassProblem& assumption : Assumptions(p)) {
      EXPECT_GT(RelativeError(assumption.Run(backend, {}).out, want.out), 4 * bound);
    }
  }
};

TEST_F(CudaDeltaMemoryPassNormsTest, TokensTakeScalesAndEpsilonsAsTheyAreGiven) {
  const std::unique_ptr<Backend> backend = Make({});
  uint64_t seed = 650;
  // Decoding is tuned for some of these sizes, and not for the last.
  for (const PassDims dims : {PassDims{4, 4, 256, 256, true}, PassDims{2, 4, 64, 48, false},
                              PassDims{1, 2, 128, 64, true}, PassDims{2, 4, 40, 24, true}}) {
    ++seed;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PassProblem p = WithOtherNorms(RandomProblem(seed, dims, /*longest=*/1));
    const PassResult want = p.Run(*backend, {});
    ExpectHonoured(p, *backend, p.Run(*backend, {.fuse = true}), want, 1e-5);
  }
}

// So many that a device streams them past its multiprocessors.
TEST_F(CudaDeltaMemoryPassNormsTest, TokensOfManyMemoriesTakeScalesAndEpsilonsAsTheyAreGiven) {
  constexpr int kManySlots = 14;
  const std::unique_ptr<Backend> backend = Make({});
  std::vector<SegmentSpec> segments;
  for (int memory = 0; memory < kMemories; ++memory) {
    for (int slot = 0; slot < kManySlots; ++slot) segments.push_back({1, slot, memory, slot == 3});
  }
  const PassProblem p = WithOtherNorms(
      PassProblem(/*seed=*/660, PassDims{4, 4, 256, 256, true}, segments, kManySlots, kMemories));
  const PassResult want = p.Run(*backend, {});
  ExpectHonoured(p, *backend, p.Run(*backend, {.fuse = true}), want, 1e-5);
}

TEST_F(CudaDeltaMemoryPassNormsTest, PromptsTakeScalesAndEpsilonsAsTheyAreGiven) {
  const std::unique_ptr<Backend> backend = Make({.compute_dtype = DType::kBF16});
  uint64_t seed = 670;
  for (const PassDims dims : {PassDims{4, 4, 256, 256, true}, PassDims{2, 4, 128, 64, false},
                              PassDims{1, 1, 64, 48, true}}) {
    for (const int longest : {5, 150}) {
      ++seed;
      SCOPED_TRACE("seed " + std::to_string(seed));
      const PassProblem p = WithOtherNorms(RandomProblem(seed, dims, longest));
      const PassResult want = p.Run(*backend, {});
      for (const bool says_longer : {false, true}) {
        const PassResult got = p.Run(*backend, {.fuse = true, .says_longer = says_longer});
        ExpectHonoured(p, *backend, got, want, kPassBound);
      }
    }
  }
}

// Beside float64. The chunks' operands are rounded to f16, of unit roundoff 2^-11, eight times on
// the way from inputs to outputs: k and q (by what makes them, here), S, V', T, U and P T, S once
// more. What follows is linear, and the erasing product makes no error larger, so in norm that much
// may come of it; chance makes it an eighth. Convolutions, norms and gates in f32 are off by less
// than 2^-16 together, and tokens that decode by less than that.
constexpr double kPassUnitF16 = 0x1p-11;
constexpr double kPassChunkBound = 8 * kPassUnitF16 + 0x1p-16;

// And what is stored is rounded `times`, before that which is in hand has erased it. To f16 by its
// unit roundoff; to int8 an element moves by up to a 254th of the largest of its row, which is less
// than five times their root mean square. Of writes that stay pending beside such memories, both
// terms are rounded to f16.
double BoundOf(DType state, int times) {
  if (state == DType::kF32) return kPassChunkBound;
  const double rounding = state == DType::kF16 ? kPassUnitF16 : 5.0 / 254;
  return kPassChunkBound + times * rounding + 2 * kPassUnitF16;
}

// Every segment by itself: a long one would hide what a short one is off by.
void ExpectClose(const PassProblem& p, const PassResult& got, const PassResult& want,
                 double bound) {
  ASSERT_EQ(got.out.size(), want.out.size());
  ASSERT_EQ(got.states.size(), want.states.size());
  const auto part_of = [](const std::vector<double>& all, int64_t begin, int64_t size) {
    return std::vector<double>(all.begin() + begin, all.begin() + begin + size);
  };
  double worst_out = 0, worst_state = 0;
  int64_t entry = 0, memory = 0;
  for (const SegmentSpec& s : p.segments) {
    if (!s.active()) continue;
    const int64_t out = entry * p.dims.values(), outs = int64_t{s.length} * p.dims.values();
    const int64_t state = memory * p.StateElements();
    const double out_error =
        RelativeError(part_of(got.out, out, outs), part_of(want.out, out, outs));
    const double state_error = RelativeError(part_of(got.states, state, p.StateElements()),
                                             part_of(want.states, state, p.StateElements()));
    EXPECT_LE(out_error, bound) << s.length << " entries, slot " << s.slot << ", memory "
                                << s.memory;
    EXPECT_LE(state_error, bound) << s.length << " entries, slot " << s.slot << ", memory "
                                  << s.memory;
    worst_out = std::max(worst_out, out_error);
    worst_state = std::max(worst_state, state_error);
    entry += s.length;
    ++memory;
  }
  EXPECT_THAT(got.windows, HasSameBits(want.windows));
  std::printf("  worst relative error of a segment's outputs %.2e, of a state %.2e, bound %.2e\n",
              worst_out, worst_state, bound);
}

// As a step with prompts has them: rows that read a prompt, which may miss a memory or go through
// it once, rows that decode, and padding of both kinds.
std::vector<SegmentSpec> PromptsBesideDecoding(uint64_t seed, int slots, int memories,
                                               int longest) {
  SeededRandom random(seed);
  const std::vector<int> order = random.Permutation(slots);
  std::vector<SegmentSpec> segments;
  for (int memory = 0; memory < memories; ++memory) {
    for (int row = 0; row < slots + 2; ++row) {
      SegmentSpec segment = {.slot = row < slots ? order[row] : -1, .memory = memory};
      if (random.Chance(0.8)) segment.length = row % 2 == 0 ? random.Int(1, longest) : 1;
      segment.fresh = segment.active() && random.Chance(0.3);
      segments.push_back(segment);
    }
  }
  return segments;
}

// As bf16 models are served: projections and windows in bf16, writes pending when a prompt comes,
// full ranges and empty ones among them.
TEST_F(CudaDeltaMemoryPassTest, PromptsBesideDecodingRowsMatchFloat64) {
  constexpr int kRows = 8;
  for (const DType state : {DType::kF32, DType::kF16, DType::kI8}) {
    const std::unique_ptr<Backend> reference = MakeReference();
    const std::unique_ptr<Backend> backend =
        Make({.compute_dtype = DType::kBF16, .state_dtype = state});
    uint64_t seed = 800;
    for (const PassDims dims : {PassDims{2, 2, 256, 256, true}, PassDims{2, 4, 128, 64, false},
                                PassDims{1, 1, 64, 48, true}, PassDims{3, 3, 64, 80, false}}) {
      for (const int longest : {2, 40, 200}) {
        ++seed;
        SCOPED_TRACE("seed " + std::to_string(seed) + ", state " + Name(state));
        PassProblem p(seed, dims, PromptsBesideDecoding(seed, kRows, kMemories, longest), kRows,
                      kMemories);
        p.RoundProjections();
        p.RoundWindows();
        p.RoundStates(state);
        const PassResult want = p.Run(*reference, {.pending = true});
        for (const bool says_longer : {false, true}) {
          const PassResult got = p.Run(*backend, {.fuse = true,
                                                  .says_longer = says_longer,
                                                  .projected = DType::kBF16,
                                                  .window = DType::kBF16,
                                                  .state = state,
                                                  .pending = true});
          EXPECT_TRUE(got.fused);
          // When pending writes are folded, and when the prompt or a token ends.
          ExpectClose(p, got, want, BoundOf(state, /*times=*/2));
        }
      }
    }
  }
}

TEST_F(CudaDeltaMemoryPassNormsTest, MixedStepsTakeScalesAndEpsilonsAsTheyAreGiven) {
  constexpr int kRows = 8;
  const std::unique_ptr<Backend> reference = MakeReference();
  const std::unique_ptr<Backend> backend = Make({.compute_dtype = DType::kBF16});
  uint64_t seed = 850;
  for (const PassDims dims : {PassDims{2, 2, 256, 256, true}, PassDims{2, 4, 128, 64, false},
                              PassDims{3, 3, 64, 80, false}}) {
    ++seed;
    SCOPED_TRACE("seed " + std::to_string(seed));
    PassProblem p(seed, dims, PromptsBesideDecoding(seed, kRows, kMemories, /*longest=*/40), kRows,
                  kMemories);
    p = WithOtherNorms(p);
    const PassResult want = p.Run(*reference, {.pending = true});
    const PassResult got = p.Run(*backend, {.fuse = true, .says_longer = true, .pending = true});
    EXPECT_TRUE(got.fused);
    ExpectClose(p, got, want, BoundOf(DType::kF32, /*times=*/0));
  }
}

// One session's tokens in steps of these lengths, over and over, beside so many padding rows that a
// large batch's kernels are chosen, which hold writes back.
struct Steps {
  std::vector<int> lengths;
  int padding;
};
PassResult RunInSteps(const PassProblem& p, Backend& backend, const PassOptions& options,
                      const Steps& steps) {
  PassRun run(backend, p, options, steps.padding);
  const SegmentSpec& whole = p.segments[0];
  PassResult result = {};
  for (int first = 0, step = 0; first < whole.length; ++step) {
    SegmentSpec part = whole;
    part.length = std::min(steps.lengths[step % steps.lengths.size()], whole.length - first);
    part.fresh = whole.fresh && first == 0;
    if (part.length > 1) {
      result.met_pending += run.CountPending();
      ++result.prompts;
    }
    const std::vector<double> out = run.Step({part}, first);
    result.out.insert(result.out.end(), out.begin(), out.end());
    first += part.length;
  }
  result.fused = run.fused();
  run.Settle();
  run.ReadTo(result);
  return result;
}

// Prompts as steps take them, of the longest and of an odd length, and between them answers that
// fold once and more. After the answer that ends a cycle a memory was rounded when the prompt
// before it ended, and is when pending writes are folded; in the longer answer once more.
class CudaDeltaMemoryPassLongRunTest : public CudaDeltaMemoryPassTest {
 protected:
  static constexpr int kRoundings = 3, kPart = 512;

  static Steps LongSteps(int longest, int padding) {
    Steps steps = {{longest}, padding};
    steps.lengths.insert(steps.lengths.end(), 20, 1);
    steps.lengths.push_back(longest * 3 / 4 - 15);
    steps.lengths.insert(steps.lengths.end(), 2, 1);
    return steps;
  }
  static void ExpectMatch(const PassProblem& p, const Steps& steps) {
    const int tokens = p.segments[0].length;
    const PassResult want = RunInSteps(p, *MakeReference(), {}, {{tokens}, /*padding=*/0});
    for (const DType state : {DType::kF32, DType::kF16, DType::kI8}) {
      SCOPED_TRACE(std::string("state ") + Name(state));
      const std::unique_ptr<Backend> backend =
          Make({.compute_dtype = DType::kBF16, .state_dtype = state});
      const PassOptions options = {.fuse = true,
                                   .says_longer = true,
                                   .projected = DType::kBF16,
                                   .window = DType::kBF16,
                                   .state = state,
                                   .pending = true};
      const PassResult got = RunInSteps(p, *backend, options, steps);
      EXPECT_TRUE(got.fused);
      std::printf("  state %s, %d of %d prompts met pending writes\n", Name(state), got.met_pending,
                  got.prompts);
      // Where not so, every token is written at once.
      if (state == DType::kI8 || HasHopperKernels()) {
        EXPECT_EQ(got.met_pending, got.prompts - 1);
      }
      const double bound = BoundOf(state, kRoundings);
      ExpectClose(p, got, want, bound);
      // And part by part, so that what one step lost shows.
      EXPECT_LE(WorstRowError(got.out, want.out, kPart * p.dims.values()), bound);
    }
  }
  static PassProblem OneSession(uint64_t seed, const PassDims& dims, int tokens) {
    PassProblem p(seed, dims, {{tokens, 0, 0, true}}, /*slots=*/1, /*memories=*/1);
    p.RoundProjections();
    return p;
  }
};

// From memories that forget at once, as those of random weights do, to those that never do.
TEST_F(CudaDeltaMemoryPassLongRunTest, SixtyFourThousandTokensStayWithinTheBound) {
  PassProblem p = OneSession(900, {1, 2, 128, 64, true}, 65536);
  for (const double slower : {1.0, 1e3, 1e14}) {
    SCOPED_TRACE(testing::Message() << "seed 900, decays slowed by another " << slower);
    p.SlowDecaysBy(slower);
    ExpectMatch(p, LongSteps(8192, /*padding=*/1200));
  }
}

TEST_F(CudaDeltaMemoryPassLongRunTest, ThousandsOfTokensOfLargeHeadsStayWithinTheBound) {
  PassProblem p = OneSession(910, {4, 4, 256, 256, true}, 5120);
  SCOPED_TRACE("seed 910");
  p.SlowDecaysBy(1e3);
  ExpectMatch(p, LongSteps(2048, /*padding=*/100));
}

}  // namespace
}  // namespace mneme
