#include "models/state_layout.h"

#include <cstddef>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(StateLayoutTest, FieldsFollowEachOtherAlignedTo64Bytes) {
  StateLayout layout;
  const StateField flags =
      layout.Add({.name = "layers.0.written", .dtype = DType::kU8, .shape = {5}});
  const StateField empty = layout.Add({.name = "layers.0.q_window",
                                       .shape = {5, 0, 8},
                                       .guard = StateGuard::kFlags,
                                       .flags = flags.index});
  const StateField memory = layout.Add({.name = "layers.0.memory",
                                        .shape = {5, 2, 3, 4},
                                        .guard = StateGuard::kFlags,
                                        .flags = flags.index});
  EXPECT_EQ(flags.offset, 0);
  EXPECT_EQ(flags.memory_bytes(), 1);
  EXPECT_EQ(empty.offset, 64);
  EXPECT_EQ(empty.bytes(), 0);
  EXPECT_EQ(memory.offset, 64);
  EXPECT_EQ(memory.memory_bytes(), 2 * 3 * 4 * 4);
  EXPECT_EQ(layout.slab_bytes(), 64 + 512);
  EXPECT_EQ(layout.fields().size(), 3u);
}

TEST(StateLayoutTest, LayersShareTheFieldOfABirthsPhase) {
  StateLayout layout;
  const StateField first = layout.AddPhase(17);
  layout.Add({.name = "layers.0.written", .dtype = DType::kU8, .shape = {5}});
  const StateField second = layout.AddPhase(17);
  EXPECT_EQ(first.offset, 0);
  EXPECT_EQ(second.offset, 0);
  EXPECT_EQ(second.phases, 17);
  EXPECT_EQ(second.memory_bytes(), 4);
  EXPECT_EQ(layout.fields().size(), 2u);
  EXPECT_THAT(layout.ToString(), HasSubstr("one of 17 in turn in new sessions"));
}

TEST(StateLayoutTest, EqualLayersArePrintedOnce) {
  StateLayout layout;
  for (const char* name : {"layers.0.memory", "layers.1.memory", "layers.2.memory"}) {
    layout.Add({.name = name, .shape = {1, 16}});
  }
  layout.Add({.name = "layers.3.memory", .shape = {2, 16}});
  layout.Add({.name = "clock", .dtype = DType::kI64, .shape = {1}});
  const std::string text = layout.ToString();
  EXPECT_THAT(text, HasSubstr("layers.0-2.memory"));
  EXPECT_THAT(text, HasSubstr("layers.3.memory"));
  EXPECT_THAT(text, HasSubstr("cleared in new sessions"));
  EXPECT_THAT(text, HasSubstr("slab: 384 bytes"));
}

// Two memories of 4 rows of 64 bytes, behind two flags.
struct GuardedField {
  StateLayout layout;
  StateField flags, field;
  explicit GuardedField(StateGuard guard) {
    flags = layout.Add({.name = "written", .dtype = DType::kU8, .shape = {2}});
    field =
        layout.Add({.name = "field", .shape = {2, 4, 16}, .guard = guard, .flags = flags.index});
  }
};

TEST(WrittenBytesTest, AllOfAFieldThatIsAlwaysThere) {
  const GuardedField f(StateGuard::kAlways);
  EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 0), ElementsAre(ByteRange{64, 64 + 512}));
}

TEST(WrittenBytesTest, MemoriesWhoseFlagIsSet) {
  const GuardedField f(StateGuard::kFlags);
  std::vector<std::byte> slab(static_cast<size_t>(f.layout.slab_bytes()));
  EXPECT_THAT(WrittenBytes(f.layout, f.field, slab.data(), 9), IsEmpty());
  slab[1] = std::byte{1};
  EXPECT_THAT(WrittenBytes(f.layout, f.field, slab.data(), 9),
              ElementsAre(ByteRange{64 + 256, 64 + 512}));
  EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 9), ElementsAre(ByteRange{64, 64 + 512}));
}

TEST(WrittenBytesTest, AllOnceATokenWasFed) {
  const GuardedField f(StateGuard::kFed);
  EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 0), IsEmpty());
  EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 1), ElementsAre(ByteRange{64, 64 + 512}));
}

TEST(WrittenBytesTest, AsManyRowsAsTokens) {
  for (const StateGuard guard : {StateGuard::kFirstRows, StateGuard::kRing}) {
    const GuardedField f(guard);
    EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 0), IsEmpty());
    EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 3),
                ElementsAre(ByteRange{64, 64 + 192}, ByteRange{320, 320 + 192}));
    EXPECT_THAT(WrittenBytes(f.layout, f.field, nullptr, 100),
                ElementsAre(ByteRange{64, 64 + 512}));
  }
}

TEST(StateLayoutDeathTest, AGuardNeedsItsFlags) {
  StateLayout layout;
  EXPECT_DEATH(layout.Add({.name = "field", .shape = {2, 4}, .guard = StateGuard::kFlags}),
               "field");
  layout.Add({.name = "few", .dtype = DType::kU8, .shape = {1}});
  EXPECT_DEATH(
      layout.Add({.name = "field", .shape = {2, 4}, .guard = StateGuard::kFlags, .flags = 0}),
      "few are no flags of field");
}

}  // namespace
}  // namespace mneme
