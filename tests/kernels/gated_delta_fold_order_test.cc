#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/matrix_memory/persistent/fold_order.h"

namespace mneme::cuda::matrix_memory::persistent {
namespace {

TEST(GatedDeltaFoldOrderTest, EverySegmentHasOneRank) {
  for (const int count : {1, 2, 7, 60, 5120}) {
    for (const int folding : {0, 1, count / 17, count / 2, count - 1, count}) {
      for (const int last : {0, 1, count / 3, count, 2 * count}) {
        SCOPED_TRACE(testing::Message() << folding << " of " << count << " fold, last " << last);
        std::vector<int> folds, others;
        for (int rank = 0; rank < count; ++rank) {
          const FoldPlace place = PlaceOfRank(rank, count, folding, last);
          std::vector<int>& list = place.list == kFolding ? folds : others;
          EXPECT_EQ(place.number, static_cast<int>(list.size()));  // nobody is left out, or twice
          list.push_back(place.number);
        }
        EXPECT_EQ(static_cast<int>(folds.size()), folding);
      }
    }
  }
}

TEST(GatedDeltaFoldOrderTest, ThoseThatFoldLieEvenlyButForTheEnd) {
  constexpr int kCount = 1536, kFold = 90, kLast = 330;
  std::vector<int> ranks;
  for (int rank = 0; rank < kCount; ++rank) {
    if (PlaceOfRank(rank, kCount, kFold, kLast).list == kFolding) ranks.push_back(rank);
  }
  ASSERT_EQ(ranks.size(), size_t{kFold});
  EXPECT_LT(ranks.back(), kCount - kLast);
  for (size_t i = 1; i < ranks.size(); ++i) {
    EXPECT_NEAR(ranks[i] - ranks[i - 1], double{kCount - kLast} / kFold, 1) << i;
  }
}

TEST(GatedDeltaFoldOrderTest, ThoseThatFoldComeFirstWhereThereIsLittleWork) {
  for (int rank = 0; rank < 96; ++rank) {
    EXPECT_EQ(PlaceOfRank(rank, 96, 6, 165).list == kFolding, rank < 6);
    EXPECT_EQ(PlaceOfRank(rank, 96, 90, 10).list == kFolding, rank < 90);
  }
}

}  // namespace
}  // namespace mneme::cuda::matrix_memory::persistent
