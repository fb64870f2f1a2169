#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
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
  static constexpr int kTokens = 20000;

  // On a GPU also of a size that has kernels of its own there.
  static std::vector<DeltaDims> Sizes() {
    std::vector<DeltaDims> sizes = {{1, 1, 32, 16}};
    if (GetParam().device == "cuda") sizes.push_back({1, 1, 128, 16});
    return sizes;
  }

  // Seed 600.
  static DeltaProblem MakeProblem(DeltaDims dims, double strongest_decay) {
    DeltaProblem p(600, dims, {{kTokens, 0, 0, true}}, /*max_beta=*/1, /*slots=*/1,
                   /*memories=*/1);
    SeededRandom random(601);
    for (double& value : p.log_decay) {
      value = RoundTo(-random.Uniform(0, strongest_decay), DType::kF32);
    }
    return p;
  }

  // The whole run, `piece` entries a call; states at the end and the outputs of all entries.
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

  struct OneByOne {
    DeltaResult result;
    int held_back = 0;  // of the last kLookedAt tokens: those that left writes pending
  };
  static constexpr int kLookedAt = 100;

  // The whole run, one token a call as decoding has it, with pending writes where the backend has
  // them. Each call has `padding` segments besides, of no session: by how many there are, devices
  // choose their kernels, and whether they hold writes back.
  static OneByOne RunOneByOne(const DeltaProblem& p, Backend& backend, int padding) {
    const DeltaDims& d = p.dims;
    const int capacity = backend.state_format().pending_writes;
    Workbench bench(backend);
    SlabPool slabs = p.NewSlabs(bench), written(bench, 1, 1, 1, DType::kU8),
             phase(bench, 1, 1, 1, DType::kI32), range(bench, 1, 1, 2, DType::kI32),
             keys(bench, 1, 1, int64_t{capacity} * d.heads * d.key_dim, DType::kF32),
             updates(bench, 1, 1, int64_t{capacity} * d.value_heads * d.value_dim, DType::kF32),
             decays(bench, 1, 1, int64_t{capacity} * d.value_heads, DType::kF32);
    written.Write(0, 0, {1});
    PendingWrites pending;
    if (capacity > 0) {
      pending = {.capacity = capacity,
                 .phase = phase.view(),
                 .range = range.view(),
                 .keys = keys.view(),
                 .updates = updates.view(),
                 .log_decay = decays.view()};
    }
    const int64_t all = kTokens + padding;
    const auto upload = [&bench](std::vector<double> values, Shape shape) {
      values.resize(static_cast<size_t>(shape.elements()));
      return bench.Activations(values, shape);
    };
    const MatrixMemoryArgs run = {.q = upload(p.q, {all, d.heads, d.key_dim}),
                                  .k = upload(p.k, {all, d.heads, d.key_dim}),
                                  .v = upload(p.v, {all, d.value_heads, d.value_dim}),
                                  .log_decay = upload(p.log_decay, {all, d.value_heads}),
                                  .beta = upload(p.beta, {all, d.value_heads}),
                                  .state = slabs.view(),
                                  .pending = pending,
                                  .out = bench.NewActivations({all, d.value_heads, d.value_dim})};
    std::vector<SegmentSpec> list(1 + padding, {1, -1, 0, false});
    list[0] = {1, 0, 0, true};
    Segments first = Upload(bench, list);
    list[0].fresh = false;
    Segments later = Upload(bench, list);
    first.longest = later.longest = 1;

    OneByOne one_by_one;
    for (int token = 0; token < kTokens; ++token) {
      MatrixMemoryArgs args = run;
      // From this token on: rows behind it are padding's, and later tokens'.
      for (TensorView* view : {&args.q, &args.k, &args.v, &args.log_decay, &args.beta, &args.out}) {
        view->data = view->as<std::byte>() + view->bytes() / all * token;
        view->shape.dims[0] = 1 + padding;
      }
      args.segments = token == 0 ? first : later;
      backend.kernels().MatrixMemory(args);
      if (capacity == 0 || token < kTokens - kLookedAt) continue;
      int32_t places[2];
      backend.CopyToHost(places, range.view().At(0, 0), sizeof(places));
      one_by_one.held_back += places[0] != places[1] ? 1 : 0;
    }
    if (capacity > 0) {
      backend.kernels().SettleMemories({.slots = bench.Ints({0}),
                                        .memories = 1,
                                        .written = written.view(),
                                        .heads = d.heads,
                                        .key_dim = d.key_dim,
                                        .value_heads = d.value_heads,
                                        .value_dim = d.value_dim,
                                        .state = slabs.view(),
                                        .pending = pending});
    }
    one_by_one.result.states = p.ReadStates(slabs);
    one_by_one.result.out = bench.Read(run.out);
    one_by_one.result.out.resize(static_cast<size_t>(kTokens) * d.value_heads * d.value_dim);
    return one_by_one;
  }

  // DeltaProblem::Bound() of a device that holds back `capacity` writes: the bound of
  // pending_writes_test.cc, where m bounds the sum of the norms of a row's parts, which are its
  // matrix and what is pending. After each fold there is one part, the row itself. Nobody says when
  // a device folds, but it does so once in capacity + 1 tokens: a sum that begins with the norm of
  // the row before as many tokens, or more, is no smaller than one that begins later.
  static DeltaResult HeldBackBound(const DeltaProblem& p, int capacity) {
    const DeltaDims& d = p.dims;
    const int64_t n = d.key_dim;
    const double parts = capacity + 1;
    const double eps_1 = SumError(n) + 2 * kFunctionError + (1.4 * parts + 8) * kUnitF32;
    const double eps_2 = 2 * kFunctionError + (1.4 * parts + 8) * kUnitF32;
    struct Row {
      double error = 0, older = 0, newer = 0;  // sums of norms
    };
    std::vector<Row> rows(static_cast<size_t>(d.value_heads) * d.value_dim);
    std::vector<double> state(static_cast<size_t>(d.state_elements()), 0.0);
    DeltaResult bound;
    for (int64_t e = 0; e < kTokens; ++e) {
      for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
        const int64_t head = i / d.value_dim, key_head = head / (d.value_heads / d.heads);
        const double* k = &p.k[(e * d.heads + key_head) * n];
        const double* q = &p.q[(e * d.heads + key_head) * n];
        const double a = std::exp(p.log_decay[e * d.value_heads + head]);
        const double b = p.beta[e * d.value_heads + head];
        double* s = &state[i * n];
        Row& row = rows[i];
        if (e % (capacity + 1) == 0) {
          row.older = row.newer;
          row.newer = p.Norm(s);
        }
        double recall = 0;
        for (int64_t c = 0; c < n; ++c) recall += (s[c] *= a) * k[c];
        const double u = b * (p.v[e * static_cast<int64_t>(rows.size()) + i] - recall);
        for (int64_t c = 0; c < n; ++c) s[c] += u * k[c];
        const double k_norm = p.Norm(k), written = std::abs(u) * k_norm;
        row.older = a * row.older + written;
        row.newer = a * row.newer + written;
        const double mass = std::max(row.older, row.newer);
        row.error = a * std::max(1.0, std::abs(1 - b * k_norm * k_norm)) * row.error +
                    b * k_norm * k_norm * eps_1 * mass + 3 * kUnitF32 * written + eps_2 * mass;
        bound.out.push_back(p.Norm(q) * (row.error + 2 * eps_1 * mass) + kTinyF32);
      }
    }
    for (int64_t i = 0; i < d.state_elements(); ++i) {
      bound.states.push_back(rows[i / n].error + kTinyF32);
    }
    return bound;
  }

  // Roundings are as often up as down: far from the worst case, the error does not build up.
  static void ExpectClose(const char* how, const DeltaResult& got, const DeltaResult& want,
                          const DeltaResult& bound) {
    SCOPED_TRACE(how);
    EXPECT_THAT(got.out, IsWithin(bound.out, want.out));
    EXPECT_THAT(got.states, IsWithin(bound.states, want.states));
    const double out = RelativeError(got.out, want.out);
    const double states = RelativeError(got.states, want.states);
    std::printf("  %s: relative error of outputs %.2e, of the state %.2e\n", how, out, states);
    EXPECT_LT(out, 2e-5);
    EXPECT_LT(states, 2e-5);
  }
};

TEST_P(GatedDeltaRuleLongRunTest, StaysWithinTheRunningErrorBound) {
  const std::unique_ptr<Backend> backend = GetParam().Make(1), reference = MakeReference();
  for (const DeltaDims dims : Sizes()) {
    for (const double strongest_decay : {0.0, 1e-4, 0.05}) {
      const DeltaProblem p = MakeProblem(dims, strongest_decay);
      SCOPED_TRACE(testing::Message() << "seed 600, " << dims.Describe() << ", log decay down to "
                                      << -strongest_decay);
      const DeltaResult want = Run(p, *reference, kTokens), bound = p.Bound();
      const DeltaResult got = Run(p, *backend, kTokens);
      ExpectClose("at once", got, want, bound);

      const DeltaResult pieces = Run(p, *backend, 37);
      if (GetParam().bit_exact()) {
        EXPECT_THAT(pieces.out, HasSameBits(got.out));
        EXPECT_THAT(pieces.states, HasSameBits(got.states));
      } else {
        ExpectClose("in pieces", pieces, want, bound);
      }
    }
  }
}

TEST_P(GatedDeltaRuleLongRunTest, OneByOneStaysWithinTheRunningErrorBound) {
  const std::unique_ptr<Backend> backend = GetParam().Make(1), reference = MakeReference();
  const int capacity = backend->state_format().pending_writes;
  // With 128 keys 40 MB of matrices, more than Hopper writes at every token.
  constexpr int kMany = 5000;
  const std::vector<int> paddings = capacity > 0 ? std::vector<int>{0, kMany} : std::vector<int>{0};
  for (const DeltaDims dims : Sizes()) {
    for (const double strongest_decay : {0.0, 0.05}) {
      const DeltaProblem p = MakeProblem(dims, strongest_decay);
      SCOPED_TRACE(testing::Message() << "seed 600, " << dims.Describe() << ", log decay down to "
                                      << -strongest_decay);
      const DeltaResult want = Run(p, *reference, kTokens);
      for (const int padding : paddings) {
        const OneByOne got = RunOneByOne(p, *backend, padding);
        const std::string how = "one by one, " + std::to_string(padding) + " beside, " +
                                std::to_string(got.held_back) + " of the last " +
                                std::to_string(kLookedAt) + " held back";
        const bool holds_back = got.held_back > 0;
        ExpectClose(how.c_str(), got.result, want,
                    holds_back ? HeldBackBound(p, capacity) : p.Bound());
        if (padding == kMany && HasHopperKernels()) {
          EXPECT_TRUE(holds_back);
        }
        if (holds_back) {
          EXPECT_GE(got.held_back, kLookedAt * capacity / (capacity + 1) - 1);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GatedDeltaRuleLongRunTest,
                         testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace mneme
