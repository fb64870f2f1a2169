// A session's store of engrams in tests, and the rules and backends that they go through.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/tensor.h"
#include "tests/support/backends.h"
#include "tests/support/workbench.h"

namespace mneme {

// A store of one session in the host's memory, with a copy in the backend's while it works on it.
class EngramSession {
 public:
  // steps: of a history; 0: counts of pairs
  EngramSession(Backend& backend, const EngramRules& rules, int capacity, int dim, int steps = 0)
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
              .facts = field(DType::kI32, 1, kEngramFacts),
              .seed = field(DType::kI32, 1, 2)};
    // What `rules` say, by a seed of its own over another one of the rules.
    rules_.seed ^= kOwnSeed;
    std::memcpy(MemoryOf(store_.seed).host.data(), &kOwnSeed, sizeof(kOwnSeed));
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
  void Write(int segment, const std::vector<std::vector<double>>& x) {
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
    EXPECT_THAT(std::vector(words.begin(), words.begin() + size), testing::Each(-1)) << "another's";
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
  static constexpr uint64_t kOwnSeed = 0xfedcba9876543210;

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
    for (StateView* view : {&store.types, &store.vectors, &store.lifespans, &store.gains,
                            &store.births, store.steps > 0 ? &store.fired : &store.counts,
                            &store.recalled, &store.facts, &store.seed, &sums}) {
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

inline EngramRules WithProfile(EngramRules rules, Profile profile) {
  rules.score = profile == Profile::kUpstream11 ? EngramRules::Score::kNegSquare
                                                : EngramRules::Score::kExpMean;
  rules.extra_seeds = rules.recalls_oldest = rules.null_candidate = rules.null_column =
      rules.deaths_last = profile != Profile::kPaper;
  return rules;
}

class EngramStoreTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngramStoreTest() : backend_(GetParam().Make()) {}
  bool rounds() const { return backend_->activation_dtype() == DType::kF32; }

  std::unique_ptr<Backend> backend_;
};

}  // namespace mneme
