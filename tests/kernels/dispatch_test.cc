// Dispatch against an obvious construction: list every (memory, row, token, choice), sort, read
// off.
#include <algorithm>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct Dispatched {
  std::vector<int> entry_tokens, token_entries, group_offsets;
  std::vector<int> offsets, slots, memories, fresh;
  std::vector<std::vector<double>> written;  // per slot

  bool operator==(const Dispatched&) const = default;
};

struct DispatchProblem {
  explicit DispatchProblem(uint64_t seed) {
    SeededRandom random(seed);
    rows = random.Int(1, 9);
    slab_count = rows + random.Int(0, 3);
    shared = random.Chance(0.5);
    memories = shared && random.Chance(0.2) ? 0 : random.Int(1, 7);
    top_k = memories == 0 ? 0 : random.Int(1, memories);
    const std::vector<int> order = random.Permutation(slab_count);
    // Decoding rows of one token, prefilling ones, empty ones; padding now and then.
    const int longest = random.Chance(0.3) ? 1 : random.Int(1, 20);
    row_offsets = {0};
    for (int r = 0; r < rows; ++r) {
      row_offsets.push_back(row_offsets.back() +
                            (random.Chance(0.15) ? 0 : random.Int(1, longest)));
      slots.push_back(random.Chance(0.15) ? -1 : order[r]);
    }
    tokens = row_offsets.back();
    for (int t = 0; t < tokens; ++t) {
      const std::vector<int> choice = random.Permutation(memories);
      indices.insert(indices.end(), choice.begin(), choice.begin() + top_k);
    }
    for (int s = 0; s < slab_count; ++s) {
      written.emplace_back();
      for (int m = 0; m < groups(); ++m) written.back().push_back(random.Int(0, 1));
    }
  }

  // As large as asked for; rows of very different lengths.
  DispatchProblem(uint64_t seed, int rows, int tokens, int memories, int top_k, bool shared)
      : rows(rows),
        slab_count(rows),
        tokens(tokens),
        memories(memories),
        top_k(top_k),
        shared(shared) {
    SeededRandom random(seed);
    slots = random.Permutation(slab_count);
    for (int& slot : slots) slot = random.Chance(0.05) ? -1 : slot;
    row_offsets = {0};
    for (int r = 1; r < rows; ++r) row_offsets.push_back(random.Int(0, tokens));
    row_offsets.push_back(tokens);
    std::sort(row_offsets.begin(), row_offsets.end());
    std::vector<int> order = random.Permutation(memories);
    for (int t = 0; t < tokens; ++t) {
      for (int j = 0; j < top_k; ++j) std::swap(order[j], order[random.Int(j, memories - 1)]);
      indices.insert(indices.end(), order.begin(), order.begin() + top_k);
    }
    for (int s = 0; s < slab_count; ++s) {
      written.emplace_back();
      for (int m = 0; m < groups(); ++m) written.back().push_back(random.Int(0, 1));
    }
  }

  int groups() const { return memories + (shared ? 1 : 0); }
  int choices() const { return top_k + (shared ? 1 : 0); }

  Dispatched Expected() const {
    std::vector<std::tuple<int, int, int, int>> pairs;  // memory, row, token, choice
    for (int r = 0; r < rows; ++r) {
      for (int t = row_offsets[r]; t < row_offsets[r + 1]; ++t) {
        for (int j = 0; j < top_k; ++j) pairs.emplace_back(indices[t * top_k + j], r, t, j);
        if (shared) pairs.emplace_back(memories, r, t, top_k);
      }
    }
    std::sort(pairs.begin(), pairs.end());

    Dispatched want;
    want.written = written;
    want.token_entries.resize(pairs.size());
    for (size_t e = 0; e < pairs.size(); ++e) {
      const auto [memory, row, token, choice] = pairs[e];
      want.entry_tokens.push_back(token);
      want.token_entries[token * choices() + choice] = static_cast<int>(e);
    }
    const auto count = [&pairs](auto predicate) {
      return static_cast<int>(std::count_if(pairs.begin(), pairs.end(), predicate));
    };
    for (int m = 0; m <= groups(); ++m) {
      want.group_offsets.push_back(count([m](const auto& p) { return std::get<0>(p) < m; }));
    }
    for (int m = 0; m < groups(); ++m) {
      for (int r = 0; r < rows; ++r) {
        want.offsets.push_back(count([m, r](const auto& p) {
          return std::tie(std::get<0>(p), std::get<1>(p)) < std::tie(m, r);
        }));
        const bool used =
            count([m, r](const auto& p) { return std::get<0>(p) == m && std::get<1>(p) == r; }) > 0;
        const int slot = slots[r];
        want.slots.push_back(slot);
        want.memories.push_back(m);
        want.fresh.push_back(slot >= 0 && used && written[slot][m] == 0 ? 1 : 0);
        if (slot >= 0 && used) want.written[slot][m] = 1;
      }
    }
    want.offsets.push_back(static_cast<int>(pairs.size()));
    return want;
  }

  Dispatched Run(Backend& backend) const {
    Workbench bench(backend);
    SlabPool slabs(bench, slab_count, groups(), 1, DType::kU8);
    for (int s = 0; s < slab_count; ++s) {
      for (int m = 0; m < groups(); ++m) slabs.Write(s, m, {written[s][m]});
    }
    const std::vector<std::byte> before = slabs.Bytes();

    const int entries = tokens * choices(), count = groups() * rows;
    DispatchArgs args;
    args.row_offsets = bench.Ints(row_offsets);
    args.slots = bench.Ints(slots);
    if (memories > 0) args.indices = bench.Ints(indices, {tokens, top_k});
    args.memories = memories;
    args.shared = shared;
    args.written = slabs.view();
    args.entry_tokens = bench.NewInts({entries});
    args.token_entries = bench.NewInts({tokens, choices()});
    args.group_offsets = bench.NewInts({groups() + 1});
    args.segments.count = count;
    args.segments.offsets = bench.NewInts({count + 1});
    args.segments.slots = bench.NewInts({count});
    args.segments.memories = bench.NewInts({count});
    args.segments.fresh = bench.NewInts({count});
    bench.kernels().Dispatch(args);

    Dispatched got;
    got.entry_tokens = bench.ReadInts(args.entry_tokens);
    got.token_entries = bench.ReadInts(args.token_entries);
    got.group_offsets = bench.ReadInts(args.group_offsets);
    got.offsets = bench.ReadInts(args.segments.offsets);
    got.slots = bench.ReadInts(args.segments.slots);
    got.memories = bench.ReadInts(args.segments.memories);
    got.fresh = bench.ReadInts(args.segments.fresh);
    for (int s = 0; s < slab_count; ++s) {
      got.written.emplace_back();
      for (int m = 0; m < groups(); ++m) got.written.back().push_back(slabs.Read(s, m)[0]);
    }
    EXPECT_TRUE(slabs.OnlyTouched(before, [](int, int) { return true; }))
        << "bytes beside the flags were written";
    return got;
  }

  int rows = 0, slab_count = 0, tokens = 0, memories = 0, top_k = 0;
  bool shared = false;
  std::vector<int> row_offsets, slots, indices;
  std::vector<std::vector<double>> written;
};

class DispatchTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(DispatchTest, AgreesWithSortingOnThousandsOfRandomSteps) {
  const std::unique_ptr<Backend> backend = GetParam().Make();
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const DispatchProblem p(seed);
    const Dispatched want = p.Expected(), got = p.Run(*backend);
    EXPECT_EQ(got.entry_tokens, want.entry_tokens) << "seed " << seed;
    EXPECT_EQ(got.token_entries, want.token_entries) << "seed " << seed;
    EXPECT_EQ(got.group_offsets, want.group_offsets) << "seed " << seed;
    EXPECT_EQ(got.offsets, want.offsets) << "seed " << seed;
    EXPECT_EQ(got.slots, want.slots) << "seed " << seed;
    EXPECT_EQ(got.memories, want.memories) << "seed " << seed;
    EXPECT_EQ(got.fresh, want.fresh) << "seed " << seed;
    EXPECT_EQ(got.written, want.written) << "seed " << seed;
    if (HasFailure()) return;
  }
}

TEST_P(DispatchTest, LargeStepsAgreeWithTheReference) {
  const std::unique_ptr<Backend> backend = GetParam().Make(), reference = MakeReference();
  const DispatchProblem problems[] = {
      {1, 256, 256, 4, 2, true},    {2, 512, 1024, 64, 8, true},  {3, 1, 65536, 4, 2, true},
      {4, 17, 9000, 5, 3, false},   {5, 512, 40000, 64, 2, true}, {6, 3, 5000, 0, 0, true},
      {7, 300, 2048, 300, 4, true}, {8, 1, 1025, 8, 8, false},
  };
  for (const DispatchProblem& p : problems) {
    EXPECT_TRUE(p.Run(*backend) == p.Run(*reference))
        << p.rows << " rows, " << p.tokens << " tokens, " << p.top_k << " of " << p.memories;
  }
}

TEST_P(DispatchTest, AMemoryIsFreshOnce) {
  const std::unique_ptr<Backend> backend = GetParam().Make();
  for (uint64_t seed = 5000; seed < 5100; ++seed) {
    DispatchProblem p(seed);
    p.written = p.Run(*backend).written;
    for (const int fresh : p.Run(*backend).fresh) ASSERT_EQ(fresh, 0) << "seed " << seed;
  }
}

TEST_P(DispatchTest, AStepWithoutTokensTouchesNothing) {
  const std::unique_ptr<Backend> backend = GetParam().Make();
  DispatchProblem p(1);
  p.row_offsets.assign(p.row_offsets.size(), 0);
  p.tokens = 0;
  p.indices.clear();
  EXPECT_EQ(p.Run(*backend), p.Expected());
}

INSTANTIATE_TEST_SUITE_P(Backends, DispatchTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
