#include "engine/state_pool.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_model.h"
#include "tests/support/layout_model.h"

namespace mneme {
namespace {

TEST(StatePoolTest, HandsOutEachSlotOnce) {
  FaultyBackend backend;
  const FakeModel model;
  auto pool = StatePool::Create(backend, model, 3).value();
  std::set<int> slots;
  for (int i = 0; i < 3; ++i) slots.insert(pool->Acquire().value());
  EXPECT_EQ(slots, (std::set<int>{0, 1, 2}));
  EXPECT_FALSE(pool->Acquire().has_value());
  pool->Release(1);
  EXPECT_EQ(pool->free_slots(), 1);
  EXPECT_EQ(pool->Acquire(), 1);
}

TEST(StatePoolTest, ANewSlabHasTheInitialEagerFieldsAndLeavesTheOthersAlone) {
  FaultyBackend backend;
  const FakeModel model;
  auto pool = StatePool::Create(backend, model, 2).value();
  const int slot = pool->Acquire().value();
  std::byte* slab = pool->slabs() + slot * pool->slab_bytes();
  std::memset(slab, 0x77, pool->slab_bytes());
  pool->Release(slot);
  ASSERT_EQ(pool->Acquire(), slot);
  int64_t first = -1, end = 0;  // of what is set; padding between fields comes along
  for (const StateField& field : model.state_layout().fields()) {
    if (field.guard != StateGuard::kAlways) {
      for (int64_t i = 0; i < field.bytes(); ++i) {
        EXPECT_EQ(slab[field.offset + i], std::byte{0x77}) << field.name;
      }
    } else {
      if (first < 0) first = field.offset;
      end = field.offset + field.bytes();
    }
  }
  uint64_t eager = 0;
  std::memcpy(&eager, slab, sizeof(eager));
  EXPECT_EQ(eager, FakeMemory{}.eager);
  EXPECT_EQ(pool->copied_bytes(), 2 * (end - first)) << "nothing else was copied";
}

int32_t PhaseOf(const StatePool& pool, const FakeModel& model, int slot) {
  int32_t phase = -1;
  for (const StateField& field : model.state_layout().fields()) {
    if (field.initial != StateInitial::kPhase) continue;
    std::memcpy(&phase, pool.slabs() + slot * pool.slab_bytes() + field.offset, sizeof(phase));
  }
  return phase;
}

TEST(StatePoolTest, SessionsAreGivenPhasesInTurnWhereverTheyLie) {
  FaultyBackend backend;
  const FakeModel model({.phases = 3});
  auto pool = StatePool::Create(backend, model, 5).value();
  std::memset(pool->slabs(), 0x77, 5 * pool->slab_bytes());
  std::vector<int> slots;
  for (int birth = 0; birth < 5; ++birth) {
    slots.push_back(pool->Acquire().value());
    EXPECT_EQ(PhaseOf(*pool, model, slots.back()), birth % 3);
  }
  // The sixth birth and the seventh, each in a slab that others had.
  pool->Release(slots[1]);
  pool->Release(slots[4]);
  for (const int birth : {5, 6}) {
    EXPECT_EQ(PhaseOf(*pool, model, pool->Acquire().value()), birth % 3);
  }
  EXPECT_EQ(PhaseOf(*pool, model, slots[0]), 0) << "another session was written";
  uint64_t eager = 0;
  std::memcpy(&eager, pool->slabs() + slots[1] * pool->slab_bytes(), sizeof(eager));
  EXPECT_EQ(eager, FakeMemory{}.eager) << "beside its phase a session is as any other";
}

TEST(StatePoolTest, AForkKeepsItsPhase) {
  FaultyBackend backend;
  const FakeModel model({.phases = 3});
  auto pool = StatePool::Create(backend, model, 4).value();
  pool->Acquire().value();
  const int parent = pool->Acquire().value();
  for (int i = 0; i < 2; ++i) {
    const int fork = pool->Acquire().value();
    pool->Copy(parent, fork, /*tokens=*/1);
    EXPECT_EQ(PhaseOf(*pool, model, fork), 1);
  }
}

TEST(StatePoolTest, ACopyTakesTheBlocksThatAreFilled) {
  StateLayout layout;
  layout.Add({.name = "a", .dtype = DType::kU8, .shape = {64}});
  const StateField rows = layout.Add({.name = "rows",
                                      .dtype = DType::kU8,
                                      .shape = {2, 300, 16},
                                      .guard = StateGuard::kFirstRows,
                                      .role = StateRole::kAppendOnly});
  layout.Add({.name = "b", .dtype = DType::kU8, .shape = {64}, .guard = StateGuard::kFed});
  const StateField ring = layout.Add({.name = "ring",
                                      .dtype = DType::kU8,
                                      .shape = {1, 100, 16},
                                      .guard = StateGuard::kRing,
                                      .role = StateRole::kAppendOnly});
  FaultyBackend backend;
  auto pool = StatePool::Create(backend, LayoutModel(layout), 2).value();
  const int from = pool->Acquire().value(), to = pool->Acquire().value();
  std::byte* const slab = pool->slabs() + to * pool->slab_bytes();
  constexpr int64_t kTokens = 140;
  std::memset(pool->slabs() + from * pool->slab_bytes(), 0x11, pool->slab_bytes());
  std::memset(slab, 0x22, pool->slab_bytes());
  const int64_t before = pool->copied_bytes();
  pool->Copy(from, to, kTokens);
  EXPECT_EQ(pool->copied_bytes() - before, 2 * 64 + 3 * 64 * 2 * 16 + 2 * 64 * 16);
  for (const StateField& field : {rows, ring}) {
    const PositionRange held = field.held(kTokens);
    for (int64_t position = held.begin; position < held.end; ++position) {
      for (int64_t m = 0; m < field.memories(); ++m) {
        ASSERT_EQ(slab[layout.RowOffset(field, m, position) + 15], std::byte{0x11})
            << field.name << " position " << position;
      }
    }
  }
  EXPECT_EQ(slab[layout.RowOffset(rows, 0, 192)], std::byte{0x22}) << "a block that is not filled";
}

// What was fed nothing is as it was born, even over a slab that was fed: nothing but what is not
// read as its initial value anyway, and the number that its parent was given.
TEST(StatePoolTest, ACopyOfWhatWasFedNothingTakesWhatSessionsAreBornWith) {
  FaultyBackend backend;
  const FakeModel model({.phases = 3});
  auto pool = StatePool::Create(backend, model, 2).value();
  const int from = pool->Acquire().value(), to = pool->Acquire().value();
  const int64_t birth = pool->copied_bytes() / 2;
  std::memset(pool->slabs() + to * pool->slab_bytes(), 0x22, pool->slab_bytes());
  pool->Copy(from, to, /*tokens=*/0);
  EXPECT_EQ(pool->copied_bytes(), 3 * birth);
  EXPECT_LT(birth, pool->slab_bytes());
  EXPECT_EQ(PhaseOf(*pool, model, to), 0);
  uint64_t eager = 0;
  std::memcpy(&eager, pool->slabs() + to * pool->slab_bytes(), sizeof(eager));
  EXPECT_EQ(eager, FakeMemory{}.eager);
}

// Fields of a routed layer have memories of all sizes, and other fields lie around them.
TEST(StatePoolTest, ACopyTakesTheMemoriesThatWereWritten) {
  constexpr int kMemories = 5;
  constexpr int64_t kLong = 200'000, kShort = 12;
  StateLayout layout;
  const StateField before =
      layout.Add({.name = "before", .dtype = DType::kU8, .shape = {70}, .guard = StateGuard::kFed});
  const StateField flags =
      layout.Add({.name = "written", .dtype = DType::kU8, .shape = {kMemories}});
  const auto add = [&](const char* name, int64_t bytes) {
    return layout.Add({.name = name,
                       .dtype = DType::kU8,
                       .shape = {kMemories, static_cast<int>(bytes)},
                       .guard = StateGuard::kFlags,
                       .flags = flags.index});
  };
  const StateField large = add("memory", kLong), small = add("range", kShort);
  const StateField after =
      layout.Add({.name = "after", .dtype = DType::kU8, .shape = {30}, .guard = StateGuard::kFed});
  FaultyBackend backend;
  auto pool = StatePool::Create(backend, LayoutModel(layout), 2).value();
  const int from = pool->Acquire().value(), to = pool->Acquire().value();
  const auto slab = [&](int slot) { return pool->slabs() + slot * pool->slab_bytes(); };
  for (const std::vector<int>& written :
       std::vector<std::vector<int>>{{}, {1, 4}, {0, 1, 2, 3, 4}}) {
    std::memset(slab(from), 0x11, pool->slab_bytes());
    std::memset(slab(to), 0x22, pool->slab_bytes());
    std::memset(slab(from) + flags.offset, 0, kMemories);
    for (const int m : written) slab(from)[flags.offset + m] = std::byte{1};
    const int64_t copied = pool->copied_bytes();
    pool->Copy(from, to, /*tokens=*/3);
    const auto count = static_cast<int64_t>(written.size());
    EXPECT_EQ(pool->copied_bytes() - copied,
              layout.fixed_bytes() - (kMemories - count) * (kLong + kShort));
    for (const StateField& field : {before, flags, after}) {
      EXPECT_EQ(std::memcmp(slab(to) + field.offset, slab(from) + field.offset, field.bytes()), 0)
          << field.name;
    }
    for (const StateField& field : {large, small}) {
      for (int m = 0; m < kMemories; ++m) {
        const bool is_written = std::find(written.begin(), written.end(), m) != written.end();
        const std::vector<std::byte> want(field.memory_bytes(),
                                          std::byte(is_written ? 0x11 : 0x22));
        EXPECT_EQ(std::memcmp(slab(to) + field.offset + m * field.memory_bytes(), want.data(),
                              want.size()),
                  0)
            << field.name << " of memory " << m;
      }
    }
  }
}

// Kernels find each slot's blocks where its slab is.
TEST(StatePoolTest, TablesNameTheBlocksOfEverySlab) {
  StateLayout layout;
  layout.Add({.name = "a", .dtype = DType::kU8, .shape = {64}});
  const StateField rows =
      layout.Add({.name = "rows", .shape = {1, 300, 16}, .guard = StateGuard::kFirstRows});
  const StateField ring =
      layout.Add({.name = "ring", .shape = {1, 100, 16}, .guard = StateGuard::kRing});
  FaultyBackend backend;
  auto pool = StatePool::Create(backend, LayoutModel(layout), 3).value();
  ASSERT_EQ(pool->contexts().size(), 2u);
  for (const StateField& field : {rows, ring}) {
    const ContextTable& table = pool->contexts()[field.group];
    EXPECT_EQ(table.blocks(), field.blocks());
    const ContextView view = {table, field.offset, field.row_bytes(), field.dtype};
    for (int slot = 0; slot < 3; ++slot) {
      for (const int64_t position : {0, 63, 64, 129, 299, 1000}) {
        EXPECT_EQ(view.At(slot, position),
                  pool->slabs() + slot * pool->slab_bytes() + layout.RowOffset(field, 0, position));
      }
    }
  }
  EXPECT_EQ(ContextTables::bytes(layout), (5 + 2) * 8);
}

TEST(StatePoolTest, LackOfMemoryIsAnErrorAndLeavesNothingBehind) {
  FaultyBackend backend;
  const FakeModel model;
  for (int n = 0; n < 2; ++n) {
    backend.FailAllocation(n);
    EXPECT_TRUE(absl::IsResourceExhausted(StatePool::Create(backend, model, 2).status()));
    EXPECT_EQ(backend.live_allocations(), 0);
  }
}

}  // namespace
}  // namespace mneme
