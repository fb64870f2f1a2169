// Rows copied: of the embedding table, of activations; logits struck out. Exact, so compared bit by
// bit.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float16.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

class EmbeddingTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(EmbeddingTest, WidensTheRowOfEachToken) {
  SeededRandom random(1);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int dim : {1, 15, 17, 96, 130}) {
      for (const int tokens : {0, 1, 33}) {
        const int vocab = 50;
        const std::vector<double> table = random.NormalValues(vocab * dim, 1, dtype);
        std::vector<int> ids;
        std::vector<double> want;
        for (int t = 0; t < tokens; ++t) {
          ids.push_back(t < 2 ? t * (vocab - 1) : random.Int(0, vocab - 1));
          want.insert(want.end(), table.begin() + ids[t] * dim, table.begin() + (ids[t] + 1) * dim);
        }
        Workbench bench(*backend_);
        EmbeddingArgs args;
        args.ids = bench.Ints(ids);
        args.table = bench.Values(table, {vocab, dim}, dtype);
        args.y = bench.NewActivations({tokens, dim});
        bench.kernels().Embedding(args);
        EXPECT_THAT(bench.Read(args.y), HasSameBits(want)) << Name(dtype) << " " << dim;
      }
    }
  }
}

TEST_P(EmbeddingTest, PositionsAreAddedAndThoseThatThereAreNotAddNothing) {
  SeededRandom random(4);
  constexpr int kCount = 30;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int dim : {1, 15, 17, 96, 130}) {
      for (const int tokens : {0, 1, 33}) {
        const std::vector<double> table = random.NormalValues(kCount * dim, 1, dtype);
        const std::vector<double> y = random.NormalValues(tokens * dim, 1, DType::kF32);
        std::vector<int64_t> positions;
        std::vector<double> want = y;
        for (int t = 0; t < tokens; ++t) {
          constexpr int64_t kOdd[] = {0, kCount - 1, kCount, -1, int64_t{1} << 40};
          positions.push_back(t < 5 ? kOdd[t] : random.Int(0, kCount - 1));
          if (positions[t] < 0 || positions[t] >= kCount) continue;
          for (int i = 0; i < dim; ++i) {
            // Both are of f32, and the sum is rounded once.
            double& sum = want[t * dim + i];
            sum += table[positions[t] * dim + i];
            if (backend_->activation_dtype() == DType::kF32) sum = RoundTo(sum, DType::kF32);
          }
        }
        Workbench bench(*backend_);
        AddPositionsArgs args;
        args.positions = bench.Longs(positions);
        args.table = bench.Values(table, {kCount, dim}, dtype);
        args.y = bench.Activations(y, {tokens, dim});
        bench.kernels().AddPositions(args);
        EXPECT_THAT(bench.Read(args.y), HasSameBits(want)) << Name(dtype) << " " << dim;
      }
    }
  }
}

TEST_P(EmbeddingTest, BannedTokensHaveNoLogit) {
  SeededRandom random(3);
  constexpr int kVocab = 700;
  for (const int rows : {1, 5}) {
    for (const int count : {0, 1, 300}) {
      std::vector<double> logits = random.NormalValues(rows * kVocab, 1, DType::kF32);
      std::vector<int> tokens;
      for (int i = 0; i < count; ++i) tokens.push_back(kVocab - 1 - 2 * i);
      Workbench bench(*backend_);
      BanTokensArgs args;
      args.logits = bench.Activations(logits, {rows, kVocab});
      args.tokens = bench.Ints(tokens);
      bench.kernels().BanTokens(args);
      for (int r = 0; r < rows; ++r) {
        for (const int token : tokens) logits[r * kVocab + token] = -INFINITY;
      }
      EXPECT_THAT(bench.Read(args.logits), HasSameBits(logits)) << rows << " rows, " << count;
    }
  }
}

TEST_P(EmbeddingTest, WidensEveryValueOfASixteenBitTable) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    // All finite magnitudes that are no subnormal f32, in rows of 64.
    std::vector<double> table;
    for (int bits = 0; bits < 0x10000; ++bits) {
      const float value = dtype == DType::kBF16 ? F32FromBF16(static_cast<uint16_t>(bits))
                                                : F32FromF16(static_cast<uint16_t>(bits));
      const bool plain = value == 0 || std::isnormal(value);
      table.push_back(plain ? value : 1.0);
    }
    std::vector<int> ids(1024);
    for (int t = 0; t < 1024; ++t) ids[t] = t;
    Workbench bench(*backend_);
    EmbeddingArgs args;
    args.ids = bench.Ints(ids);
    args.table = bench.Values(table, {1024, 64}, dtype);
    args.y = bench.NewActivations({1024, 64});
    bench.kernels().Embedding(args);
    EXPECT_THAT(bench.Read(args.y), HasSameBits(table)) << Name(dtype);
  }
}

TEST_P(EmbeddingTest, GatherRowsCopiesRowsInTheOrderAsked) {
  SeededRandom random(2);
  for (const int dim : {1, 17, 96}) {
    const std::vector<double> x = random.NormalValues(9 * dim);
    const std::vector<int> indices = {8, 0, 3, 3, 7};
    std::vector<double> want;
    for (const int i : indices) {
      want.insert(want.end(), x.begin() + i * dim, x.begin() + (i + 1) * dim);
    }
    Workbench bench(*backend_);
    GatherRowsArgs args;
    args.x = bench.Activations(x, {9, dim});
    args.indices = bench.Ints(indices);
    args.y = bench.NewActivations({5, dim});
    bench.kernels().GatherRows(args);
    EXPECT_THAT(bench.Read(args.y), HasSameBits(want)) << dim;
  }
}

TEST_P(EmbeddingTest, GatheringNoRowsIsNoWork) {
  Workbench bench(*backend_);
  GatherRowsArgs args;
  args.x = bench.Activations({1, 2, 3}, {1, 3});
  args.indices = bench.Ints({});
  args.y = bench.NewActivations({0, 3});
  bench.kernels().GatherRows(args);
  EXPECT_TRUE(bench.Read(args.y).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
