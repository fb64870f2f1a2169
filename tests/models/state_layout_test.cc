#include "models/state_layout.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/context_tables.h"
#include "models/state_bytes.h"

namespace mneme {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(StateLayoutTest, FieldsFollowEachOtherAlignedTo64Bytes) {
  StateLayout layout;
  const StateField flags = layout.Add({.name = "written", .dtype = DType::kU8, .shape = {5}});
  const StateField empty = layout.Add(
      {.name = "q_window", .shape = {5, 0, 8}, .guard = StateGuard::kFlags, .flags = flags.index});
  const StateField memory = layout.Add(
      {.name = "memory", .shape = {5, 2, 3, 4}, .guard = StateGuard::kFlags, .flags = flags.index});
  EXPECT_EQ(flags.offset, 0);
  EXPECT_EQ(flags.memory_bytes(), 1);
  EXPECT_EQ(empty.offset, 64);
  EXPECT_EQ(empty.bytes(), 0);
  EXPECT_EQ(memory.offset, 64);
  EXPECT_EQ(memory.memory_bytes(), 2 * 3 * 4 * 4);
  EXPECT_EQ(layout.slab_bytes(), 64 + 512);
  EXPECT_EQ(layout.fields().size(), 3u);
}

// So that states that were stored without it are read.
TEST(StateLayoutTest, ALateFieldMovesNoOther) {
  const auto make = [](bool with_late) {
    StateLayout layout;
    layout.Add({.name = "facts", .dtype = DType::kI32, .shape = {1, 8}});
    if (with_late) {
      const StateField late =
          layout.Add({.name = "seed", .dtype = DType::kI32, .shape = {1, 2}, .is_late = true});
      EXPECT_EQ(late.offset, 32);
    }
    const StateField next = layout.Add({.name = "memory", .shape = {1, 16}});
    EXPECT_EQ(next.offset, 64);
    return layout;
  };
  const StateLayout without = make(false), with = make(true);
  EXPECT_EQ(with.slab_bytes(), without.slab_bytes());
  EXPECT_EQ(HashLayout(with), HashLayout(without));
  EXPECT_EQ(HashFormat(with), HashFormat(without));
  std::vector<std::byte> slab(static_cast<size_t>(with.slab_bytes()), std::byte{3});
  EXPECT_EQ(DigestState(with, slab.data(), 1), DigestState(without, slab.data(), 1));
}

TEST(StateLayoutTest, LayersShareTheFieldOfABirthsPhase) {
  StateLayout layout;
  const StateField first = layout.AddPhase(17);
  layout.Add({.name = "written", .dtype = DType::kU8, .shape = {5}});
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
  for (int layer = 0; layer < 3; ++layer) {
    const StateField field = layout.Add({.name = "memory", .layer = layer, .shape = {1, 16}});
    EXPECT_EQ(field.name, absl::StrCat("layers.", layer, ".memory"));
  }
  layout.Add({.name = "memory", .layer = 3, .shape = {2, 16}});
  layout.Add({.name = "clock", .dtype = DType::kI64, .shape = {1}});
  const std::string text = layout.ToString();
  EXPECT_THAT(text, HasSubstr("layers.0-2.memory"));
  EXPECT_THAT(text, HasSubstr("layers.3.memory"));
  EXPECT_THAT(text, HasSubstr("cleared in new sessions"));
  EXPECT_THAT(text, HasSubstr("slab: 384 bytes"));
  std::set<size_t> columns;  // where "bytes" begins, in lines of fields
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (!absl::StartsWith(line, "slab")) columns.insert(line.find("bytes"));
  }
  EXPECT_EQ(columns.size(), 1u) << text;
  EXPECT_THAT(text, ContainsRegex("alignment +56 bytes  between fields\n"));
}

// The bytes of all lines but that of the slab, which is the sum of those above it.
int64_t SumOfLines(const std::string& text) {
  int64_t sum = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "slab")) continue;
    const std::string before(line.substr(0, line.find(" bytes")));
    sum += std::stoll(before.substr(before.rfind(' ') + 1));
  }
  return sum;
}

TEST(StateLayoutTest, LinesAddUpToWhatASessionTakes) {
  StateLayout layout;
  layout.Add({.name = "memory", .shape = {3, 5}});
  EXPECT_THAT(layout.ToString(), Not(HasSubstr("tables")));
  EXPECT_EQ(SumOfLines(layout.ToString()), SessionBytes(layout));
  layout.Add({.name = "keys", .shape = {1, 130, 1}, .guard = StateGuard::kFirstRows});
  layout.Add({.name = "ring", .layer = 1, .shape = {1, 64, 3}, .guard = StateGuard::kRing});
  const std::string text = layout.ToString();
  EXPECT_EQ(SumOfLines(text), SessionBytes(layout)) << text;
  EXPECT_THAT(text, HasSubstr("tables: 32 bytes")) << "of three blocks and one";
  EXPECT_THAT(text, ContainsRegex("768 bytes  a row a token: 4 bytes a token, room for 192 as "
                                  "blocks have 64 rows\n"));
  EXPECT_THAT(text, ContainsRegex("768 bytes  a row a token, the last 64: 12 bytes a token\n"));
  StateLayout whole;
  whole.Add({.name = "memory", .shape = {16}});
  EXPECT_THAT(whole.ToString(), Not(HasSubstr("alignment")));
}

TEST(StateLayoutTest, LayersWithOthersBetweenThemShareALine) {
  StateLayout layout;
  for (int layer = 0; layer < 12; ++layer) {
    if (layer % 2 == 1) layout.Add({.name = "memory", .layer = layer, .shape = {1, 16}});
    if (layer < 3 || layer == 5 || layer == 8) {
      layout.Add({.name = "window", .layer = layer, .shape = {2, 8}});
    }
  }
  const std::string text = layout.ToString();
  EXPECT_THAT(text, HasSubstr("layers.1,3,..,11.memory"));
  EXPECT_THAT(text, HasSubstr("layers.0-2,5,8.window"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
}

TEST(StateLayoutTest, FieldsThatGrowAlikeLieTogetherBlockByBlock) {
  StateLayout layout;
  const auto add = [&](const char* name, StateGuard guard, int64_t rows, int64_t width) {
    return layout.Add({.name = name, .shape = {1, rows, width}, .guard = guard});
  };
  const StateField keys = add("keys", StateGuard::kFirstRows, 130, 4);
  const StateField ring = add("ring", StateGuard::kRing, 130, 16);
  layout.Add({.name = "memory", .shape = {1, 5}});
  const StateField values = add("values", StateGuard::kFirstRows, 130, 8);
  const StateField more = add("more", StateGuard::kFirstRows, 64, 4);
  EXPECT_EQ(keys.group, values.group);
  EXPECT_NE(keys.group, ring.group) << "another guard";
  EXPECT_NE(keys.group, more.group) << "another number of rows";
  ASSERT_EQ(layout.groups().size(), 3u);
  EXPECT_EQ(layout.fixed_bytes(), 64);
  const ContextGroup& group = layout.groups()[keys.group];
  EXPECT_EQ(group.blocks(), 3);
  EXPECT_EQ(group.block_bytes, 64 * (16 + 32));
  EXPECT_EQ(values.offset, 64 * 16) << "behind the keys, in each block";
  EXPECT_EQ(layout.BlockOffset(keys.group, 0), 64) << "behind what is fixed";
  EXPECT_EQ(layout.RowOffset(values, 0, 65), 64 + group.block_bytes + 64 * 16 + 32);
  EXPECT_EQ(layout.RowOffset(ring, 0, 3 * 64 + 1), layout.BlockOffset(ring.group, 0) + 64);
  EXPECT_EQ(layout.slab_bytes(), 64 + 3 * 64 * (16 + 32) + 3 * 64 * 64 + 64 * 16);
  EXPECT_EQ(layout.max_tokens(), 64) << "the shortest of those that are no rings";
  EXPECT_EQ(layout.growing_bytes(), 3 * 64 * (16 + 32) + 64 * 16) << "all but the ring";
  EXPECT_EQ(group.filled_blocks(0), 0);
  EXPECT_EQ(group.filled_blocks(64), 1);
  EXPECT_EQ(group.filled_blocks(65), 2);
  EXPECT_EQ(group.filled_blocks(1000), 3);
}

TEST(StateLayoutTest, RingsHaveNoEnd) {
  StateLayout layout;
  EXPECT_EQ(layout.max_tokens(), std::nullopt);
  layout.Add({.name = "ring", .shape = {1, 100, 4}, .guard = StateGuard::kRing});
  EXPECT_EQ(layout.max_tokens(), std::nullopt);
  EXPECT_EQ(layout.growing_bytes(), 0);
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
