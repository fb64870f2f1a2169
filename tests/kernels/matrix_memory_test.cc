// MatrixMemory under every rule: decays, corrections and reads. gated_delta_rule_test.cc has more
// of the gated delta rule.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/matrix_memory_problem.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using Decay = MatrixRule::Decay;
using Correction = MatrixRule::Correction;
using MatrixRead = MatrixRule::Read;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<SegmentSpec> Ragged(uint64_t seed, int longest) {
  return RandomSegments(seed, MatrixProblem::kSlots, MatrixProblem::kMemories, longest);
}

class MatrixMemoryTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const MatrixProblem& p) {
    SCOPED_TRACE(testing::Message() << Describe(p.rule) << ", " << p.dims.Describe());
    const MatrixResult want = p.Run(*reference_), got = p.Run(*backend_), bound = p.Bound();
    EXPECT_THAT(got.out, IsWithin(bound.out, want.out));
    EXPECT_THAT(got.states, IsWithin(bound.states, want.states));
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(MatrixMemoryTest, MatchesReferenceForEveryRuleAndSize) {
  uint64_t seed = 0;
  for (const MatrixRule rule : AllMatrixRules()) {
    for (const MatrixDims dims :
         {MatrixDims{1, 1, 1}, MatrixDims{2, 3, 5}, MatrixDims{1, 16, 16}, MatrixDims{1, 33, 7},
          MatrixDims{1, 65, 33}, MatrixDims{2, 32, 24}, MatrixDims{1, 64, 64},
          MatrixDims{1, 128, 40}, MatrixDims{1, 256, 9}, MatrixDims{1, 300, 3}}) {
      ++seed;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      ExpectMatch(MatrixProblem(seed, rule, dims, Ragged(seed, 6)));
    }
  }
}

TEST_P(MatrixMemoryTest, MatchesReferenceForSingleTokens) {
  uint64_t seed = 1000;
  for (const MatrixRule rule : AllMatrixRules()) {
    for (const int key_dim : {1, 16, 20, 32, 64, 128, 256}) {
      ++seed;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      ExpectMatch(MatrixProblem(seed, rule, {2, key_dim, 19}, Ragged(seed, 1)));
    }
  }
}

// So many matrices that a GPU deals them out in larger parts.
TEST_P(MatrixMemoryTest, MatchesReferenceForManyHeads) {
  for (const Correction correction : {Correction::kDelta, Correction::kGeneral}) {
    const MatrixRule rule = {Decay::kKey, correction, MatrixRead::kAfter};
    ExpectMatch(MatrixProblem(1500, rule, {400, 64, 64}, {{1, 1, 0, false}}));
  }
}

// Tensors of fewer heads than the memory has, each its own number.
TEST_P(MatrixMemoryTest, MatchesReferenceForGroupsOfHeads) {
  uint64_t seed = 2000;
  for (const MatrixRule rule : AllMatrixRules()) {
    for (const MatrixDims dims :
         {MatrixDims{6, 20, 16, 1, 2, 3, 6}, MatrixDims{6, 16, 5, 3, 1, 6, 2},
          MatrixDims{4, 64, 33, 4, 4, 1, 1}, MatrixDims{4, 32, 16, 2, 2, 4, 4}}) {
      for (const int longest : {1, 5}) {
        ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        ExpectMatch(MatrixProblem(seed, rule, dims, Ragged(seed, longest)));
      }
    }
  }
}

// More tokens than a backend takes at a time.
TEST_P(MatrixMemoryTest, MatchesReferenceForLongerSegments) {
  uint64_t seed = 3000;
  for (const MatrixRule rule : AllMatrixRules()) {
    // Nothing but the norms of c and e is known: the bound of their product grows with each
    // token.
    const int longest = rule.correction == Correction::kGeneral ? 12 : 150;
    for (const MatrixDims dims : {MatrixDims{2, 24, 20}, MatrixDims{1, 64, 16}}) {
      ++seed;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      ExpectMatch(MatrixProblem(seed, rule, dims, Ragged(seed, longest)));
    }
  }
}

TEST_P(MatrixMemoryTest, OutputMayAliasValues) {
  for (const MatrixRule rule : AllMatrixRules()) {
    SCOPED_TRACE(Describe(rule));
    const MatrixProblem p(4000, rule, {4, 20, 24, 2, 2, 4, 2}, Ragged(4000, 9));
    const MatrixResult want = p.Run(*backend_), got = p.Run(*backend_, /*in_place=*/true);
    EXPECT_THAT(got.out, HasSameBits(want.out));
    EXPECT_THAT(got.states, HasSameBits(want.states));
  }
}

// A memory with no entries, of a padding row, or of a session that is not in the step at all.
TEST_P(MatrixMemoryTest, LeavesOtherMemoriesBitIdentical) {
  const std::vector<SegmentSpec> segments = {{3, 1, 0, false}, {2, -1, 0, false}, {0, 2, 0, false},
                                             {1, 1, 1, true},  {4, -1, 1, false}, {0, 2, 1, false}};
  for (const MatrixRule rule : AllMatrixRules()) {
    SCOPED_TRACE(Describe(rule));
    const MatrixProblem p(4100, rule, {2, 48, 32}, segments);
    const MatrixResult got = p.Run(*backend_);
    const int64_t n = p.dims.state_elements();
    for (const int slot : {0, 2, 3}) {
      for (int memory = 0; memory < p.memories; ++memory) {
        const int index = slot * p.memories + memory;
        const auto first = got.states.begin() + index * n;
        EXPECT_THAT(std::vector<double>(first, first + n), HasSameBits(p.states[index]))
            << "slot " << slot << ", memory " << memory;
      }
    }
    ExpectMatch(p);
  }
}

TEST_P(MatrixMemoryTest, NoSegmentsAreNoWork) {
  for (const MatrixRule rule : AllMatrixRules()) {
    EXPECT_TRUE(MatrixProblem(4200, rule, {1, 16, 16}, {}).Run(*backend_).out.empty());
  }
}

// Each segment's entries are dealt out over several calls, together with other segments' or alone.
TEST_P(MatrixMemoryTest, SplittingASegmentOrTheBatchChangesNoBit) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  uint64_t seed = 5000;
  for (const MatrixRule rule : AllMatrixRules()) {
    for (const MatrixDims dims : {MatrixDims{2, 20, 24}, MatrixDims{2, 64, 40}}) {
      ++seed;
      const MatrixProblem p(seed, rule, dims, Ragged(seed, 14));
      const MatrixResult want = p.Run(*backend_);
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
              PickEntries(part_out, dims.heads * dims.value_dim, part, {static_cast<int>(i)});
          out[part_of[i]].insert(out[part_of[i]].end(), rows.begin(), rows.end());
          done[part_of[i]] += part[i].length;
        }
      }
      std::vector<double> joined;
      for (size_t s = 0; s < out.size(); ++s) {
        if (p.segments[s].active()) joined.insert(joined.end(), out[s].begin(), out[s].end());
      }
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << Describe(rule));
      EXPECT_THAT(joined, HasSameBits(want.out));
      EXPECT_THAT(p.ReadStates(slabs), HasSameBits(want.states));
    }
  }
}

TEST_P(MatrixMemoryTest, TheNumberOfThreadsChangesNoBit) {
  uint64_t seed = 6000;
  const std::unique_ptr<Backend> one = GetParam().Make(1), three = GetParam().Make(3);
  for (const MatrixRule rule : AllMatrixRules()) {
    for (const MatrixDims dims : {MatrixDims{3, 20, 48}, MatrixDims{1, 128, 130}}) {
      for (const int longest : {1, 20}) {
        ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << Describe(rule));
        const MatrixProblem p(seed, rule, dims, Ragged(seed, longest));
        const MatrixResult want = p.Run(*one), got = p.Run(*three);
        EXPECT_THAT(got.out, HasSameBits(want.out));
        EXPECT_THAT(got.states, HasSameBits(want.states));
      }
    }
  }
}

// What a memory held before, however large, is gone once all of its decays are zero.
TEST_P(MatrixMemoryTest, ADecayOfZeroForgetsAll) {
  for (const MatrixRule rule : AllMatrixRules()) {
    if (rule.decay == Decay::kNone || rule.correction == Correction::kGeneral) continue;
    SCOPED_TRACE(Describe(rule));
    MatrixProblem p(7000, rule, {2, 48, 19}, {{1, 0, 0, false}, {3, 1, 1, false}});
    std::fill(p.log_decay.values.begin(), p.log_decay.values.end(), -kInfinity);
    ExpectMatch(p);
    const MatrixResult want = p.Run(*backend_);
    for (auto& state : p.states) {
      for (double& value : state) value *= 0x1p80;
    }
    const MatrixResult got = p.Run(*backend_);
    const int64_t n = p.dims.state_elements();
    for (const int index : {0, 3}) {
      const auto part = [&](const MatrixResult& result) {
        return std::vector<double>(result.states.begin() + index * n,
                                   result.states.begin() + (index + 1) * n);
      };
      // Zeros of either sign.
      EXPECT_THAT(part(got), IsWithin(0, part(want)));
    }
  }
}

// Neither a decay of one nor a write of nothing changes a memory.
TEST_P(MatrixMemoryTest, NothingWrittenChangesNothing) {
  for (const MatrixRule rule : AllMatrixRules()) {
    if (rule.correction == Correction::kGeneral) continue;
    SCOPED_TRACE(Describe(rule));
    MatrixProblem p(7100, rule, {2, 65, 17}, {{5, 0, 0, false}, {1, 1, 1, false}});
    std::fill(p.log_decay.values.begin(), p.log_decay.values.end(), 0.0);
    std::fill(p.beta.values.begin(), p.beta.values.end(), 0.0);
    if (p.beta.heads == 0) std::fill(p.v.values.begin(), p.v.values.end(), 0.0);
    std::vector<double> want;
    for (const auto& state : p.states) want.insert(want.end(), state.begin(), state.end());
    EXPECT_THAT(p.Run(*backend_).states, IsWithin(0, want));
  }
}

// Decays whose products no number of any format holds, and those of single elements among others
// that stay: a backend that divides by them would divide by zero.
TEST_P(MatrixMemoryTest, LongRunsOfStrongDecayStayFinite) {
  for (const MatrixRule rule : AllMatrixRules()) {
    if (rule.decay == Decay::kNone || rule.correction == Correction::kGeneral) continue;
    for (const double log_decay : {-1.0, -30.0, -90.0, -1e4, -kInfinity}) {
      SCOPED_TRACE(testing::Message() << "log decay " << log_decay);
      MatrixProblem p(7200, rule, {1, 32, 17}, {{300, 0, 0, false}, {77, 1, 1, true}});
      for (size_t i = 0; i < p.log_decay.values.size(); ++i) {
        if (i % 3 != 1) p.log_decay.values[i] = log_decay;
      }
      ExpectMatch(p);
    }
  }
}

// Rules meet where their parameters let them: each side is an implementation of the other.
TEST_P(MatrixMemoryTest, ADecayOfHeadsIsOneOfEqualKeysOrValues) {
  for (const Correction correction :
       {Correction::kNone, Correction::kDelta, Correction::kGeneral}) {
    for (const MatrixRead read : {MatrixRead::kAfter, MatrixRead::kBeforeWithBonus}) {
      const MatrixProblem heads(8000, {Decay::kHead, correction, read}, {2, 32, 20},
                                Ragged(8000, 7));
      const MatrixResult want = heads.Run(*backend_), bound = heads.Bound();
      for (const Decay decay : {Decay::kKey, Decay::kValue}) {
        MatrixProblem p = heads;
        p.rule.decay = decay;
        SCOPED_TRACE(Describe(p.rule));
        p.log_decay.width = decay == Decay::kKey ? p.dims.key_dim : p.dims.value_dim;
        p.log_decay.values.clear();
        for (const double value : heads.log_decay.values) {
          p.log_decay.values.insert(p.log_decay.values.end(), p.log_decay.width, value);
        }
        const MatrixResult got = p.Run(*backend_);
        const auto twice = [](std::vector<double> values) {
          for (double& value : values) value *= 2;
          return values;
        };
        EXPECT_THAT(got.out, IsWithin(twice(bound.out), want.out));
        EXPECT_THAT(got.states, IsWithin(twice(bound.states), want.states));
      }
    }
  }
}

// S - beta (S k) k^T + beta v k^T, which is c = -k, e = beta k and values beta v.
TEST_P(MatrixMemoryTest, TheDeltaRuleIsAGeneralCorrection) {
  MatrixProblem delta(8100, {Decay::kNone, Correction::kDelta, MatrixRead::kAfter}, {2, 24, 20},
                      {{9, 0, 0, false}, {1, 1, 0, true}});
  MatrixProblem p = delta;
  p.rule.correction = Correction::kGeneral;
  p.beta = {};
  p.c = p.e = p.k;
  for (double& value : p.c.values) value = -value;
  const auto times_beta = [&delta](MatrixProblem::Input* input) {
    for (size_t i = 0; i < input->values.size(); ++i) {
      double& value = input->values[i];
      value =
          RoundTo(value * delta.beta.values[i / static_cast<size_t>(input->width)], DType::kF32);
    }
  };
  times_beta(&p.e);
  times_beta(&p.v);
  // Rounding e and v is one more error of 2^-24 of each write, of size about 1, and grows for at
  // most nine tokens.
  const MatrixResult want = delta.Run(*backend_), got = p.Run(*backend_), bound = delta.Bound();
  const auto loosened = [](std::vector<double> values) {
    for (double& value : values) value = 2 * value + 500 * kUnitF32;
    return values;
  };
  EXPECT_THAT(got.out, IsWithin(loosened(bound.out), want.out));
  EXPECT_THAT(got.states, IsWithin(loosened(bound.states), want.states));
}

INSTANTIATE_TEST_SUITE_P(Backends, MatrixMemoryTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

// Thousands of tokens of the kinds of gates that models have.
class MatrixMemoryLongRunTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(MatrixMemoryLongRunTest, StaysNearTheReference) {
  constexpr int kTokens = 4000;
  const std::unique_ptr<Backend> backend = GetParam().Make(1), reference = MakeReference();
  for (const MatrixRule rule : AllMatrixRules()) {
    SCOPED_TRACE(Describe(rule));
    MatrixProblem p(9000, rule, {1, 32, 16}, {{kTokens, 0, 0, true}}, /*slots=*/1, /*memories=*/1);
    SeededRandom random(9001);
    for (double& value : p.log_decay.values) {
      value = RoundTo(-random.Uniform(0, 0.05), DType::kF32);
    }
    // Erases at most what it recalls, as in RWKV-7: c = -k, e = a k, a in (0, 1) for each key.
    if (rule.correction == Correction::kGeneral) {
      p.c = p.e = p.k;
      for (double& value : p.c.values) value = -value;
      for (double& value : p.e.values) value = RoundTo(value * random.Uniform(), DType::kF32);
    }
    const MatrixResult want = p.Run(*reference), got = p.Run(*backend);
    // Roundings are as often up as down: far from the worst case, the error does not build up.
    EXPECT_LT(RelativeError(got.out, want.out), 2e-5);
    EXPECT_LT(RelativeError(got.states, want.states), 2e-5);
    if (rule.correction == Correction::kGeneral) continue;  // no bound: see above
    const MatrixResult bound = p.Bound();
    EXPECT_THAT(got.out, IsWithin(bound.out, want.out));
    EXPECT_THAT(got.states, IsWithin(bound.states, want.states));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MatrixMemoryLongRunTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
