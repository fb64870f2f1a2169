// Commit, encode and retrieve: worked examples.
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/engram_session.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class EngramsTest : public EngramStoreTest {};

TEST(EngramDrawTest, IsWhatTheSpecificationCounts) {
  EXPECT_EQ(EngramDraw(0, 0, 0, 1000), 883);
  EXPECT_EQ(EngramDraw(20260101, 9, 17, 9), 8);
  EXPECT_EQ(EngramDraw(~uint64_t{0}, uint64_t{1} << 31, ~uint32_t{0}, 1 << 20), 46220);
}

// A and B long-term, C and D short-term; E is new.
TEST_P(EngramsTest, AFullStep) {
  for (const Profile profile : kProfiles) {
    const bool upstream = profile != Profile::kPaper;
    const EngramRules rules = WithProfile({.working = 1,
                                           .short_term = 2,
                                           .recalled_short = 1,
                                           .recalled_long = 1,
                                           .depth = 1,
                                           .lifespan = 4,
                                           .lifespan_scale = 2},
                                          profile);
    EngramSession session(*backend_, rules, 6, 1);
    session.Put(4, 0, EngramType::kLongTerm, {0.1}, 1.5);
    session.Put(1, 1, EngramType::kLongTerm, {1.0}, 1.0);
    session.Put(3, 2, EngramType::kShortTerm, {0.5}, 2.0);
    session.Put(0, 3, EngramType::kShortTerm, {2.0}, 1.0);
    session.SetCounts({0, 1, 2, 3}, {{3, 1, 2, 0}, {1, 2, 1, 1}, {2, 1, 4, 1}, {0, 1, 1, 2}});
    session.Write(5, {{0.6}});  // born 4
    session.Retrieve(5);
    EXPECT_THAT(session.Recalled(), ElementsAre(1, 2));
    EXPECT_EQ(session.fact(kEngramColumns), upstream ? 3 : 2);
    EXPECT_EQ(session.fact(kEngramsFound), 2);
    EXPECT_THAT(session.Counts(),
                ElementsAre(ElementsAre(3, 1, 2, 0, 0), ElementsAre(1, 3, 2, 1, 1),
                            ElementsAre(2, 2, 5, 1, 1), ElementsAre(0, 1, 1, 2, 0),
                            ElementsAre(0, 1, 1, 0, 1)));
    session.Commit(6, {0.25, 0.75});
    if (upstream) {
      EXPECT_THAT(session.Births(EngramType::kLongTerm), ElementsAre(0, 1, 2));
      EXPECT_THAT(session.Births(EngramType::kShortTerm), ElementsAre(4));
      EXPECT_THAT(session.Lifespans(), ElementsAre(0.5, 1.5, 5.5, 3.0));
      EXPECT_THAT(session.Gains(), ElementsAre(0, 1.5, 4.5, 0));
    } else {
      EXPECT_THAT(session.Births(EngramType::kLongTerm), ElementsAre(0, 1));
      EXPECT_THAT(session.Births(EngramType::kShortTerm), ElementsAre(2, 4));
      EXPECT_THAT(session.Lifespans(), ElementsAre(0.5, 1.0, 4.0, 3.0));
      EXPECT_THAT(session.Gains(), ElementsAre(0, 1, 3, 0));
    }
    EXPECT_THAT(session.Counts(), ElementsAre(ElementsAre(3, 1, 2, 0), ElementsAre(1, 3, 2, 1),
                                              ElementsAre(2, 2, 5, 1), ElementsAre(0, 1, 1, 1)));
  }
}

// Two chains that meet, and what they find by each depth.
TEST_P(EngramsTest, AWalk) {
  const int found[] = {2, 3, 4, 4};
  for (const Profile profile : kProfiles) {
    for (int depth = 0; depth <= 3; ++depth) {
      const EngramRules rules = WithProfile({.working = 1,
                                             .short_term = 2,
                                             .recalled_short = 2,
                                             .recalled_long = 4,
                                             .depth = depth,
                                             .lifespan = 9,
                                             .random_ties = false},
                                            profile);
      EngramSession session(*backend_, rules, 8, 1);
      for (int i = 0; i < 4; ++i) {
        session.Put(7 - i, static_cast<uint32_t>(i), EngramType::kLongTerm, {0.1 * i}, 9);
      }
      session.Put(0, 4, EngramType::kShortTerm, {0.2}, 9);
      session.Put(1, 5, EngramType::kShortTerm, {0.3}, 9);
      // Those that seed 0 and 3.
      session.SetCounts({0, 1, 2, 3, 4, 5}, {{5, 2, 1, 0, 1, 0},
                                             {2, 5, 1, 2, 0, 0},
                                             {1, 1, 5, 1, 0, 0},
                                             {0, 2, 1, 5, 0, 1},
                                             {1, 0, 0, 0, 1, 0},
                                             {0, 0, 0, 1, 0, 1}});
      session.Write(7, {{5}});
      session.Retrieve(7);
      EXPECT_EQ(session.fact(kEngramsFound), found[depth]) << depth;
      std::vector<uint32_t> recalled = session.Recalled();
      recalled.resize(recalled.size() - 2);  // short-term ones
      if (depth == 0) {
        EXPECT_THAT(recalled, ElementsAre(0, 3));
      } else if (depth == 1) {
        EXPECT_THAT(recalled, ElementsAre(0, 1, 3));
      } else {
        EXPECT_EQ(recalled.size(), session.fact(kEngramNullRecalled) == 1 ? 3 : 4);
      }
      EXPECT_EQ(session.fact(kEngramNullCandidate),
                profile != Profile::kPaper && depth == 3 ? 1 : 0);
    }
  }
}

TEST_P(EngramsTest, WithoutLongTermEngrams) {
  for (const Profile profile : kProfiles) {
    const EngramRules rules = WithProfile({.working = 1,
                                           .short_term = 3,
                                           .recalled_short = 1,
                                           .recalled_long = 1,
                                           .depth = 1,
                                           .lifespan = 4},
                                          profile);
    EngramSession session(*backend_, rules, 8, 1);
    session.Put(5, 0, EngramType::kShortTerm, {3.0}, 2);
    session.Put(2, 1, EngramType::kShortTerm, {2.0}, 2);
    session.Put(7, 2, EngramType::kShortTerm, {0.5}, 2);
    session.Write(4, {{0.6}});
    session.Retrieve(4);
    if (profile == Profile::kPaper) {
      EXPECT_THAT(session.Recalled(), ElementsAre(2));
      EXPECT_EQ(session.fact(kEngramColumns), 1);
    } else {
      EXPECT_THAT(session.Recalled(), ElementsAre(0, 2));
      EXPECT_EQ(session.fact(kEngramColumns), 3);
    }
  }
}

TEST_P(EngramsTest, NothingToRecall) {
  for (const Profile profile : kProfiles) {
    const EngramRules rules = WithProfile({.working = 2,
                                           .short_term = 3,
                                           .recalled_short = 1,
                                           .recalled_long = 1,
                                           .depth = 1,
                                           .lifespan = 4},
                                          profile);
    EngramSession session(*backend_, rules, 8, 1);
    session.Commit(1);
    session.Write(1, {{0.6}, {0.7}});
    session.Retrieve(1);
    EXPECT_THAT(session.Recalled(), IsEmpty());
    EXPECT_EQ(session.fact(kEngramColumns), 0);
    EXPECT_THAT(session.Counts(), ElementsAre(ElementsAre(1, 1), ElementsAre(1, 1)));
    session.Commit(2);
    EXPECT_THAT(session.Births(EngramType::kShortTerm), ElementsAre(0, 1));
    EXPECT_THAT(session.Lifespans(), ElementsAre(3, 3));
  }
}

// exp(-500) is no number of f32; the nearer ones are still told from those farther away.
TEST_P(EngramsTest, ScoresOfWhatIsFarAwayDoNotVanish) {
  const EngramRules rules =
      WithProfile({.working = 1, .short_term = 3, .recalled_short = 1, .depth = 1, .lifespan = 4},
                  Profile::kPaper);
  EngramSession session(*backend_, rules, 8, 1);
  session.Put(0, 0, EngramType::kShortTerm, {30}, 2);
  session.Put(1, 1, EngramType::kShortTerm, {-25}, 2);
  session.Put(2, 2, EngramType::kShortTerm, {40}, 2);
  session.Write(4, {{0}});
  session.Retrieve(4);
  EXPECT_THAT(session.Recalled(), ElementsAre(1));
  EXPECT_NEAR(session.ScoreOf(1), -625, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Backends, EngramsTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
