// Commit, encode and retrieve: random sessions beside PlainEngrams.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/engram_session.h"
#include "tests/kernels/plain_engrams.h"
#include "tests/support/backends.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

using testing::IsEmpty;

using Vectors = std::vector<std::vector<double>>;

class EngramSessionsTest : public EngramStoreTest {};

struct Setting {
  int working, recalled_short, recalled_long, short_term, lifespan, depth;
};
constexpr Setting kSettings[] = {
    {4, 3, 3, 8, 3, 2},   {4, 3, 5, 16, 2, 3},  // engrams die as short-term ones
    {5, 5, 5, 20, 5, 10}, {3, 2, 4, 5, 4, 1},   // 5 is no multiple of 3
    {4, 8, 4, 8, 3, 2},                         // all short-term engrams are recalled
    {6, 2, 12, 12, 3, 4}, {4, 3, 3, 8, 3, 0}};

EngramRules RulesOf(const Setting& setting, Profile profile) {
  return WithProfile({.working = setting.working,
                      .short_term = setting.short_term,
                      .recalled_short = setting.recalled_short,
                      .recalled_long = setting.recalled_long,
                      .depth = setting.depth,
                      .lifespan = static_cast<float>(setting.lifespan),
                      .lifespan_scale = 2},
                     profile);
}

// Vectors that wander, so that what is near changes, and attention that favours some of them.
struct Events {
  explicit Events(uint64_t seed) : random(seed) {}

  Vectors Engrams(int count, int dim) {
    if (centre.empty()) centre.resize(static_cast<size_t>(dim));
    Vectors x;
    for (double& c : centre) c += 0.2 * random.Normal();
    for (int w = 0; w < count; ++w) {
      x.emplace_back();
      for (const double c : centre) {
        x.back().push_back(static_cast<float>(0.9 * c + 0.5 * random.Normal()));
      }
    }
    return x;
  }
  std::vector<double> Weights(size_t count) {
    std::vector<double> weights;
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += weights.emplace_back(random.Uniform());
    for (double& weight : weights) weight = static_cast<float>(weight / sum);
    return weights;
  }

  SeededRandom random;
  std::vector<double> centre;
};

void ExpectSame(const EngramSession& session, const PlainEngrams& plain,
                bool compares_counts = true) {
  std::vector<uint32_t> births;
  std::vector<double> lifespans, gains;
  std::vector<std::vector<int>> counts;
  std::vector<EngramType> types, got_types;
  for (const PlainEngrams::Engram& engram : plain.engrams) {
    births.push_back(engram.birth);
    types.push_back(engram.type);
    lifespans.push_back(engram.lifespan);
    gains.push_back(engram.gain);
    if (!compares_counts) continue;
    counts.emplace_back();
    for (const PlainEngrams::Engram& other : plain.engrams) {
      counts.back().push_back(engram.CountWith(other.birth));
    }
  }
  std::vector<uint32_t> got;
  for (const int i : session.Slots()) {
    got.push_back(session.birth(i));
    got_types.push_back(session.type(i));
  }
  ASSERT_EQ(got, births);
  ASSERT_EQ(got_types, types);
  ASSERT_EQ(session.Lifespans(), lifespans);
  ASSERT_EQ(session.Gains(), gains);
  if (compares_counts) {
    ASSERT_EQ(session.Counts(), counts);
  }
}

// An engram that a segment attended to.
struct Attended {
  uint32_t birth = 0;
  EngramType type = EngramType::kFree;
  double weight = 0;
};

void ExpectReport(const std::vector<int>& report, const PlainEngrams& plain,
                  const EngramRules& rules, int segment, const std::vector<Attended>& attended) {
  const auto number = [&](size_t word) { return std::bit_cast<float>(report[word]); };
  EXPECT_EQ(report[kReportSlot], 0);
  EXPECT_EQ(report[kReportSegment], segment);
  ASSERT_EQ(report[kReportAttended], static_cast<int>(attended.size()));
  for (size_t i = 0; i < attended.size(); ++i) {
    const size_t word = kEngramReportWords + 3 * i;
    EXPECT_EQ(report[word], static_cast<int>(attended[i].birth));
    EXPECT_EQ(report[word + 1], static_cast<int>(attended[i].type));
    EXPECT_FLOAT_EQ(number(word + 2), static_cast<float>(attended[i].weight));
  }
  int of_type[4] = {}, recalled_long = 0;
  double lifespans = 0, ages = 0;
  for (const PlainEngrams::Engram& engram : plain.engrams) {
    ++of_type[static_cast<int>(engram.type)];
    lifespans += engram.lifespan;
  }
  for (const uint32_t birth : plain.recalled) {
    if (plain.TypeOf(birth) != EngramType::kLongTerm) continue;
    ++recalled_long;
    ages += segment - 1 - static_cast<int>(birth) / rules.working;
  }
  EXPECT_EQ(report[kReportShortTerm], of_type[2]);
  EXPECT_EQ(report[kReportLongTerm], of_type[3]);
  EXPECT_EQ(report[kReportFound], plain.found);
  EXPECT_EQ(report[kReportRecalled], static_cast<int>(plain.recalled.size()));
  EXPECT_EQ(report[kReportRecalledLong], recalled_long);
  EXPECT_EQ(number(kReportRecalledAges), static_cast<float>(ages));
  EXPECT_NEAR(number(kReportLifespans), lifespans, 1e-5 * lifespans);
  EXPECT_EQ(report[kReportEvicted], plain.evicted);
}

// Returns whether all steps were the same.
bool RunBeside(EngramSession& session, PlainEngrams& plain, const EngramRules& rules, uint64_t seed,
               int steps, const std::function<void()>& before_step = {}) {
  constexpr int kDim = 6;
  Events events(seed);
  std::vector<double> weights;
  for (int segment = 1; segment <= steps; ++segment) {
    SCOPED_TRACE(testing::Message() << "segment " << segment);
    const bool compares_counts = segment % 10 == 0 || segment == steps;
    const std::vector<uint32_t> recalled = plain.recalled;
    if (before_step) before_step();
    std::vector<double> left;  // of those that are still recalled
    for (size_t i = 0; i < weights.size(); ++i) {
      if (std::count(plain.recalled.begin(), plain.recalled.end(), recalled[i]) > 0) {
        left.push_back(weights[i]);
      }
    }
    weights = std::move(left);
    std::vector<Attended> attended;
    for (size_t i = 0; i < weights.size(); ++i) {
      attended.push_back({plain.recalled[i], plain.TypeOf(plain.recalled[i]), weights[i]});
    }
    session.Commit(segment, weights);
    if (segment > 1) plain.Commit(weights);
    ExpectSame(session, plain, compares_counts);
    const Vectors x = events.Engrams(rules.working, kDim);
    session.Write(segment, x);
    plain.Write(segment, x);
    session.Retrieve(segment);
    plain.Retrieve(segment);
    ExpectSame(session, plain, compares_counts);
    EXPECT_EQ(session.Recalled(), plain.recalled);
    EXPECT_EQ(session.fact(kEngramColumns), plain.columns);
    EXPECT_EQ(session.fact(kEngramsFound), plain.found);
    EXPECT_EQ(session.fact(kEngramNullCandidate), plain.null_candidate);
    EXPECT_EQ(session.fact(kEngramNullRecalled), plain.null_recalled);
    EXPECT_EQ(session.fact(kEngramsEvicted), plain.evicted);
    EXPECT_EQ(session.fact(kEngramHistoryWrapped), plain.forgotten);
    for (const PlainEngrams::Engram& engram : plain.engrams) {
      if (engram.type == EngramType::kWorking || !compares_counts) continue;
      const double got = session.ScoreOf(engram.birth), want = plain.Score(engram.x);
      const bool exp_mean = rules.score == EngramRules::Score::kExpMean;
      EXPECT_NEAR(exp_mean ? std::exp(got) : got, want, 2e-5 * std::abs(want) + 1e-30);
    }
    EXPECT_EQ(session.fact(kEngramsWorking), rules.working);
    ExpectReport(session.Report(), plain, rules, segment, attended);
    if (testing::Test::HasFailure()) return false;
    weights = events.Weights(plain.recalled.size());
  }
  return true;
}

TEST_P(EngramSessionsTest, RandomSessionsAreThoseOfTheListThatIsCompacted) {
  constexpr int kSteps = 250;
  uint64_t seed = 100;
  for (const Setting& setting : kSettings) {
    for (const Profile profile : kProfiles) {
      for (const bool random_ties : {false, true}) {
        EngramRules rules = RulesOf(setting, profile);
        rules.random_ties = random_ties;
        rules.seed = ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        EngramSession session(*backend_, rules, 192, 6);
        PlainEngrams plain(rules, rounds());
        if (!RunBeside(session, plain, rules, seed, random_ties ? kSteps / 5 : kSteps)) return;
        EXPECT_EQ(plain.evicted, 0);
      }
    }
  }
}

// A history is as good as counts of pairs until it is full, and then those of its last steps.
TEST_P(EngramSessionsTest, HistoriesCountWhatTheyHold) {
  constexpr int kSteps = 150;
  uint64_t seed = 300;
  for (const int history : {64, 192}) {
    for (const Setting& setting : kSettings) {
      for (const Profile profile : kProfiles) {
        EngramRules rules = RulesOf(setting, profile);
        rules.seed = ++seed;
        rules.random_ties = seed % 2 == 0;
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        EngramSession session(*backend_, rules, 192, 6, history);
        PlainEngrams plain(rules, rounds(), /*capacity=*/0, history);
        if (!RunBeside(session, plain, rules, seed, kSteps)) return;
        EXPECT_EQ(session.fact(kEngramHistoryWrapped), std::max(0, kSteps - history));
      }
    }
  }
}

// Engrams that live longer than a history is: what it forgot changes what is recalled.
TEST_P(EngramSessionsTest, AFullHistoryForgets) {
  constexpr int kSteps = 300, kHistory = 64;
  EngramRules rules = RulesOf({2, 2, 3, 4, 4, 2}, Profile::kPaper);
  rules.lifespan_scale = 40;
  EngramSession session(*backend_, rules, 256, 6, kHistory);
  PlainEngrams window(rules, rounds(), /*capacity=*/0, kHistory), all(rules, rounds());
  if (!RunBeside(session, window, rules, /*seed=*/5, kSteps)) return;
  EXPECT_EQ(session.fact(kEngramHistoryWrapped), kSteps - kHistory);

  Events events(/*seed=*/5);  // those of RunBeside, as long as as many are recalled
  std::vector<double> weights;
  for (int segment = 1; segment <= kSteps; ++segment) {
    if (segment > 1) all.Commit(weights);
    all.Write(segment, events.Engrams(rules.working, 6));
    all.Retrieve(segment);
    weights = events.Weights(all.recalled.size());
  }
  EXPECT_NE(all.recalled, window.recalled);
  EXPECT_EQ(all.forgotten, 0);
}

// The authors' setting for enwik8, whose counts of pairs would take 50 MiB: what the history says
// is what they do.
TEST_P(EngramSessionsTest, AStoreForEnwik8) {
  constexpr int kCapacity = 5120, kSteps = 13;
  EngramRules rules = RulesOf({170, 170, 170, 1360, 9, 10}, Profile::kUpstream10);
  rules.lifespan_scale = 8;
  EngramSession counts(*backend_, rules, kCapacity, 6),
      history(*backend_, rules, kCapacity, 6, 4096);
  Events events(/*seed=*/13);
  std::vector<double> weights;
  for (int segment = 1; segment <= kSteps; ++segment) {
    const Vectors x = events.Engrams(rules.working, 6);
    for (EngramSession* session : {&counts, &history}) {
      session->Commit(segment, weights);
      session->Write(segment, x);
      session->Retrieve(segment);
    }
    ASSERT_EQ(counts.Recalled(), history.Recalled()) << "segment " << segment;
    ASSERT_EQ(counts.Slots(), history.Slots());
    ASSERT_EQ(counts.Lifespans(), history.Lifespans());
    ASSERT_EQ(counts.fact(kEngramsFound), history.fact(kEngramsFound));
    weights = events.Weights(counts.Recalled().size());
  }
  EXPECT_GT(history.Births(EngramType::kLongTerm).size(), 200u);
  EXPECT_GT(history.fact(kEngramsFound), 100);
  EXPECT_EQ(counts.Counts(), history.Counts());
}

// More engrams than a block of a GPU's threads takes at once.
TEST_P(EngramSessionsTest, ALargeStore) {
  for (const Profile profile : {Profile::kPaper, Profile::kUpstream10}) {
    EngramRules rules = RulesOf({60, 20, 20, 540, 30, 3}, profile);
    rules.seed = 3;
    const int history = profile == Profile::kPaper ? 0 : 64;
    EngramSession session(*backend_, rules, 1600, 6, history);
    PlainEngrams plain(rules, rounds());
    if (!RunBeside(session, plain, rules, /*seed=*/12, /*steps=*/24)) return;
    EXPECT_GT(session.Births(EngramType::kLongTerm).size() +
                  session.Births(EngramType::kShortTerm).size(),
              1024u);
  }
}

TEST_P(EngramSessionsTest, SlotsCarryNoMeaning) {
  constexpr int kCapacity = 96;
  for (const Profile profile : kProfiles) {
    const EngramRules rules = RulesOf(kSettings[0], profile);
    const int history = profile == Profile::kPaper ? 64 : 0;
    EngramSession session(*backend_, rules, kCapacity, 6, history);
    PlainEngrams plain(rules, rounds());
    SeededRandom random(7);
    const auto shuffle = [&] {
      std::vector<int> to(kCapacity);
      std::iota(to.begin(), to.end(), 0);
      for (int i = kCapacity - 1; i > 0; --i) std::swap(to[i], to[random.Int(0, i)]);
      session.MoveSlots(to);
    };
    if (!RunBeside(session, plain, rules, /*seed=*/8, /*steps=*/60, shuffle)) return;
  }
}

TEST_P(EngramSessionsTest, AFullStoreEvictsAndKeepsItsPromises) {
  for (const Setting& setting : kSettings) {
    for (const Profile profile : kProfiles) {
      const EngramRules rules = RulesOf(setting, profile);
      const int capacity = rules.least_capacity() + 1;
      EngramSession session(*backend_, rules, capacity, 6);
      PlainEngrams plain(rules, rounds(), capacity);
      Events events(/*seed=*/9);
      std::vector<double> weights;
      for (int segment = 1; segment <= 60; ++segment) {
        session.Commit(segment, weights);
        if (segment > 1) plain.Commit(weights);
        const std::vector<int> alive = session.Slots();
        EXPECT_GE(capacity - static_cast<int>(alive.size()), rules.working);
        EXPECT_LE(static_cast<int>(session.Births(EngramType::kShortTerm).size()),
                  rules.short_term);
        EXPECT_THAT(session.Births(EngramType::kWorking), IsEmpty());
        for (const int i : alive) EXPECT_GT(session.lifespan(i), 0);
        for (size_t i = 1; i < alive.size(); ++i) {
          EXPECT_LT(session.birth(alive[i - 1]), session.birth(alive[i])) << "births are unique";
        }
        for (const PlainEngrams::Engram& engram : plain.engrams) {
          const int i = session.SlotOf(engram.birth);
          EXPECT_EQ(session.count(i, i), engram.firings);
          for (const int j : alive) EXPECT_EQ(session.count(i, j), session.count(j, i));
        }
        ExpectSame(session, plain);
        const Vectors x = events.Engrams(rules.working, 6);
        session.Write(segment, x);
        plain.Write(segment, x);
        session.Retrieve(segment);
        plain.Retrieve(segment);
        weights = events.Weights(plain.recalled.size());
        if (HasFailure()) return;
      }
      EXPECT_EQ(session.fact(kEngramsEvicted), plain.evicted);
    }
  }
}

// What is forgotten leaves the others to go on as if it had died: also where it was all that there
// was, or short-term, or working, so that a segment has fewer of those.
TEST_P(EngramSessionsTest, SessionsGoOnWithoutWhatIsForgotten) {
  for (const Setting& setting : kSettings) {
    for (const Profile profile : kProfiles) {
      const EngramRules rules = RulesOf(setting, profile);
      const int capacity = rules.least_capacity() + 1;
      EngramSession session(*backend_, rules, capacity, 6);
      PlainEngrams plain(rules, rounds(), capacity);
      SeededRandom random(13);
      int segment = 0, forgotten = 0;
      const auto forget = [&] {
        if (++segment % 3 != 0) return;
        const int open = segment - 1;
        const int first = random.Int(0, 3) == 0 ? 0 : random.Int(0, open - 1);
        const int end = random.Int(0, 2) == 0 ? open : random.Int(first + 1, open);
        const size_t before = plain.engrams.size();
        session.Forget(first, end);
        plain.Forget(first, end);
        forgotten += static_cast<int>(before - plain.engrams.size());
        ExpectSame(session, plain);
        EXPECT_EQ(session.Recalled(), plain.recalled);
      };
      if (!RunBeside(session, plain, rules, /*seed=*/14, /*steps=*/60, forget)) return;
      EXPECT_GT(forgotten, 0);
    }
  }
}

// Lifespans come from births and gains alone, and go by one for each engram and with those that
// die.
TEST_P(EngramSessionsTest, LifespansBalance) {
  for (const Profile profile : kProfiles) {
    const EngramRules rules = RulesOf(kSettings[1], profile);
    EngramSession session(*backend_, rules, 192, 6);
    Events events(/*seed=*/11);
    std::vector<double> weights;
    for (int segment = 1; segment <= 80; ++segment) {
      std::map<uint32_t, double> expected;  // by birth, dead or alive
      for (const int i : session.Slots()) expected[session.birth(i)] = session.lifespan(i) - 1;
      const std::vector<uint32_t> recalled = session.Recalled();
      for (size_t i = 0; i < weights.size(); ++i) {
        expected[recalled[i]] += weights[i] * session.fact(kEngramColumns) * rules.lifespan_scale;
      }
      session.Commit(segment, weights);
      double alive = 0, dead = 0, sum = 0;
      for (const auto& [birth, lifespan] : expected) (lifespan > 1e-6 ? alive : dead) += lifespan;
      for (const double lifespan : session.Lifespans()) sum += lifespan;
      EXPECT_NEAR(sum, alive, 1e-5 * (1 + alive)) << "segment " << segment;
      EXPECT_LE(dead, 1e-5);
      EXPECT_GE(dead, -static_cast<double>(expected.size()));
      session.Write(segment, events.Engrams(rules.working, 6));
      double born = 0;
      for (const double lifespan : session.Lifespans()) born += lifespan;
      EXPECT_NEAR(born - sum, rules.working * rules.lifespan, 1e-5 * (1 + born));
      session.Retrieve(segment);
      weights = events.Weights(session.Recalled().size());
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EngramSessionsTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
