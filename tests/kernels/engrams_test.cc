// Commit, encode and retrieve: worked examples, and random sessions beside PlainEngrams.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/tensor.h"
#include "tests/kernels/plain_engrams.h"
#include "tests/support/backends.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

using Vectors = std::vector<std::vector<double>>;

// A store of one session in the host's memory, with a copy in the backend's while it works on it.
class Session {
 public:
  // steps: of a history; 0: counts of pairs
  Session(Backend& backend, const EngramRules& rules, int capacity, int dim, int steps = 0)
      : bench_(backend), rules_(rules), number_(backend.activation_dtype()) {
    const auto field = [&](DType dtype, int64_t memories, int64_t elements) {
      const int64_t bytes = memories * elements * SizeOf(dtype);
      absl::StatusOr<Buffer> buffer = Buffer::Allocate(backend, bytes);
      CHECK_OK(buffer.status());
      memory_.push_back({std::vector<std::byte>(static_cast<size_t>(bytes)), *std::move(buffer)});
      return StateView{.base = memory_.back().host.data(),
                       .memory_bytes = elements * SizeOf(dtype),
                       .dtype = dtype};
    };
    store_ = {.capacity = capacity,
              .dim = dim,
              .steps = steps,
              .types = field(DType::kU8, 1, capacity),
              .vectors = field(number_, capacity, dim),
              .lifespans = field(number_, 1, capacity),
              .gains = field(number_, 1, capacity),
              .births = field(DType::kI32, 1, capacity),
              .counts = steps > 0 ? StateView{} : field(DType::kU16, capacity, capacity),
              .fired = steps > 0 ? field(DType::kI32, capacity, steps / 32) : StateView{},
              .recalled = field(DType::kI32, 1, rules.recalled()),
              .facts = field(DType::kI32, 1, kEngramFacts)};
    sums_ = field(number_, 1, rules.recalled());
    // Another crossing of the step has reported before this one.
    reports_ = {.words = bench_.NewInts({2, EngramReportSize(rules.recalled())}),
                .range = bench_.Ints({1, 2})};
    // What free slots hold means nothing.
    for (const StateView& view :
         {store_.vectors, store_.lifespans, store_.gains, store_.births, Firings()}) {
      std::vector<std::byte>& bytes = MemoryOf(view).host;
      std::fill(bytes.begin(), bytes.end(), std::byte{0xa5});
    }
  }

  // One head of one layer, and segments of one token: w_i = sums_i.
  void Commit(int segment, const std::vector<double>& weights = {}) {
    for (size_t i = 0; i < weights.size(); ++i) Set(sums_, 0, static_cast<int>(i), weights[i]);
    OnDevice([&](const EngramStore& store, const StateView& sums) {
      kernels().CommitEngrams({.rules = rules_,
                               .store = store,
                               .crossings = CrossingsTo(segment),
                               .sums = sums,
                               .reports = reports_});
    });
  }
  void Write(int segment, const Vectors& x) {
    std::vector<double> values;
    for (const auto& vector : x) {
      for (const double value : vector) values.push_back(static_cast<float>(value));
    }
    OnDevice([&](const EngramStore& store, const StateView&) {
      kernels().WriteEngrams({.rules = rules_,
                              .store = store,
                              .crossings = CrossingsTo(segment),
                              .x = bench_.Activations(values, {rules_.working, store.dim})});
    });
  }
  void Retrieve(int segment) {
    const TensorView scores = bench_.NewActivations({1, store_.capacity + 1});
    const Crossings crossings = CrossingsTo(segment);
    OnDevice([&](const EngramStore& store, const StateView&) {
      kernels().ScoreEngrams(
          {.rules = rules_, .store = store, .crossings = crossings, .scores = scores});
      scores_ = bench_.Read(scores);
      kernels().RetrieveEngrams({.rules = rules_,
                                 .store = store,
                                 .crossings = crossings,
                                 .scores = scores,
                                 .reports = reports_});
    });
  }
  // What the last crossing reported.
  std::vector<int> Report() {
    const std::vector<int> words = bench_.ReadInts(reports_.words);
    const int64_t size = reports_.words.shape[1];
    EXPECT_THAT(std::vector(words.begin(), words.begin() + size), Each(-1)) << "another's";
    return {words.begin() + size, words.end()};
  }
  // As ForgetEngrams does, but that counts stay.
  void Forget(int first, int end) {
    for (const int i : Slots()) {
      const int block = static_cast<int>(birth(i)) / rules_.working;
      if (block < first || block >= end) continue;
      if (type(i) == EngramType::kWorking) --store_.facts.as<int32_t>(0, 0)[kEngramsWorking];
      store_.types.as<uint8_t>(0, 0)[i] = 0;
    }
    auto* const recalled = store_.recalled.as<int32_t>(0, 0);
    int count = 0;
    for (int i = 0; i < fact(kEngramsRecalled); ++i) {
      if (type(recalled[i]) != EngramType::kFree) recalled[count++] = recalled[i];
    }
    store_.facts.as<int32_t>(0, 0)[kEngramColumns] -= fact(kEngramsRecalled) - count;
    store_.facts.as<int32_t>(0, 0)[kEngramsRecalled] = count;
  }

  // An engram of a worked example, in any slot.
  void Put(int slot, uint32_t birth, EngramType type, const std::vector<double>& x,
           double lifespan) {
    store_.types.as<uint8_t>(0, 0)[slot] = static_cast<uint8_t>(type);
    store_.births.as<uint32_t>(0, 0)[slot] = birth;
    Set(store_.lifespans, 0, slot, lifespan);
    Set(store_.gains, 0, slot, 0);
    for (size_t i = 0; i < x.size(); ++i) Set(store_.vectors, slot, static_cast<int>(i), x[i]);
    std::fill_n(store_.counts.as<uint16_t>(0, slot), store_.capacity, uint16_t{0});
  }
  void SetCounts(const std::vector<uint32_t>& births, const std::vector<std::vector<int>>& counts) {
    for (size_t i = 0; i < births.size(); ++i) {
      for (size_t j = 0; j < births.size(); ++j) {
        store_.counts.as<uint16_t>(0, SlotOf(births[i]))[SlotOf(births[j])] =
            static_cast<uint16_t>(counts[i][j]);
      }
    }
  }

  // Oldest first.
  std::vector<int> Slots() const {
    std::vector<int> slots;
    for (int i = 0; i < store_.capacity; ++i) {
      if (type(i) != EngramType::kFree) slots.push_back(i);
    }
    std::sort(slots.begin(), slots.end(), [&](int a, int b) { return birth(a) < birth(b); });
    return slots;
  }
  std::vector<uint32_t> Births(EngramType wanted) const {
    std::vector<uint32_t> births;
    for (const int i : Slots()) {
      if (type(i) == wanted) births.push_back(birth(i));
    }
    return births;
  }
  std::vector<uint32_t> Recalled() const {
    std::vector<uint32_t> births;
    for (int i = 0; i < fact(kEngramsRecalled); ++i) {
      births.push_back(birth(store_.recalled.as<int32_t>(0, 0)[i]));
    }
    return births;
  }
  std::vector<double> Lifespans() const {
    std::vector<double> lifespans;
    for (const int i : Slots()) lifespans.push_back(lifespan(i));
    return lifespans;
  }
  std::vector<double> Gains() const {
    std::vector<double> gains;
    for (const int i : Slots()) gains.push_back(Get(store_.gains, 0, i));
    return gains;
  }
  std::vector<std::vector<int>> Counts() const {
    const std::vector<int> slots = Slots();
    std::vector<std::vector<int>> counts;
    for (const int i : slots) {
      counts.emplace_back();
      for (const int j : slots) counts.back().push_back(count(i, j));
    }
    return counts;
  }
  int SlotOf(uint32_t wanted) const {
    for (const int i : Slots()) {
      if (birth(i) == wanted) return i;
    }
    ADD_FAILURE() << "no engram " << wanted;
    return 0;
  }
  double ScoreOf(uint32_t wanted) const { return scores_[static_cast<size_t>(SlotOf(wanted))]; }

  EngramType type(int i) const {
    return static_cast<EngramType>(store_.types.as<uint8_t>(0, 0)[i]);
  }
  uint32_t birth(int i) const { return store_.births.as<uint32_t>(0, 0)[i]; }
  double lifespan(int i) const { return Get(store_.lifespans, 0, i); }
  int count(int i, int j) const {
    if (store_.steps == 0) return store_.counts.as<uint16_t>(0, i)[j];
    int both = 0;
    for (int w = 0; w < store_.steps / 32; ++w) {
      both +=
          std::popcount(store_.fired.as<uint32_t>(0, i)[w] & store_.fired.as<uint32_t>(0, j)[w]);
    }
    return both;
  }
  int fact(EngramFact which) const { return store_.facts.as<int32_t>(0, 0)[which]; }

  // Moves what lies in slot i to to[i].
  void MoveSlots(const std::vector<int>& to) {
    const auto move = [&](const StateView& view, int64_t bytes, auto&& at) {
      std::vector<std::byte> old(static_cast<size_t>(bytes * store_.capacity));
      for (int i = 0; i < store_.capacity; ++i) {
        std::memcpy(old.data() + i * bytes, at(view, i), static_cast<size_t>(bytes));
      }
      for (int i = 0; i < store_.capacity; ++i) {
        std::memcpy(at(view, to[static_cast<size_t>(i)]), old.data() + i * bytes,
                    static_cast<size_t>(bytes));
      }
    };
    const auto memory = [](const StateView& view, int i) { return view.At(0, i); };
    const auto element = [](const StateView& view, int i) {
      return view.At(0, 0) + i * SizeOf(view.dtype);
    };
    move(store_.types, 1, element);
    move(store_.births, 4, element);
    move(store_.lifespans, SizeOf(number_), element);
    move(store_.gains, SizeOf(number_), element);
    move(store_.vectors, store_.vectors.memory_bytes, memory);
    move(Firings(), Firings().memory_bytes, memory);
    for (int row = 0; row < store_.capacity && store_.steps == 0; ++row) {
      StateView columns = store_.counts;
      columns.offset = row * columns.memory_bytes;
      move(columns, 2, element);
    }
    for (int i = 0; i < fact(kEngramsRecalled); ++i) {
      int32_t& slot = store_.recalled.as<int32_t>(0, 0)[i];
      slot = to[static_cast<size_t>(slot)];
    }
  }

 private:
  // A field.
  struct Memory {
    std::vector<std::byte> host;
    Buffer device;
  };

  EngramKernels& kernels() { return bench_.kernels(); }
  const StateView& Firings() const { return store_.steps > 0 ? store_.fired : store_.counts; }
  Memory& MemoryOf(const StateView& view) {
    return *std::find_if(memory_.begin(), memory_.end(),
                         [&](const Memory& memory) { return memory.host.data() == view.base; });
  }
  // work(the store, and the sums, in the backend's memory)
  template <typename Work>
  void OnDevice(const Work& work) {
    Backend& backend = bench_.backend();
    for (const Memory& memory : memory_) {
      backend.CopyFromHost(memory.device.data(), memory.host.data(), memory.device.bytes());
    }
    EngramStore store = store_;
    StateView sums = sums_;
    for (StateView* view :
         {&store.types, &store.vectors, &store.lifespans, &store.gains, &store.births,
          store.steps > 0 ? &store.fired : &store.counts, &store.recalled, &store.facts, &sums}) {
      view->base = MemoryOf(*view).device.data();
    }
    work(store, sums);
    for (Memory& memory : memory_) {
      backend.CopyToHost(memory.host.data(), memory.device.data(), memory.device.bytes());
    }
  }
  Crossings CrossingsTo(int segment) { return {bench_.Ints({0}), bench_.Ints({segment})}; }
  double Get(const StateView& view, int memory, int i) const {
    return number_ == DType::kF64 ? view.as<double>(0, memory)[i] : view.as<float>(0, memory)[i];
  }
  void Set(const StateView& view, int memory, int i, double value) {
    if (number_ == DType::kF64) {
      view.as<double>(0, memory)[i] = value;
    } else {
      view.as<float>(0, memory)[i] = static_cast<float>(value);
    }
  }

  Workbench bench_;
  EngramRules rules_;
  DType number_;
  std::deque<Memory> memory_;
  EngramStore store_;
  StateView sums_;
  EngramReports reports_;
  std::vector<double> scores_;
};

enum class Profile { kPaper, kUpstream10, kUpstream11 };
constexpr Profile kProfiles[] = {Profile::kPaper, Profile::kUpstream10, Profile::kUpstream11};

EngramRules WithProfile(EngramRules rules, Profile profile) {
  rules.score = profile == Profile::kUpstream11 ? EngramRules::Score::kNegSquare
                                                : EngramRules::Score::kExpMean;
  rules.extra_seeds = rules.recalls_oldest = rules.null_candidate = rules.null_column =
      rules.deaths_last = profile != Profile::kPaper;
  return rules;
}

class EngramsTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngramsTest()
      : backend_(GetParam().device == "reference" ? MakeReference() : GetParam().Make()) {}
  bool rounds() const { return backend_->activation_dtype() == DType::kF32; }

  std::unique_ptr<Backend> backend_;
};

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
    Session session(*backend_, rules, 6, 1);
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
      Session session(*backend_, rules, 8, 1);
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
    Session session(*backend_, rules, 8, 1);
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
    Session session(*backend_, rules, 8, 1);
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

void ExpectSame(const Session& session, const PlainEngrams& plain, bool compares_counts = true) {
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

// Of those that a segment attended to.
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
bool RunBeside(Session& session, PlainEngrams& plain, const EngramRules& rules, uint64_t seed,
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

TEST_P(EngramsTest, RandomSessionsAreThoseOfTheListThatIsCompacted) {
  constexpr int kSteps = 250;
  uint64_t seed = 100;
  for (const Setting& setting : kSettings) {
    for (const Profile profile : kProfiles) {
      for (const bool random_ties : {false, true}) {
        EngramRules rules = RulesOf(setting, profile);
        rules.random_ties = random_ties;
        rules.seed = ++seed;
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Session session(*backend_, rules, 192, 6);
        PlainEngrams plain(rules, rounds());
        if (!RunBeside(session, plain, rules, seed, random_ties ? kSteps / 5 : kSteps)) return;
        EXPECT_EQ(plain.evicted, 0);
      }
    }
  }
}

// A history is as good as counts of pairs until it is full, and then those of its last steps.
TEST_P(EngramsTest, HistoriesCountWhatTheyHold) {
  constexpr int kSteps = 150;
  uint64_t seed = 300;
  for (const int history : {64, 192}) {
    for (const Setting& setting : kSettings) {
      for (const Profile profile : kProfiles) {
        EngramRules rules = RulesOf(setting, profile);
        rules.seed = ++seed;
        rules.random_ties = seed % 2 == 0;
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Session session(*backend_, rules, 192, 6, history);
        PlainEngrams plain(rules, rounds(), /*capacity=*/0, history);
        if (!RunBeside(session, plain, rules, seed, kSteps)) return;
        EXPECT_EQ(session.fact(kEngramHistoryWrapped), std::max(0, kSteps - history));
      }
    }
  }
}

// Engrams that live longer than a history is: what it forgot changes what is recalled.
TEST_P(EngramsTest, AFullHistoryForgets) {
  constexpr int kSteps = 300, kHistory = 64;
  EngramRules rules = RulesOf({2, 2, 3, 4, 4, 2}, Profile::kPaper);
  rules.lifespan_scale = 40;
  Session session(*backend_, rules, 256, 6, kHistory);
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
TEST_P(EngramsTest, AStoreForEnwik8) {
  constexpr int kCapacity = 5120, kSteps = 13;
  EngramRules rules = RulesOf({170, 170, 170, 1360, 9, 10}, Profile::kUpstream10);
  rules.lifespan_scale = 8;
  Session counts(*backend_, rules, kCapacity, 6), history(*backend_, rules, kCapacity, 6, 4096);
  Events events(/*seed=*/13);
  std::vector<double> weights;
  for (int segment = 1; segment <= kSteps; ++segment) {
    const Vectors x = events.Engrams(rules.working, 6);
    for (Session* session : {&counts, &history}) {
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
TEST_P(EngramsTest, ALargeStore) {
  for (const Profile profile : {Profile::kPaper, Profile::kUpstream10}) {
    EngramRules rules = RulesOf({60, 20, 20, 540, 30, 3}, profile);
    rules.seed = 3;
    const int history = profile == Profile::kPaper ? 0 : 64;
    Session session(*backend_, rules, 1600, 6, history);
    PlainEngrams plain(rules, rounds());
    if (!RunBeside(session, plain, rules, /*seed=*/12, /*steps=*/24)) return;
    EXPECT_GT(session.Births(EngramType::kLongTerm).size() +
                  session.Births(EngramType::kShortTerm).size(),
              1024u);
  }
}

TEST_P(EngramsTest, SlotsCarryNoMeaning) {
  constexpr int kCapacity = 96;
  for (const Profile profile : kProfiles) {
    const EngramRules rules = RulesOf(kSettings[0], profile);
    const int history = profile == Profile::kPaper ? 64 : 0;
    Session session(*backend_, rules, kCapacity, 6, history);
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

TEST_P(EngramsTest, AFullStoreEvictsAndKeepsItsPromises) {
  for (const Setting& setting : kSettings) {
    for (const Profile profile : kProfiles) {
      const EngramRules rules = RulesOf(setting, profile);
      const int capacity = rules.least_capacity() + 1;
      Session session(*backend_, rules, capacity, 6);
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
TEST_P(EngramsTest, SessionsGoOnWithoutWhatIsForgotten) {
  for (const Setting& setting : kSettings) {
    for (const Profile profile : kProfiles) {
      const EngramRules rules = RulesOf(setting, profile);
      const int capacity = rules.least_capacity() + 1;
      Session session(*backend_, rules, capacity, 6);
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
TEST_P(EngramsTest, LifespansBalance) {
  for (const Profile profile : kProfiles) {
    const EngramRules rules = RulesOf(kSettings[1], profile);
    Session session(*backend_, rules, 192, 6);
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

// exp(-500) is no number of f32; the nearer ones are still told from those farther away.
TEST_P(EngramsTest, ScoresOfWhatIsFarAwayDoNotVanish) {
  const EngramRules rules =
      WithProfile({.working = 1, .short_term = 3, .recalled_short = 1, .depth = 1, .lifespan = 4},
                  Profile::kPaper);
  Session session(*backend_, rules, 8, 1);
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
