#include "engine/sessions/session_manager.h"

#include <cstring>
#include <memory>
#include <vector>

#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

constexpr int kManagedSlots = 4;
constexpr absl::Duration kManagedTtl = absl::Minutes(10);

class SessionManagerTest : public ::testing::Test {
 protected:
  std::byte* Slab(int slot) { return pool->slabs() + slot * pool->slab_bytes(); }
  void Fill(int slot, int value) { std::memset(Slab(slot), value, pool->slab_bytes()); }
  bool HasBytesOf(int slot, int other) {
    return std::memcmp(Slab(slot), Slab(other), pool->slab_bytes()) == 0;
  }
  absl::Status CreateIdle(const std::string& name, absl::Duration ttl = kManagedTtl) {
    return manager.Create({"", name}, ttl, /*slabs_awaited=*/0).status();
  }

  FakeClock clock;
  FaultyBackend backend;
  FakeModel model;
  std::unique_ptr<StatePool> pool = StatePool::Create(backend, model, kManagedSlots).value();
  EngineStats stats;
  int owner_limit = 0;
  SessionManager manager{*pool,
                         clock,
                         stats,
                         {.default_ttl = kManagedTtl,
                          .history_tokens = 8,
                          .owner_limit = [this](const std::string&) { return owner_limit; }}};
};

TEST_F(SessionManagerTest, ANamedSessionIsBusyWhileItsKeyIsClaimed) {
  const SessionKey key = {"", "s"};
  manager.Claim(key);
  EXPECT_EQ(manager.Find(key), nullptr) << "a claim makes no session";
  Session& session = manager.CreateClaimed(key, absl::ZeroDuration());
  EXPECT_TRUE(session.busy);
  EXPECT_EQ(session.ttl, kManagedTtl);
  EXPECT_EQ(ReasonOf(manager.Delete(key)), kReasonSessionBusy);
  clock.Advance(2 * kManagedTtl);
  manager.Expire();
  EXPECT_EQ(manager.NextExpiry(), absl::InfiniteDuration());
  EXPECT_EQ(manager.CheckIntegrity({}, /*claims=*/1), absl::OkStatus());

  EXPECT_EQ(manager.Unclaim(key, /*ran=*/true), &session);
  EXPECT_FALSE(session.busy);
  EXPECT_EQ(session.last_used, clock.Now());
  EXPECT_EQ(manager.NextExpiry(), clock.Monotonic() + kManagedTtl);
  manager.Claim(key);
  EXPECT_TRUE(session.busy);
  clock.Advance(absl::Seconds(1));
  manager.Unclaim(key, /*ran=*/false);
  EXPECT_EQ(session.last_used, clock.Now() - absl::Seconds(1)) << "the request was never admitted";
  EXPECT_EQ(manager.Delete(key), absl::OkStatus());
  EXPECT_EQ(pool->used_slots(), 0);
}

TEST_F(SessionManagerTest, AClaimMayEndWithoutASession) {
  const SessionKey key = {"", "s"};
  manager.Claim(key);
  EXPECT_EQ(ReasonOf(manager.Create(key, kManagedTtl, 0).status()), kReasonSessionBusy)
      << "the waiting request will make it";
  EXPECT_EQ(manager.Unclaim(key, /*ran=*/false), nullptr);
  EXPECT_EQ(manager.Create(key, kManagedTtl, 0).status(), absl::OkStatus());
}

TEST_F(SessionManagerTest, IdleSessionsExpireInTheirOrder) {
  EXPECT_EQ(CreateIdle("late", absl::Minutes(3)), absl::OkStatus());
  EXPECT_EQ(CreateIdle("early", absl::Minutes(1)), absl::OkStatus());
  EXPECT_EQ(manager.NextExpiry(), clock.Monotonic() + absl::Minutes(1));
  clock.Advance(absl::Minutes(2));
  manager.Expire();
  ASSERT_EQ(manager.ListHere("", "").sessions.size(), 1u);
  EXPECT_EQ(manager.ListHere("", "").sessions[0].key.name, "late");
  EXPECT_EQ(pool->used_slots(), 1);
  EXPECT_EQ(stats.ended_by(SessionEnd::kExpired).value(), 1);
}

TEST_F(SessionManagerTest, AForkIsTheParentInASlabOfItsOwn) {
  ASSERT_EQ(CreateIdle("parent"), absl::OkStatus());
  Session& parent = *manager.Find({"", "parent"});
  Fill(parent.slot, 0x5a);
  parent.fed_tokens = 17;
  parent.fed.Add(nullptr, 3);
  parent.pending_token = 4;
  parent.history.Push(4, /*generated=*/true);
  const auto info = manager.Fork(parent.key, {"", "child"}, absl::Hours(1), /*slabs_awaited=*/0);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->position, 18);
  const Session& child = *manager.Find({"", "child"});
  EXPECT_NE(child.slot, parent.slot);
  EXPECT_NE(child.id, parent.id);
  EXPECT_TRUE(HasBytesOf(child.slot, parent.slot));
  EXPECT_EQ(child.fed_tokens, 17);
  EXPECT_EQ(child.fed, parent.fed);
  EXPECT_EQ(child.pending_token, 4);
  EXPECT_EQ(child.history.size(), 1);
  EXPECT_EQ(child.ttl, absl::Hours(1));
  EXPECT_EQ(stats.sessions.value(), 2) << "gauges are up to date with the answer";
}

TEST_F(SessionManagerTest, AnEphemeralForkTakesAReservedSlab) {
  const std::unique_ptr<Session> parent = manager.BeginEphemeral();
  Fill(parent->slot, 0x3c);
  parent->fed_tokens = 5;
  std::vector<int> reserved = manager.Reserve(2);
  EXPECT_EQ(manager.free_slabs(), kManagedSlots - 3);
  EXPECT_EQ(manager.ephemeral_slabs(), 3);
  const std::unique_ptr<Session> child = manager.ForkEphemeral(*parent, reserved.back());
  EXPECT_EQ(child->slot, reserved.back());
  EXPECT_EQ(child->fed_tokens, 5);
  EXPECT_TRUE(HasBytesOf(child->slot, parent->slot));
  EXPECT_EQ(manager.ephemeral_slabs(), 3) << "the slab was counted when it was reserved";
  reserved.pop_back();

  manager.Unreserve(reserved);
  EXPECT_TRUE(reserved.empty());
  manager.EndEphemeral(*child);
  manager.EndEphemeral(*child);
  EXPECT_EQ(child->fed_tokens, 5);
  EXPECT_EQ(manager.ephemeral_slabs(), 1);
  manager.EndEphemeral(*parent);
  EXPECT_EQ(manager.free_slabs(), kManagedSlots);
}

TEST_F(SessionManagerTest, CommandsLeaveTheSlabsThatRequestsWaitFor) {
  EXPECT_EQ(manager.Create({"", "a"}, kManagedTtl, /*slabs_awaited=*/3).status(), absl::OkStatus());
  const std::unique_ptr<Session> running = manager.BeginEphemeral();
  clock.Advance(kManagedTtl - absl::Seconds(20));
  const absl::Status refused = manager.Create({"", "b"}, kManagedTtl, /*slabs_awaited=*/2).status();
  EXPECT_EQ(ReasonOf(refused), kReasonNoFreeSlab);
  EXPECT_EQ(refused.message(),
            "no room: 1 state slot is needed; of 4, 2 are free and awaited by earlier requests, 1 "
            "will be when running requests end, and named sessions have the others");
  EXPECT_EQ(RetryAfterOf(refused), absl::Seconds(20)) << "when \"a\" expires";
  EXPECT_EQ(ReasonOf(manager.Fork({"", "a"}, {"", "b"}, kManagedTtl, /*slabs_awaited=*/2).status()),
            kReasonNoFreeSlab);
  manager.EndEphemeral(*running);
  EXPECT_EQ(manager.Create({"", "b"}, kManagedTtl, /*slabs_awaited=*/2).status(), absl::OkStatus());
}

TEST_F(SessionManagerTest, WhereNoSessionExpiresNothingIsSaidOfLater) {
  owner_limit = 1;
  EXPECT_EQ(manager.Create({"", "a"}, absl::InfiniteDuration(), /*slabs_awaited=*/0).status(),
            absl::OkStatus());
  const absl::Status refused = manager.CheckOwnerLimit("");
  EXPECT_EQ(ReasonOf(refused), kReasonSessionLimit);
  EXPECT_EQ(RetryAfterOf(refused), std::nullopt);
}

TEST_F(SessionManagerTest, AnOwnersLimitIsAskedEachTime) {
  owner_limit = 1;
  EXPECT_EQ(CreateIdle("a"), absl::OkStatus());
  const absl::Status refused = manager.CheckOwnerLimit("");
  EXPECT_EQ(ReasonOf(refused), kReasonSessionLimit);
  EXPECT_THAT(refused.message(), HasSubstr("has 1 session, and may have 1"));
  EXPECT_EQ(RetryAfterOf(refused), absl::Minutes(1)) << "the longest hint";
  EXPECT_EQ(CreateIdle("b"), refused);
  EXPECT_EQ(manager.CheckOwnerLimit("somebody else"), absl::OkStatus());
  owner_limit = 2;
  EXPECT_EQ(CreateIdle("b"), absl::OkStatus());
}

// Each mistake that a request could make about what it holds.
TEST_F(SessionManagerTest, TheBooksShowALeak) {
  ASSERT_EQ(CreateIdle("named"), absl::OkStatus());
  const std::unique_ptr<Session> ephemeral = manager.BeginEphemeral();
  std::vector<int> reserved = manager.Reserve(1);
  manager.Claim({"", "waiting"});
  const int named = manager.Find({"", "named"})->slot;
  const std::vector<int> held = {ephemeral->slot, reserved[0]};
  EXPECT_EQ(manager.CheckIntegrity(held, /*claims=*/1), absl::OkStatus());
  const auto fault = [&](std::vector<int> slots, int claims) {
    return std::string(manager.CheckIntegrity(slots, claims).message());
  };
  EXPECT_THAT(fault({ephemeral->slot}, 1), HasSubstr("is taken and has 0 owners"));
  EXPECT_THAT(fault({ephemeral->slot, reserved[0], named}, 1), HasSubstr("and has 2 owners"));
  EXPECT_THAT(fault(held, 2), HasSubstr("1 sessions are claimed by 2 requests"));
  manager.Find({"", "named"})->busy = true;
  EXPECT_THAT(fault(held, 1), HasSubstr("\"named\" is busy by mistake"));
}

TEST_F(SessionManagerTest, GaugesShowWhoHasWhat) {
  EXPECT_EQ(stats.slabs_total.value(), kManagedSlots);
  ASSERT_EQ(CreateIdle("a"), absl::OkStatus());
  const std::unique_ptr<Session> ephemeral = manager.BeginEphemeral();
  manager.PublishGauges();
  EXPECT_EQ(stats.slabs_used.value(), 2);
  EXPECT_EQ(stats.slabs_ephemeral.value(), 1);
  EXPECT_EQ(stats.sessions.value(), 1);
  EXPECT_EQ(stats.slab_copy_bytes.value(), pool->copied_bytes());
}

}  // namespace
}  // namespace mneme
