#include "engine/idempotency.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

TokenEvent Text(size_t bytes) {
  TokenEvent event;
  event.text = std::string(bytes, 'x');
  return event;
}

TEST(IdempotencyTableTest, EventsGoOldestFirstWhereTheyTakeTooMuch) {
  IdempotencyTable table(100, 10'000);
  KeyRecord* records[8];
  for (int i = 0; i < 8; ++i) {
    records[i] = &table.Insert("", absl::StrCat(i), 0);
    table.Append(*records[i], Text(4000));
    table.End(*records[i], KeyState::kFinished, i, 0);
  }
  for (int i = 0; i < 8; ++i) EXPECT_EQ(records[i]->dropped_events, i < 6) << i;
  EXPECT_EQ(table.bytes(), records[6]->bytes + records[7]->bytes);
}

TEST(IdempotencyTableTest, WhatIsForgottenAmongThemTakesNothing) {
  IdempotencyTable table(100, 10'000);
  const auto add = [&](const char* key) -> KeyRecord& {
    KeyRecord& record = table.Insert("", key, 0);
    table.Append(record, Text(4000));
    table.End(record, KeyState::kFinished, 0, 0);
    return record;
  };
  table.Forget(add("a"));  // the only one, so that none is left that has ended
  KeyRecord& b = add("b");
  const KeyRecord& c = add("c");
  table.Forget(b);  // the oldest that has events
  const KeyRecord& d = add("d");
  EXPECT_FALSE(c.dropped_events || d.dropped_events);
  add("e");
  EXPECT_TRUE(c.dropped_events);
  EXPECT_FALSE(d.dropped_events);
  EXPECT_LE(table.bytes(), 10'000);
}

TEST(IdempotencyTableTest, OneThatIsTooLongForAllGoesItself) {
  IdempotencyTable table(100, 10'000);
  KeyRecord& ended = table.Insert("", "ended", 0);
  table.Append(ended, Text(1));
  table.End(ended, KeyState::kFinished, 0, 0);
  KeyRecord& record = table.Insert("", "k", 0);
  table.Append(record, Text(20'000));
  EXPECT_TRUE(record.dropped_events);
  EXPECT_EQ(table.bytes(), 0);
  // A later one finds room again.
  KeyRecord& next = table.Insert("", "next", 0);
  table.Append(next, Text(9'000));
  EXPECT_FALSE(next.dropped_events);
}

TEST(IdempotencyTableTest, WhatIsErasedKeepsItsKeyAndSaysSo) {
  IdempotencyTable table(100, 10'000);
  KeyRecord* records[4];
  for (int i = 0; i < 4; ++i) {
    records[i] = &table.Insert("", absl::StrCat(i), 0);
    table.Append(*records[i], Text(100));
    table.End(*records[i], i == 3 ? KeyState::kBroken : KeyState::kFinished, 10 * i,
              /*session_id=*/i == 2 ? 8 : 7);
  }
  table.ForgetAnswers(7, 0);
  EXPECT_EQ(records[0]->state, KeyState::kFinished) << "ended before";
  EXPECT_FALSE(records[0]->dropped_events);
  EXPECT_EQ(records[1]->state, KeyState::kErased);
  EXPECT_TRUE(records[1]->dropped_events);
  EXPECT_EQ(records[2]->state, KeyState::kFinished) << "another session's";
  EXPECT_EQ(records[3]->state, KeyState::kBroken) << "it had no answer";
  table.Undo(7, 0);
  EXPECT_EQ(records[1]->state, KeyState::kUndone);
}

TEST(IdempotencyTableTest, WhatIsUndoneKeepsItsKeyAndNoEvents) {
  IdempotencyTable table(100, 10'000);
  KeyRecord* records[4];
  for (int i = 0; i < 4; ++i) {
    records[i] = &table.Insert("", absl::StrCat(i), 0);
    table.Append(*records[i], Text(100));
    table.End(*records[i], i == 3 ? KeyState::kBroken : KeyState::kFinished, 10 * i,
              /*session_id=*/i == 2 ? 8 : 7);
  }
  KeyRecord& running = table.Insert("", "running", 0);
  table.Undo(7, 0);
  EXPECT_EQ(records[0]->state, KeyState::kFinished) << "ended there";
  EXPECT_FALSE(records[0]->dropped_events);
  EXPECT_EQ(records[1]->state, KeyState::kUndone);
  EXPECT_TRUE(records[1]->dropped_events);
  EXPECT_EQ(records[2]->state, KeyState::kFinished) << "another session's";
  EXPECT_EQ(records[3]->state, KeyState::kUndone);
  EXPECT_EQ(running.state, KeyState::kRunning);
  EXPECT_EQ(table.Find("", "1"), records[1]);
  EXPECT_EQ(table.bytes(), records[0]->bytes + records[2]->bytes);
}

}  // namespace
}  // namespace mneme
