#include "models/state_layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using testing::HasSubstr;

TEST(StateLayoutTest, FieldsFollowEachOtherAlignedTo64Bytes) {
  StateLayout layout;
  const StateField flags = layout.Add("layers.0.written", DType::kU8, {5}, false);
  const StateField empty = layout.Add("layers.0.q_window", DType::kF32, {5, 0, 8}, true);
  const StateField memory = layout.Add("layers.0.memory", DType::kF32, {5, 2, 3, 4}, true);
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
  const StateField first = layout.AddBirthPhase(17);
  layout.Add("layers.0.written", DType::kU8, {5}, false);
  const StateField second = layout.AddBirthPhase(17);
  EXPECT_EQ(first.offset, 0);
  EXPECT_EQ(second.offset, 0);
  EXPECT_EQ(second.birth_phases, 17);
  EXPECT_EQ(second.memory_bytes(), 4);
  EXPECT_EQ(layout.fields().size(), 2u);
  EXPECT_THAT(layout.ToString(), HasSubstr("one of 17 in turn in new sessions"));
}

TEST(StateLayoutTest, EqualLayersArePrintedOnce) {
  StateLayout layout;
  for (const char* name : {"layers.0.memory", "layers.1.memory", "layers.2.memory"}) {
    layout.Add(name, DType::kF32, {1, 16}, true);
  }
  layout.Add("layers.3.memory", DType::kF32, {2, 16}, true);
  layout.Add("clock", DType::kI64, {1}, false);
  const std::string text = layout.ToString();
  EXPECT_THAT(text, HasSubstr("layers.0-2.memory"));
  EXPECT_THAT(text, HasSubstr("layers.3.memory"));
  EXPECT_THAT(text, HasSubstr("cleared in new sessions"));
  EXPECT_THAT(text, HasSubstr("slab: 384 bytes"));
}

}  // namespace
}  // namespace mneme
