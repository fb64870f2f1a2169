#include "server/security/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/status_payload.h"
#include "tests/support/fake_clock.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CallerRef With(KeyLimits limits, std::string owner = "alice") {
  return std::make_shared<const Caller>(Caller{.owner = std::move(owner), .limits = limits});
}

class QuotaTest : public ::testing::Test {
 protected:
  StreamPermit Begin(const CallerRef& caller) {
    absl::StatusOr<StreamPermit> permit = quotas_.BeginStream(caller);
    EXPECT_TRUE(permit.ok()) << permit.status();
    return permit.ok() ? *std::move(permit) : nullptr;
  }
  // A request begins, uses all it asked for, and ends.
  absl::Status Use(const CallerRef& caller, int64_t tokens) {
    const StreamPermit permit = Begin(caller);
    const absl::Status status = permit->TakeTokens(tokens);
    if (status.ok()) permit->Settle({.prompt_tokens = tokens});
    return status;
  }

  FakeClock clock_;
  QuotaTable quotas_{clock_};
};

TEST_F(QuotaTest, StreamsAreCountedByOwner) {
  const CallerRef alice = With({.max_streams = 2});
  const CallerRef bob = With({.max_streams = 1}, "bob");
  StreamPermit first = Begin(alice);
  const StreamPermit second = Begin(alice);
  const absl::Status refused = quotas_.BeginStream(alice).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(ReasonOf(refused), kReasonStreamLimit);
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("may have 2"));
  Begin(bob);  // others are not concerned
  first = nullptr;
  Begin(alice);
  EXPECT_EQ(quotas_.streams("alice"), 1);
  EXPECT_EQ(quotas_.streams("bob"), 0);
}

TEST_F(QuotaTest, NoLimitIsNone) {
  const CallerRef caller = With({});
  std::vector<StreamPermit> permits;
  for (int i = 0; i < 100; ++i) {
    permits.push_back(Begin(caller));
    EXPECT_TRUE(permits.back()->TakeTokens(int64_t{1} << 40).ok());
  }
}

TEST_F(QuotaTest, TokensComeBackAtTheirRate) {
  const CallerRef caller = With({.tokens_per_minute = 600});
  EXPECT_TRUE(Use(caller, 600).ok());  // a minute's worth at once
  const absl::Status refused = Use(caller, 100);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(ReasonOf(refused), kReasonTokenLimit);
  EXPECT_EQ(RetryAfterOf(refused), absl::Seconds(10));
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("100"), HasSubstr("0 are left")));
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(RetryAfterOf(Use(caller, 100)), absl::Seconds(5));
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(Use(caller, 100).ok());
  // However long it rests, it never holds more than a minute's worth.
  clock_.Advance(absl::Hours(5));
  EXPECT_TRUE(Use(caller, 600).ok());
  EXPECT_FALSE(Use(caller, 1).ok());
}

TEST_F(QuotaTest, WhatARequestDoesNotUseComesBack) {
  const CallerRef caller = With({.tokens_per_minute = 600});
  {
    const StreamPermit permit = Begin(caller);
    EXPECT_TRUE(permit->TakeTokens(500).ok());
    // Together they would pass the limit, so the second has to wait for what the first needs.
    EXPECT_EQ(RetryAfterOf(Use(caller, 300)), absl::Seconds(20));
    permit->Settle({.prompt_tokens = 50, .completion_tokens = 150});
  }
  EXPECT_TRUE(Use(caller, 400).ok());
  EXPECT_FALSE(Use(caller, 1).ok());
  clock_.Advance(absl::Minutes(1));
  {
    const StreamPermit permit = Begin(caller);
    EXPECT_TRUE(permit->TakeTokens(600).ok());
  }  // never ran
  EXPECT_TRUE(Use(caller, 600).ok());
}

TEST_F(QuotaTest, ARequestThatNeverFitsIsToldSo) {
  const absl::Status refused = Use(With({.tokens_per_minute = 600}), 601);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));  // no retry can help
  EXPECT_EQ(FieldOf(refused), "stopping.max_tokens");
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("601"), HasSubstr("600")));
}

TEST_F(QuotaTest, ALimitThatChangesTakesEffect) {
  EXPECT_TRUE(Use(With({.tokens_per_minute = 600}), 300).ok());
  EXPECT_FALSE(Use(With({.tokens_per_minute = 100}), 101).ok());
  EXPECT_TRUE(Use(With({.tokens_per_minute = 100}), 100).ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_FALSE(Use(With({.tokens_per_minute = 6000}), 51).ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(Use(With({.tokens_per_minute = 6000}), 3000).ok());
}

TEST_F(QuotaTest, ARequestTakesPromptAndAllChoices) {
  const CallerRef caller = With({.tokens_per_minute = 600});
  Request request;
  request.prompt.at_start = {1, 2, 3};
  request.prompt.continued = {1, 2};
  request.n = 4;
  request.stop.max_tokens = 100;
  EXPECT_TRUE(TakeTokensFor(request, Begin(caller)).ok());
  EXPECT_EQ(quotas_.streams("alice"), 1);  // the request keeps it
  EXPECT_FALSE(Use(caller, 198).ok());
  std::exchange(request.on_end, nullptr)({.prompt_tokens = 3, .completion_tokens = 7});
  EXPECT_EQ(quotas_.streams("alice"), 0);
  EXPECT_TRUE(Use(caller, 590).ok());
  EXPECT_TRUE(absl::IsCancelled(TakeTokensFor(request, nullptr)));
}

TEST_F(QuotaTest, APriorityIsWhatTheKeyAllows) {
  const auto check = [&](int priority, const CallerRef& caller) {
    Request request;
    request.priority = priority;
    return TakeTokensFor(request, Begin(caller));
  };
  const absl::Status refused = check(1, With({.tokens_per_minute = 600}));
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), kReasonPriorityLimit);
  EXPECT_EQ(FieldOf(refused), "priority");
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("priority is 1"), HasSubstr("this key may ask for 0 at most")));
  EXPECT_THAT(std::string(check(6, With({.max_priority = 5}, "")).message()),
              HasSubstr("callers without a key may ask for 5 at most"));
  for (const int priority : {-1000, -1, 0, 5}) {
    EXPECT_TRUE(check(priority, With({.max_priority = 5})).ok()) << priority;
  }
  EXPECT_TRUE(check(1001, With({})).ok()) << "no range of a key: the engine refuses it";
}

}  // namespace
}  // namespace mneme
