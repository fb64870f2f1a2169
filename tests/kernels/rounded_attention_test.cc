// Attention on a GPU whose products round.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/attention_problem.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using Dims = AttentionDims;
using Problem = AttentionProblem;

// A GPU whose products round to bf16 rounds weights, too: queries, keys and values of these
// problems are held by bf16 as they are.
class CudaRoundedAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBackends().front().device != "cuda") GTEST_SKIP() << "no GPU";
    backend_ = MakeCuda(DType::kBF16);
  }
  void ExpectReference(const Problem& problem) {
    EXPECT_THAT(Outputs(*backend_, problem),
                IsWithin(Bound(problem, kUnitBF16), Outputs(*reference_, problem)))
        << problem.dims.Describe();
  }
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_ = MakeReference();
};

const std::vector<RowSpec> kMixedRows = {{2, 0, 1},   {0, 63, 3},  {-1, 0, 4}, {1, 70, 0},
                                         {3, 0, 250}, {4, 130, 1}, {1, 64, 64}};
const std::vector<RowSpec> kSingleTokens = {{2, 0, 1},   {0, 63, 1},  {-1, 0, 1}, {1, 64, 1},
                                            {3, 200, 1}, {4, 130, 1}, {5, 255, 1}};

TEST_F(CudaRoundedAttentionTest, MatchesReferenceForHeadsOfAnyWidthAndGroup) {
  for (const Dims& dims : {Dims{1, 1, 16, 16}, Dims{4, 2, 64, 64}, Dims{6, 2, 24, 40},
                           Dims{8, 1, 128, 128}, Dims{5, 1, 96, 96}, Dims{12, 4, 64, 128},
                           Dims{40, 2, 32, 32}, Dims{2, 2, 7, 13}, Dims{2, 1, 160, 160}}) {
    ExpectReference({.dims = dims, .rows = kMixedRows});
    ExpectReference({.dims = dims, .rows = kSingleTokens});
  }
}

// Blocks of threads take several tiles each, some of which there are not.
TEST_F(CudaRoundedAttentionTest, MoreTilesThanMultiprocessorsMatchReference) {
  for (const int window : {0, 100}) {
    for (Dims dims : {Dims{72, 72, 16, 16}, Dims{36, 36, 72, 80}}) {
      dims.window = window;
      ExpectReference({.dims = dims, .rows = {{2, 0, 1}, {0, 63, 3}, {-1, 0, 4}, {3, 0, 250}}});
      ExpectReference({.dims = dims, .rows = {{0, 0, 250}, {1, 70, 140}}});
    }
  }
}

TEST_F(CudaRoundedAttentionTest, AWindowSeesItsTokenAndThoseBeforeIt) {
  for (const int window : {1, 12, 63, 64, 65, 128, 200}) {
    for (const int more : {0, 5}) {  // blocks of a ring beyond the window's
      Dims dims{4, 2, 64, 64, window};
      dims.blocks = (window + kContextBlock - 1) / kContextBlock + more;
      ExpectReference({.dims = dims, .rows = kMixedRows});
      ExpectReference({.dims = dims, .rows = kSingleTokens});
      ExpectReference({.dims = dims, .rows = {{0, 1000, 300}, {1, 999, 64}, {2, 1023, 1}}});
      ExpectReference({.dims = dims, .rows = {{0, 1'000'003, 1}, {1, int64_t{1} << 40, 1}}});
    }
  }
}

TEST_F(CudaRoundedAttentionTest, ManyBlocksOfThreadsMayShareAToken) {
  Dims dims{4, 2, 32, 32};
  dims.blocks = 66;
  ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 4000, 20}, {2, 1, 1}}});
  ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 0, 1}, {2, 1, 1}}});
  for (const double spread : {0.0, 4.0, 30.0, 1000.0}) {
    ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 900, 1}}, .spread = spread});
  }
}

TEST_F(CudaRoundedAttentionTest, PrefixesSegmentsAndSecondKeysAreSeen) {
  for (const int segment : {0, 5, 64, 70}) {
    for (const int prefix : {0, 3, 64, 70}) {
      for (const bool others : {false, true}) {
        Dims dims{8, 2, 64, 64, 0, 3, prefix, segment, others};
        if (others && segment == 0) continue;
        for (const std::vector<RowSpec>& rows :
             {std::vector<RowSpec>{{0, 0, 190}}, {{0, 0, 1}, {1, 0, 1}, {2, 0, 1}}}) {
          const Problem problem = {.dims = dims, .rows = rows};
          EXPECT_LE(RelativeError(Outputs(*backend_, problem), Outputs(*reference_, problem)),
                    kUnitBF16)
              << dims.Describe() << ", segment " << segment << ", prefix " << prefix;
        }
      }
    }
  }
}

// Tokens that see few blocks of positions, through heads that share nothing.
TEST_F(CudaRoundedAttentionTest, HeadsWithKeysOfTheirOwnMatchReference) {
  for (const Dims& dims : {Dims{12, 12, 64, 64}, Dims{3, 3, 96, 128}, Dims{2, 2, 24, 40},
                           Dims{5, 5, 8, 16}, Dims{1, 1, 128, 64}}) {
    ExpectReference({.dims = dims, .rows = kSingleTokens});
    for (const int segment : {1, 5, 64, 70, 150}) {
      Dims segmented = dims;
      segmented.segment = segment;
      segmented.blocks = (segment + kContextBlock - 1) / kContextBlock;
      for (const std::vector<RowSpec>& rows :
           {kSingleTokens, std::vector<RowSpec>{{0, 1'000'003, 1}}, {{1, 149, 1}, {0, 150, 1}}}) {
        const Problem problem = {.dims = segmented, .rows = rows};
        EXPECT_LE(RelativeError(Outputs(*backend_, problem), Outputs(*reference_, problem)),
                  kUnitBF16)
            << segmented.Describe() << ", segment " << segment;
      }
    }
  }
}

// So many rows that a head of one has a warp to itself.
TEST_F(CudaRoundedAttentionTest, HeadsOfManyRowsMatchReference) {
  Dims dims{16, 16, 16, 16, 0, 2};
  dims.segment = 100;
  std::vector<RowSpec> rows;
  for (int row = 0; row < 150; ++row) rows.push_back({row % 7 == 3 ? -1 : row, 37 * row % 401, 1});
  const Problem problem = {.dims = dims, .rows = rows};
  EXPECT_LE(RelativeError(Outputs(*backend_, problem), Outputs(*reference_, problem)), kUnitBF16);
}

// What goes to a product may leave the kernels in bf16, whichever it is.
TEST_F(CudaRoundedAttentionTest, OutputsOfSingleTokensMayBeRounded) {
  for (const Dims& dims :
       {Dims{12, 12, 64, 64}, Dims{8, 2, 64, 64}, Dims{2, 2, 7, 13}, Dims{4, 1, 64, 64, 0, 66}}) {
    for (const std::vector<RowSpec>& rows : {kSingleTokens, std::vector<RowSpec>{{0, 200, 1}}}) {
      Problem problem = {.dims = dims, .rows = rows};
      const std::vector<double> want = Outputs(*reference_, problem);
      problem.rounds = true;
      EXPECT_LE(RelativeError(Outputs(*backend_, problem), want), 2 * kUnitBF16) << dims.Describe();
    }
  }
}

// The keys and values of the step's own tokens are stored, and nothing else.
TEST_F(CudaRoundedAttentionTest, HeadsWithKeysOfTheirOwnAreStored) {
  Dims dims{3, 3, 64, 64, 0, 3};
  dims.segment = 150;
  const Problem problem = {.dims = dims, .rows = {{0, 310, 1}, {-1, 5, 1}, {2, 0, 1}}};
  Workbench bench(*backend_);
  AttentionContexts contexts(bench, dims, problem.slots());
  problem.WritePast(contexts);
  std::vector<std::byte> before = contexts.bytes();
  Step(bench, contexts, problem, problem.rows);
  contexts.Download();
  for (const RowSpec& row : problem.rows) {
    if (row.slot < 0) continue;
    EXPECT_EQ(contexts.Row(contexts.keys(), row.slot, row.position),
              problem.Keys(row.slot, row.position));
    EXPECT_EQ(contexts.Row(contexts.values(), row.slot, row.position),
              problem.Values(row.slot, row.position));
    contexts.Restore(before, row.slot, row.position);
  }
  EXPECT_TRUE(contexts.bytes() == before) << "a byte that is nobody's was written";
}

// A text fed in pieces sees the same keys, some of them rounded in the step and some before.
TEST_F(CudaRoundedAttentionTest, AnySplitIsTheSameButForRounding) {
  for (const int window : {0, 50, 64}) {
    Dims dims{4, 2, 64, 64, window};
    dims.blocks = window > 0 ? 1 : 4;
    const Problem problem = {.dims = dims, .rows = {{0, 0, 200}}};
    const std::vector<double> whole = Outputs(*backend_, problem);
    for (const std::vector<int>& chunks : {std::vector{1}, {7, 1, 13}, {64}, {199, 1}}) {
      const std::vector<double> all = FedInChunks(*backend_, problem, 200, chunks);
      EXPECT_LE(RelativeError(all, whole), kUnitBF16) << "chunks of " << chunks[0];
    }
  }
}

}  // namespace
}  // namespace mneme
