// W3C trace context: what is taken over, and what is ignored.
#include "server/requests/trace_context.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::MatchesRegex;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kHeader = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceContextTest, AValidHeaderIsTakenOverWithASpanOfItsOwn) {
  const TraceContext context = ReadTraceContext(kHeader, "vendor=opaque,rojo=00f067aa0ba902b7");
  EXPECT_TRUE(context.valid());
  EXPECT_EQ(context.trace_id, kTrace);
  EXPECT_EQ(context.parent_id, kParent);
  EXPECT_EQ(context.flags, "01");
  EXPECT_EQ(context.state, "vendor=opaque,rojo=00f067aa0ba902b7");
  EXPECT_THAT(context.span_id, MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(context.span_id, kParent);
  EXPECT_EQ(context.TraceParent(), absl::StrCat("00-", kTrace, "-", context.span_id, "-01"));
  EXPECT_NE(ReadTraceContext(kHeader, "").span_id, context.span_id);
}

TEST(TraceContextTest, WhatIsNotValidIsIgnored) {
  const std::string zeros(32, '0');
  for (const std::string& header : {
           std::string(),
           std::string("00"),
           "ff-" + kTrace + "-" + kParent + "-01",                    // no such version
           "0x-" + kTrace + "-" + kParent + "-01",                    //
           "00-" + zeros + "-" + kParent + "-01",                     // the invalid trace id
           "00-" + kTrace + "-" + zeros.substr(16) + "-01",           // the invalid parent id
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01",  // upper case
           "00_" + kTrace + "-" + kParent + "-01",                    //
           "00-" + kTrace + "-" + kParent + "-0",                     // too short
           "00-" + kTrace + "-" + kParent + "-zz",                    //
           kHeader + "-more",                                         // not in version 00
           "01-" + kTrace + "-" + kParent + "-01more",                // no separator
           "00-" + kTrace.substr(1) + "g-" + kParent + "-01",         //
           std::string(1000, '0'),
       }) {
    EXPECT_FALSE(ReadTraceContext(header, "a=b").valid()) << header;
    EXPECT_EQ(ReadTraceContext(header, "a=b").state, "") << "without a parent there is no state";
  }
}

TEST(TraceContextTest, ALaterVersionMaySayMore) {
  EXPECT_EQ(ReadTraceContext("cc-" + kTrace + "-" + kParent + "-01-what-the-future", "").trace_id,
            kTrace);
  EXPECT_TRUE(ReadTraceContext("cc-" + kTrace + "-" + kParent + "-01", "").valid());
}

TEST(TraceContextTest, AStateThatIsNotValidIsDroppedAlone) {
  std::string many = "k0=v";
  for (int i = 1; i < 33; ++i) absl::StrAppend(&many, ",k", i, "=v");
  for (const std::string& state :
       {std::string("no-equals"), std::string("Upper=1"), std::string("a=1,a=2"),
        std::string("a=b=c"), std::string("a="), std::string("=b"), std::string("a=\x01"), many,
        "a=" + std::string(600, 'x')}) {
    const TraceContext context = ReadTraceContext(kHeader, state);
    EXPECT_TRUE(context.valid());
    EXPECT_EQ(context.state, "") << state;
  }
  EXPECT_TRUE(IsTraceState("a=1, b@vendor=2,"));
  EXPECT_FALSE(IsTraceState(""));
}

}  // namespace
}  // namespace mneme
