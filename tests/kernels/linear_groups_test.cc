// The matrix product of entries in groups, each of which has a matrix and a bias of its own.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/compared_backend.h"
#include "tests/kernels/linear_problem.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using LinearGroupsTest = ComparedBackendTest;

TEST_P(LinearGroupsTest, GroupedMatchesReference) {
  uint64_t seed = 300;
  for (const DType dtype : kWeightTypes) {
    for (const int in_features : {17, 96}) {
      const GroupedProblem p(++seed, in_features, 29, dtype, {3, 0, 1, 40, 0});
      EXPECT_THAT(p.Run(*backend_), IsWithin(p.Bound(), p.Run(*reference_)))
          << "seed " << seed << " " << Name(dtype);
    }
  }
}

TEST_P(LinearGroupsTest, BigGroupsStayWithinTheirBounds) {
  uint64_t seed = 320;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      for (const int in_features : {72, 99}) {
        const GroupedProblem p(++seed, in_features, 130, dtype, {0, 200, 3, 70, 0, 0, 129});
        EXPECT_THAT(p.Run(*backend),
                    IsWithin(p.Bound(RelativeBound(compute, in_features)), p.Run(*reference_)))
            << "seed " << seed << " " << Name(dtype) << ", compute " << Name(compute);
      }
    }
  }
}

TEST_P(LinearGroupsTest, GroupingChangesNoBit) {
  if (!GetParam().bit_exact()) GTEST_SKIP() << "sums in an order that depends on the size";
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      for (const bool accumulate : {false, true}) {
        const GroupedProblem p(21, 99, 31, dtype, {0, 2, 35, 1, 0, 9});
        EXPECT_THAT(p.Run(*backend, accumulate), HasSameBits(p.RunOneByOne(*backend, accumulate)))
            << Name(dtype) << ", compute " << Name(compute) << (accumulate ? " accumulate" : "");
      }
    }
  }
}

TEST_P(LinearGroupsTest, GroupsWithoutRowsReadEachEntrysOwn) {
  for (const std::vector<int>& sizes : {std::vector{2, 0, 35, 1, 0, 9}, {200, 3, 70}}) {
    const GroupedProblem listed(23, 96, 40, DType::kBF16, sizes);
    GroupedProblem own = listed;
    own.entry_rows.clear();
    own.x.clear();
    for (const int row : listed.entry_rows) {
      const auto x = LinearProblem::Rows(listed.x, 96, row, 1);
      own.x.insert(own.x.end(), x.begin(), x.end());
    }
    const std::vector<double> want = listed.Run(*backend_), got = own.Run(*backend_);
    EXPECT_THAT(got, IsWithin(listed.Bound(), listed.Run(*reference_)));
    if (GetParam().bit_exact()) {
      EXPECT_THAT(got, HasSameBits(want));
    }
  }
}

// One of each group, whatever way the product takes; of more groups than a launch has, too.
TEST_P(LinearGroupsTest, BiasesAreAddedToEveryOutput) {
  uint64_t seed = 350;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = GetParam().Make(2, compute);
    for (const DType dtype : kWeightTypes) {
      for (const std::vector<int>& sizes :
           {std::vector{1}, {2}, {5}, {40}, {300}, {2, 0, 35}, {0, 200, 3}, std::vector(70, 1)}) {
        for (const bool accumulate : {false, true}) {
          const int in = 64, out = 40;
          SCOPED_TRACE(std::to_string(sizes[0]) + " entries first, " + Name(dtype) + ", compute " +
                       Name(compute) + (accumulate ? ", accumulate" : ""));
          SeededRandom random(++seed);
          Workbench bench(*backend);
          std::vector<PackedMatrix> weights;
          std::vector<int> offsets = {0};
          for (const int size : sizes) {
            weights.push_back(
                bench.Pack(random.NormalValues(out * in, 0.1, dtype), out, in, dtype));
            offsets.push_back(offsets.back() + size);
          }
          const int entries = offsets.back();
          const std::vector<double> y = random.NormalValues(int64_t{entries} * out);
          const TensorView bias =
              bench.Floats(random.NormalValues(static_cast<int64_t>(sizes.size()) * out),
                           {static_cast<int64_t>(sizes.size()), out});
          LinearArgs args;
          args.x = bench.Activations(random.NormalValues(int64_t{entries} * in), {entries, in});
          args.weights = weights;
          if (sizes.size() > 1) args.group_offsets = bench.Ints(offsets);
          args.accumulate = accumulate;
          LinearArgs without = args;
          args.y = bench.Activations(y, {entries, out});
          without.y = bench.Activations(y, {entries, out});
          args.bias = bias;
          bench.kernels().Linear({&args, 1});
          bench.kernels().Linear({&without, 1});
          bench.kernels().AddBias(
              {.bias = bias, .group_offsets = args.group_offsets, .y = without.y});
          // Three numbers are added up, in one order or another.
          EXPECT_LE(RelativeError(bench.Read(args.y), bench.Read(without.y)), 0x1p-22);
        }
      }
    }
  }
}

TEST_P(LinearGroupsTest, AllGroupsMayBeEmpty) {
  const GroupedProblem p(22, 33, 8, DType::kBF16, {0, 0, 0});
  EXPECT_TRUE(p.Run(*backend_).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearGroupsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
