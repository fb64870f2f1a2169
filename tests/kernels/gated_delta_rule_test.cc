#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/delta_rule_problem.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

std::vector<SegmentSpec> RandomDeltaSegments(uint64_t seed, int longest) {
  return RandomSegments(seed, DeltaProblem::kSlots, DeltaProblem::kMemories, longest);
}

class GatedDeltaRuleTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const DeltaProblem& p) {
    const DeltaResult want = p.Run(*reference_), got = p.Run(*backend_), bound = p.Bound();
    EXPECT_THAT(got.out, IsWithin(bound.out, want.out));
    EXPECT_THAT(got.states, IsWithin(bound.states, want.states));
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(GatedDeltaRuleTest, MatchesReferenceForEveryHeadSize) {
  uint64_t seed = 0;
  for (const int key_dim : {16, 20, 24, 32, 48, 64, 80, 96, 128, 256}) {
    for (const int value_dim : {key_dim, 2 * key_dim, 24}) {
      if (value_dim > 256) continue;
      ++seed;
      const DeltaProblem p(seed, {1, 1, key_dim, value_dim}, RandomDeltaSegments(seed, 6));
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << p.dims.Describe());
      ExpectMatch(p);
    }
  }
}

TEST_P(GatedDeltaRuleTest, MatchesReferenceForGroupedHeads) {
  uint64_t seed = 100;
  for (const DeltaDims dims :
       {DeltaDims{2, 2, 32, 32}, DeltaDims{2, 4, 16, 48}, DeltaDims{1, 3, 20, 24},
        DeltaDims{3, 6, 48, 16}, DeltaDims{4, 4, 24, 80}, DeltaDims{2, 6, 64, 33}}) {
    for (const int longest : {1, 3, 17}) {
      ++seed;
      const DeltaProblem p(seed, dims, RandomDeltaSegments(seed, longest));
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
      ExpectMatch(p);
    }
  }
}

TEST_P(GatedDeltaRuleTest, MatchesReferenceForOddSizes) {
  uint64_t seed = 150;
  for (const DeltaDims dims : {DeltaDims{1, 1, 1, 1}, DeltaDims{1, 2, 3, 5}, DeltaDims{2, 2, 17, 7},
                               DeltaDims{1, 1, 33, 1}, DeltaDims{1, 1, 100, 50}}) {
    ++seed;
    const DeltaProblem p(seed, dims, RandomDeltaSegments(seed, 5));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
    ExpectMatch(p);
  }
}

TEST_P(GatedDeltaRuleTest, MatchesReferenceWithNegativeEigenvalues) {
  for (uint64_t seed = 200; seed < 204; ++seed) {
    const DeltaProblem p(seed, {2, 2, 32, 32}, RandomDeltaSegments(seed, 40), /*max_beta=*/2);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ExpectMatch(p);
  }
}

TEST_P(GatedDeltaRuleTest, OutputMayAliasValues) {
  const DeltaProblem p(210, {2, 4, 20, 24}, RandomDeltaSegments(210, 9));
  const DeltaResult want = p.Run(*backend_), got = p.Run(*backend_, /*in_place=*/true);
  EXPECT_THAT(got.out, HasSameBits(want.out));
  EXPECT_THAT(got.states, HasSameBits(want.states));
}

// A memory with no entries, of a padding row, or of a session that is not in the step at all.
TEST_P(GatedDeltaRuleTest, LeavesOtherMemoriesBitIdentical) {
  const std::vector<SegmentSpec> segments = {{3, 1, 0, false}, {2, -1, 0, false}, {0, 2, 0, false},
                                             {1, 1, 1, true},  {4, -1, 1, false}, {0, 2, 1, false}};
  const DeltaProblem p(220, {2, 2, 48, 32}, segments);
  const DeltaResult got = p.Run(*backend_);
  const int64_t n = p.dims.state_elements();
  for (int slot = 0; slot < p.slots; ++slot) {
    if (slot == 1) continue;
    for (int memory = 0; memory < p.memories; ++memory) {
      const auto first = got.states.begin() + (slot * p.memories + memory) * n;
      EXPECT_THAT(std::vector<double>(first, first + n),
                  HasSameBits(p.states[slot * p.memories + memory]))
          << "slot " << slot << ", memory " << memory;
    }
  }
  ExpectMatch(p);
}

// Each segment's entries are dealt out over several calls, together with other segments' or alone.
TEST_P(GatedDeltaRuleTest, SplittingASegmentChangesNoBit) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  uint64_t seed = 300;
  for (const DeltaDims dims :
       {DeltaDims{1, 1, 16, 16}, DeltaDims{2, 2, 20, 24}, DeltaDims{2, 4, 64, 48},
        DeltaDims{1, 1, 128, 128}, DeltaDims{1, 2, 256, 20}, DeltaDims{1, 1, 96, 80}}) {
    for (int round = 0; round < 3; ++round) {
      ++seed;
      const DeltaProblem p(seed, dims, RandomDeltaSegments(seed, 14));
      const DeltaResult want = p.Run(*backend_);
      Workbench bench(*backend_);
      SlabPool slabs = p.NewSlabs(bench);
      p.LoadStates(slabs);
      const std::vector<int> offsets = Offsets(p.segments);
      std::vector<int> done(p.segments.size(), 0);
      std::vector<std::vector<double>> out(p.segments.size());
      SeededRandom random(seed);
      for (bool left = true; left;) {
        left = false;
        std::vector<SegmentSpec> part;
        std::vector<int> part_of, entries;
        for (const int s : random.Permutation(static_cast<int>(p.segments.size()))) {
          const int rest = p.segments[s].length - done[s];
          SegmentSpec piece = p.segments[s];
          piece.length = random.Int(0, std::min(rest, 1 + static_cast<int>(seed % 6)));
          piece.fresh = piece.fresh && done[s] == 0 && piece.length > 0;
          for (int i = 0; i < piece.length; ++i) entries.push_back(offsets[s] + done[s] + i);
          part.push_back(piece);
          part_of.push_back(s);
          left |= rest > piece.length;
        }
        const std::vector<double> part_out = p.Step(bench, slabs, part, entries);
        for (size_t i = 0; i < part.size(); ++i) {
          const std::vector<double> rows =
              PickEntries(part_out, dims.value_heads * dims.value_dim, part, {static_cast<int>(i)});
          out[part_of[i]].insert(out[part_of[i]].end(), rows.begin(), rows.end());
          done[part_of[i]] += part[i].length;
        }
      }
      std::vector<double> joined;
      for (size_t s = 0; s < out.size(); ++s) {
        if (p.segments[s].active()) joined.insert(joined.end(), out[s].begin(), out[s].end());
      }
      EXPECT_THAT(joined, HasSameBits(want.out)) << "seed " << seed << ", " << dims.Describe();
      EXPECT_THAT(p.ReadStates(slabs), HasSameBits(want.states))
          << "seed " << seed << ", " << dims.Describe();
    }
  }
}

TEST_P(GatedDeltaRuleTest, TheNumberOfThreadsChangesNoBit) {
  uint64_t seed = 400;
  for (const DeltaDims dims :
       {DeltaDims{1, 1, 64, 64}, DeltaDims{3, 3, 20, 48}, DeltaDims{1, 1, 256, 256}}) {
    for (const int longest : {1, 20}) {
      ++seed;
      const DeltaProblem p(seed, dims, RandomDeltaSegments(seed, longest));
      const DeltaResult want = p.Run(*GetParam().Make(1));
      for (const int threads : {2, 3}) {
        const DeltaResult got = p.Run(*GetParam().Make(threads));
        EXPECT_THAT(got.out, HasSameBits(want.out)) << threads << " threads, " << dims.Describe();
        EXPECT_THAT(got.states, HasSameBits(want.states)) << threads << " threads";
      }
    }
  }
}

// A memory that decays into the denormals, some of it per call.
TEST_P(GatedDeltaRuleTest, AMemoryThatFadesAwayChangesNoBit) {
  DeltaProblem p(450, {3, 3, 48, 64}, {{6, 0, 0, false}, {5, 1, 0, false}, {7, 2, 1, false}});
  for (double& value : p.log_decay) value = -16;
  for (double& value : p.v) value = RoundTo(value * 0x1p-125, DType::kF32);
  const DeltaResult want = p.Run(*GetParam().Make(1)), got = p.Run(*GetParam().Make(3));
  EXPECT_THAT(got.out, HasSameBits(want.out));
  EXPECT_THAT(got.states, HasSameBits(want.states));
  ExpectMatch(p);
}

TEST_P(GatedDeltaRuleTest, NoSegmentsAreNoWork) {
  const DeltaProblem p(500, {1, 1, 16, 16}, {});
  EXPECT_TRUE(p.Run(*backend_).out.empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, GatedDeltaRuleTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

// 20,000 tokens through one memory, in pieces of a prefill and one by one.
class GatedDeltaRuleLongRunTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  // The whole run, `piece` entries a call; states at the end and the outputs of the last 200
  // entries.
  static DeltaResult Run(const DeltaProblem& p, Backend& backend, int piece) {
    const int tokens = p.segments[0].length;
    DeltaResult result;
    Workbench slab_bench(backend);
    SlabPool slabs = p.NewSlabs(slab_bench);
    for (int first = 0; first < tokens; first += piece) {
      Workbench bench(backend);
      SegmentSpec part = p.segments[0];
      part.length = std::min(piece, tokens - first);
      part.fresh = first == 0;
      std::vector<int> entries;
      for (int i = 0; i < part.length; ++i) entries.push_back(first + i);
      const std::vector<double> out = p.Step(bench, slabs, {part}, entries);
      result.out.insert(result.out.end(), out.begin(), out.end());
    }
    result.states = p.ReadStates(slabs);
    return result;
  }
};

TEST_P(GatedDeltaRuleLongRunTest, StaysWithinTheRunningErrorBound) {
  const std::unique_ptr<Backend> backend = GetParam().Make(1), reference = MakeReference();
  for (const double strongest_decay : {0.0, 1e-4, 0.05}) {
    DeltaProblem p(600, {1, 1, 32, 16}, {{20000, 0, 0, true}}, /*max_beta=*/1, /*slots=*/1,
                   /*memories=*/1);
    SeededRandom random(601);
    for (double& value : p.log_decay) {
      value = RoundTo(-random.Uniform(0, strongest_decay), DType::kF32);
    }
    const DeltaResult want = Run(p, *reference, 20000), bound = p.Bound();
    const DeltaResult got = Run(p, *backend, 20000);
    SCOPED_TRACE(testing::Message() << "seed 600, log decay down to " << -strongest_decay);
    EXPECT_THAT(got.out, IsWithin(bound.out, want.out));
    EXPECT_THAT(got.states, IsWithin(bound.states, want.states));
    // Roundings are as often up as down: far from the worst case, the error does not build up.
    EXPECT_LT(RelativeError(got.states, want.states), 2e-5);
    EXPECT_LT(RelativeError(got.out, want.out), 2e-5);

    const DeltaResult pieces = Run(p, *backend, 37);
    if (GetParam().bit_exact()) {
      EXPECT_THAT(pieces.out, HasSameBits(got.out));
      EXPECT_THAT(pieces.states, HasSameBits(got.states));
    } else {
      EXPECT_THAT(pieces.out, IsWithin(bound.out, want.out));
      EXPECT_THAT(pieces.states, IsWithin(bound.states, want.states));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GatedDeltaRuleLongRunTest,
                         testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
