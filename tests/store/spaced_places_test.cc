// Which places stay, as a session goes on and its snapshots come and go.
#include "store/spaced_places.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

// The two newest are needed, as the store needs them.
std::vector<int64_t> Kept(const std::vector<int64_t>& positions, int64_t most, int64_t begin = 0) {
  std::vector<SpacedPlace> places;
  for (size_t i = 0; i < positions.size(); ++i) {
    places.push_back({positions[i], i + 2 >= positions.size()});
  }
  const std::vector<bool> keeps = SpacedPlaces(places, begin, most);
  std::vector<int64_t> kept;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (keeps[i]) kept.push_back(positions[i]);
  }
  return kept;
}

// The greatest share that a gap has of what is behind its beginning, but for the newest one, whose
// share is 1.
double WorstShare(const std::vector<int64_t>& kept) {
  double worst = 0;
  int64_t from = 0;
  for (size_t i = 0; i + 1 < kept.size(); ++i) {
    worst = std::max(worst,
                     static_cast<double>(kept[i] - from) / static_cast<double>(kept.back() - from));
    from = kept[i];
  }
  return worst;
}

TEST(SpacedPlacesTest, AllStayWhereThereAreFew) {
  EXPECT_THAT(Kept({}, 3), ElementsAre());
  EXPECT_THAT(Kept({7}, 3), ElementsAre(7));
  EXPECT_THAT(Kept({1, 2, 3, 4, 5}, 3), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(Kept({1, 2, 3, 4, 5}, 0), ElementsAre(4, 5));
  EXPECT_THAT(Kept({1, 2, 3, 4, 5}, -1), ElementsAre(4, 5));
}

TEST(SpacedPlacesTest, GapsGrowWithTheirAge) {
  std::vector<int64_t> kept;
  for (int64_t turn = 1; turn <= 32; ++turn) {
    kept.push_back(100 * turn);
    kept = Kept(kept, 3);
    ASSERT_LE(kept.size(), 5u);
  }
  std::vector<int64_t> all;
  for (int64_t turn = 1; turn <= 32; ++turn) all.push_back(100 * turn);
  for (const std::vector<int64_t>& places : {kept, Kept(all, 3)}) {
    for (size_t i = 0; i + 2 < places.size(); ++i) {
      EXPECT_GE(places[i + 1] - places[i], places[i + 2] - places[i + 1]) << i;
    }
  }
}

// As turns of any length come one by one, which is how a store sees them.
TEST(SpacedPlacesTest, GoingBackReplaysABoundedShare) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    for (const int64_t most : {4, 6, 14}) {
      std::vector<int64_t> kept;
      int64_t position = 0;
      double worst = 0;
      constexpr int kTurns = 300, kLongest = 200, kShortest = 50;
      for (int turn = 0; turn < kTurns; ++turn) {
        position += std::uniform_int_distribution<int64_t>(kShortest, kLongest)(random);
        kept.push_back(position);
        kept = Kept(kept, most);
        ASSERT_LE(static_cast<int64_t>(kept.size()), most + 2);
        if (kept.size() == static_cast<size_t>(most) + 2) worst = std::max(worst, WorstShare(kept));
      }
      // Evenly spaced on a logarithmic scale, `most` places would have a share of 1 - n^(-1/most);
      // as each place can only go, two neighbours are one gap in the worst case, and turns are of
      // lengths that differ four times.
      const double even = std::pow(kTurns, -1.0 / static_cast<double>(most));
      EXPECT_LE(worst, 1 - even * even / 4) << "seed " << seed << ", " << most << " places";
    }
  }
}

TEST(SpacedPlacesTest, NeededOnesStayAndAreNotCounted) {
  const std::vector<SpacedPlace> places = {{10, true}, {11, false}, {12, false},
                                           {13, true}, {40, false}, {50, true}};
  EXPECT_THAT(SpacedPlaces(places, 0, 1), ElementsAre(true, false, false, true, true, true));
  EXPECT_THAT(SpacedPlaces(places, 0, 0), ElementsAre(true, false, false, true, false, true));
}

TEST(SpacedPlacesTest, OfThoseAtOnePlaceOneIsEnough) {
  EXPECT_THAT(Kept({10, 20, 20, 20, 30, 40}, 2), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(Kept({5, 5, 5, 5}, 1), ElementsAre(5, 5, 5));
}

// Where the log does not lead to the beginning, the first place is where it leads to.
TEST(SpacedPlacesTest, TheFirstPlaceIsCheapWhereTheLogBeginsWithIt) {
  EXPECT_THAT(Kept({1000, 1100, 1200, 1300}, 1, /*begin=*/1000), ElementsAre(1100, 1200, 1300));
  EXPECT_THAT(Kept({1000, 1100, 1200, 1300}, 1, /*begin=*/0), ElementsAre(1000, 1200, 1300));
}

}  // namespace
}  // namespace mneme
