// Sessions on a device, with the host and in the store: who is where, and what dates have to do
// with it.
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/sessions/parking.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/store/failing_fs.h"
#include "tests/store/power_loss_fs.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

class TiersTest : public testing::Test {
 protected:
  void Start(HarnessOptions options) {
    options.disk = &files_;
    h_ = nullptr;
    h_ = std::make_unique<LoopHarness>(std::move(options));
  }
  void Tell(int session, int32_t token = 1) {
    const Answer answer = h_->Generate(Greedy({token}, 2, absl::StrCat("s", session)));
    ASSERT_EQ(answer.status(), absl::OkStatus()) << "session " << session;
    h_->TurnUntilStored();
    h_->TurnUntilStored();  // what was written makes room
  }
  std::string Where() {
    std::string where;
    for (const SessionInfo& info : ListSessions(*h_->loop, "", "")) {
      where += info.residence == Residence::kResident ? 'd'
               : info.residence == Residence::kParked ? 'h'
               : info.residence == Residence::kStored ? 's'
                                                      : '?';
    }
    return where;
  }

  PowerLossFileSystem disk_;
  FailingFileSystem files_{disk_};
  std::unique_ptr<LoopHarness> h_;
};

TEST_F(TiersTest, TheLeastRecentlyUsedGoToTheHostAndFromThereToTheStore) {
  HarnessOptions options;
  options.slots = 1;
  options.host_states = 3;  // one of which is kept free for the next
  Start(options);
  for (int i = 0; i < 6; ++i) Tell(i);
  EXPECT_EQ(Where(), "ssshhd");
  Tell(1);
  EXPECT_EQ(Where(), "sdsshh");
  Tell(4);
  EXPECT_EQ(Where(), "shssdh");
  for (const int i : {0, 2, 0, 2}) Tell(i);
  EXPECT_EQ(Where(), "hsdsh" + std::string("s"));
  EXPECT_EQ(h_->loop->CheckIntegrity(), absl::OkStatus());
}

TEST_F(TiersTest, SnapshotsOfOneSessionAreToldApart) {
  std::optional<std::thread::id> store;  // the first one to write
  std::atomic<int> may_be_written = 0;
  disk_.before_change = [&] {
    if (h_ == nullptr) return;
    if (!store.has_value()) store = std::this_thread::get_id();
    if (*store == std::this_thread::get_id()) return;
    while (h_->stats.snapshots.value() >= may_be_written) std::this_thread::yield();
  };
  HarnessOptions options;
  options.slots = 1;
  options.host_states = 3;
  options.engine.snapshot_tokens = 4;
  Start(options);
  const auto turn = [&](int turns) {
    while (turns-- > 0) h_->Turn();
  };
  // It is written where it stands, goes on, and is to be written from the host.
  ASSERT_EQ(h_->Generate(Greedy({1, 2, 3}, 3, "s0")).status(), absl::OkStatus());
  for (const auto* name : {"s0", "s1", "s2", "s3"}) {
    turn(20);
    ASSERT_EQ(h_->Generate(Greedy({4}, 1, name)).status(), absl::OkStatus());
  }
  turn(20);
  EXPECT_EQ(Where(), "hhhd");
  may_be_written = 1;
  while (h_->stats.snapshots.value() < 1) turn(1);
  turn(20);
  EXPECT_EQ(Where(), "hhhd") << "the second one is not written";
  may_be_written = 100;
  h_->TurnUntilStored();
  EXPECT_EQ(Where(), "shhd");
}

TEST_F(TiersTest, APlaceIsKeptFreeWhileSessionsComeAndGo) {
  HarnessOptions options;
  options.slots = Parking::kPlacesPerFree;
  options.host_states = 8;
  Start(options);
  for (int i = 0; i < options.slots; ++i) Tell(i);
  EXPECT_EQ(h_->pool->free_slots(), 0) << "nobody has needed one";
  Tell(options.slots);
  EXPECT_EQ(h_->pool->free_slots(), 1);
  Tell(0);  // comes into that one
  EXPECT_EQ(h_->pool->free_slots(), 1);
  EXPECT_EQ(h_->loop->commands().Get({"", "s1"})->residence, Residence::kParked);
  EXPECT_EQ(h_->loop->commands().Get({"", "s2"})->residence, Residence::kParked);
  h_->clock.Advance(absl::Minutes(1));
  Tell(options.slots + 1);
  EXPECT_EQ(h_->pool->free_slots(), 0) << "that was enough for it";
  EXPECT_EQ(h_->loop->CheckIntegrity(), absl::OkStatus());
}

TEST_F(TiersTest, ManyGoOnAsIfEachHadAPlaceWhateverTheirOrder) {
  HarnessOptions options;
  options.slots = 2;
  options.host_states = 3;
  options.asynchronous = true;
  Start(options);
  std::map<int, std::vector<std::vector<int32_t>>> prompts;
  uint32_t random = 1;
  for (int turn = 0; turn < 150; ++turn) {
    random = random * 1664525 + 1013904223;
    const int session = static_cast<int>((random >> 16) % 12);
    const int32_t token = static_cast<int32_t>(random >> 8) % 31 + (turn % 2 == 0 ? 0 : 1);
    const int32_t fed = token < 0 ? -token : token;
    prompts[session].push_back({fed});
    const Answer answer = h_->Generate(Greedy({fed}, 2, absl::StrCat("s", session)));
    ASSERT_EQ(answer.status(), absl::OkStatus());
    LoopHarness alone;
    Answer expected;
    for (const auto& prompt : prompts[session]) expected = alone.Generate(Greedy(prompt, 2, "s"));
    ASSERT_EQ(answer.tokens, expected.tokens) << "session " << session << " in turn " << turn;
    ASSERT_EQ(h_->loop->CheckIntegrity(), absl::OkStatus());
    if (turn % 17 == 0) {
      const std::string gone = absl::StrCat("s", (session + 1) % 12);
      if (h_->loop->commands().Delete({"", gone}).ok()) prompts.erase((session + 1) % 12);
      h_->TurnUntilStored();
    }
  }
}

TEST_F(TiersTest, AHostThatIsFullStaysSoWhileTheDiskIs) {
  HarnessOptions options;
  options.slots = 1;
  options.host_states = 3;
  Start(options);
  for (int i = 0; i < 3; ++i) Tell(i);
  EXPECT_EQ(Where(), "hhd");
  Tell(0);
  // Nothing can be written: whoever is with the host stays there, and is not lost.
  files_.Fail(FailingFileSystem::Kind::kRename, 0, absl::ResourceExhaustedError("full"), 1000);
  const Answer more = h_->Generate(Greedy({1}, 2, "s9"));
  for (int turn = 0; turn < 50; ++turn) h_->Turn();
  files_.Fail(FailingFileSystem::Kind::kRename, -2, absl::OkStatus());
  h_->clock.Advance(absl::Seconds(2));
  for (const int i : {0, 1, 2}) Tell(i, 3);
  LoopHarness alone;
  alone.Generate(Greedy({1}, 2, "s"));
  const Answer expected = alone.Generate(Greedy({3}, 2, "s"));
  EXPECT_EQ(h_->loop->commands().Get({"", "s2"})->position,
            alone.loop->commands().Get({"", "s"})->position);
}

TEST_F(TiersTest, PagesListThoseThatAreHereAndThoseInTheStoreOnceEach) {
  HarnessOptions options;
  options.slots = 2;
  options.host_states = 2;
  Start(options);
  std::vector<std::string> names;
  for (int i = 10; i < 32; ++i) {
    Tell(i);
    names.push_back(absl::StrCat("s", i));
  }
  Tell(15);
  Tell(20);
  ASSERT_NE(Where().find('d'), std::string::npos);
  ASSERT_NE(Where().find('s'), std::string::npos);
  const auto pages = [&](SessionQuery query) {
    std::vector<std::string> listed;
    for (bool more = true; more;) {
      const SessionPage page =
          h_->loop->commands().PageOf(h_->loop->commands().ListHere(query), query);
      EXPECT_LE(page.sessions.size(), query.limit);
      for (const SessionInfo& info : page.sessions) listed.push_back(info.key.name);
      more = page.has_more;
      if (page.sessions.empty()) break;
      query.after = page.sessions.back().key;
    }
    return listed;
  };
  for (const size_t limit : {1, 3, 11, 22, 100}) {
    EXPECT_EQ(pages({.owner = "", .limit = limit}), names) << limit;
    EXPECT_EQ(pages({.limit = limit}), names) << limit;
    const std::vector<std::string> twenties(names.begin() + 10, names.begin() + 20);
    EXPECT_EQ(pages({.owner = "", .name_prefix = "s2", .limit = limit}), twenties) << limit;
    EXPECT_EQ(pages({.name_prefix = "s2", .limit = limit}), twenties) << limit;
  }
  EXPECT_TRUE(pages({.owner = "other", .limit = 3}).empty());
  const auto total = [&](const SessionQuery& query) {
    return h_->loop->commands().PageOf(h_->loop->commands().ListHere(query), query).total;
  };
  EXPECT_EQ(total({.limit = 3}), 22u);
  EXPECT_EQ(total({.owner = "", .name_prefix = "s1", .limit = 3}), 10u);
  EXPECT_EQ(total({.name_prefix = "s1", .limit = 3}), 10u);
  // One that is just being deleted is not there any more.
  ASSERT_EQ(h_->loop->commands().Delete({"", "s12"}), absl::OkStatus());
  EXPECT_EQ(total({.owner = "", .limit = 3}), 21u);
  EXPECT_EQ(pages({.owner = "", .limit = 4}).size(), 21u);
}

TEST_F(TiersTest, ADateThatIsSetDeletesNobodyAtOnce) {
  HarnessOptions options;
  options.engine.default_session_ttl = absl::Hours(100);
  options.engine.session_retention = absl::Hours(24);
  Start(options);
  Tell(0);
  for (const absl::Duration jump : {absl::Hours(24 * 365), -absl::Hours(24 * 365 * 3)}) {
    h_->clock.SetDateForward(jump);
    h_->TurnUntilStored();
    h_->clock.Advance(absl::Minutes(30));
    h_->TurnUntilStored();
    EXPECT_EQ(h_->loop->commands().Get({"", "s0"}).status(), absl::OkStatus()) << jump;
    EXPECT_EQ(Where(), "d") << "its time to live has not passed";
  }
  // In use by the date as it is now, it is that old only when it is.
  Tell(0);
  h_->clock.Advance(absl::Hours(25));
  h_->TurnUntilStored();
  h_->TurnUntilStored();
  EXPECT_TRUE(absl::IsNotFound(h_->loop->commands().Get({"", "s0"}).status()));
}

TEST_F(TiersTest, ADateThatStaysSetIsBelievedAfterAnHour) {
  HarnessOptions options;
  options.engine.session_retention = absl::Hours(24);
  Start(options);
  Tell(0);
  h_->clock.SetDateForward(absl::Hours(24 * 365));
  h_->TurnUntilStored();
  h_->clock.Advance(absl::Minutes(61));
  h_->TurnUntilStored();
  h_->TurnUntilStored();
  EXPECT_TRUE(absl::IsNotFound(h_->loop->commands().Get({"", "s0"}).status()));
}

TEST_F(TiersTest, SessionsOfAnotherModelAreShownAndLeftAlone) {
  HarnessOptions options;
  options.engine.session_retention = absl::Hours(1);
  Start(options);
  for (int i = 0; i < 3; ++i) Tell(i);
  Request request = Greedy({1}, 2, "s3");
  request.durability = Durability::kNone;
  ASSERT_EQ(h_->Generate(request).status(), absl::OkStatus());
  h_->TurnUntilStored();
  Start(options);
  EXPECT_EQ(h_->stats.sessions_stored.value(), 3) << "before anything happens";
  EXPECT_EQ(h_->stats.sessions_lost.value(), 1);
  EXPECT_EQ(h_->stats.sessions_of_other_models.value(), 0);

  HarnessOptions other = options;
  other.model_id = 12345;
  Start(other);
  EXPECT_EQ(h_->stats.sessions_stored.value(), 0);
  EXPECT_EQ(h_->stats.sessions_lost.value(), 1);
  EXPECT_EQ(h_->stats.sessions_of_other_models.value(), 3);
  for (const SessionInfo& info : ListSessions(*h_->loop, "", "")) {
    EXPECT_EQ(info.residence, info.key.name == "s3" ? Residence::kLost : Residence::kOtherModel);
    EXPECT_EQ(info.state_bytes, 0);
  }
  const absl::Status refused = h_->Generate(Greedy({1}, 2, "s0")).status();
  EXPECT_EQ(ReasonOf(refused), kReasonOtherModel);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of model \"fake\", of identity"));
  h_->clock.Advance(absl::Hours(3));
  for (int i = 0; i < 4; ++i) h_->TurnUntilStored();
  EXPECT_EQ(Where().size(), 4u) << "not one is too old";
  // Their owner may delete one all the same.
  std::optional<absl::Status> deleted;
  ASSERT_EQ(h_->loop->commands().Delete(Key("s0"), [&](const absl::Status& s) { deleted = s; }),
            absl::OkStatus());
  while (!deleted.has_value()) h_->Turn();
  EXPECT_EQ(*deleted, absl::OkStatus());

  Start(options);
  EXPECT_EQ(h_->Generate(Greedy({5}, 2, "s1")).last.session_position, 6);
  EXPECT_TRUE(absl::IsNotFound(h_->loop->commands().Get(Key("s0")).status()));
}

}  // namespace
}  // namespace mneme
