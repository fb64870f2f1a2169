#include "engine/admission_queue.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kSlots = 4;
constexpr absl::Duration kTtl = absl::Minutes(10);

// Requests are known by their ids.
Request New(std::string id, std::string session = "") {
  Request request;
  request.id = std::move(id);
  request.session.name = std::move(session);
  request.prompt = {.at_start = {1, 2}, .continued = {2}};
  request.stop.max_tokens = 4;
  return request;
}

class AdmissionQueueTest : public ::testing::Test {
 protected:
  AdmissionQueueTest() { Make({.max_rows = 2, .max_queued = 2}); }
  ~AdmissionQueueTest() override {
    for (const auto& g : running) Release(*g);
  }
  void Make(const AdmissionQueue::Options& options) {
    queue = std::make_unique<AdmissionQueue>(sessions, /*tokenizer=*/nullptr, stats, options);
  }
  // Takes all other slabs away.
  void LeaveFree(int slabs) {
    while (pool->free_slots() > slabs) pool->Acquire();
  }

  // The request as it waits, its session claimed.
  Generation& Submit(Request request) {
    auto stream = std::make_shared<TokenStream>(/*capacity_events=*/1);
    Generation& g = queue->Add(
        std::make_unique<Generation>(std::move(request), std::move(stream), clock.Monotonic()));
    EXPECT_EQ(queue->Claim(g), absl::OkStatus());
    return g;
  }
  // The error of a request that is refused at once.
  absl::Status ClaimError(Request request) {
    Generation& g =
        queue->Add(std::make_unique<Generation>(std::move(request), nullptr, clock.Monotonic()));
    const absl::Status error = queue->Claim(g);
    EXPECT_FALSE(g.claims_session);
    g.ended = true;
    queue->Leave(g);
    queue->DropEnded();
    return error;
  }

  // One round. Returns the ids of those let in.
  std::vector<std::string> Admit() {
    std::vector<std::string> admitted;
    queue->AdmitInto(
        running,
        [&](Generation& g) {
          Begin(g);
          admitted.push_back(g.request.id);
        },
        [&](Generation& g, const absl::Status& why) {
          refused.emplace_back(g.request.id, ReasonOf(why).value_or(""));
          End(g);
        });
    queue->DropEnded();
    return admitted;
  }
  void Begin(Generation& g) {
    for (int i = 0; i < g.request.n; ++i) g.choices.emplace_back(g.rules).index = i;
    g.unfinished = g.request.n;
    if (!g.named()) {
      g.choices[0].ephemeral = sessions.BeginEphemeral();
    } else if (sessions.Find(g.request.session) == nullptr) {
      sessions.CreateClaimed(g.request.session, kTtl);
    }
    if (g.forks()) g.reserved_slots = sessions.Reserve(g.request.n - 1);
  }
  void Release(Generation& g) {
    sessions.Unreserve(g.reserved_slots);
    if (g.is_admitted() && g.choices[0].ephemeral != nullptr) {
      sessions.EndEphemeral(*g.choices[0].ephemeral);
    }
    if (std::exchange(g.claims_session, false)) sessions.Unclaim(g.request.session, true);
  }
  void End(Generation& g) {
    g.ended = true;
    Release(g);
    queue->Leave(g);
  }
  // Ends the running request `id`.
  void Finish(const std::string& id) {
    for (const auto& g : running) {
      if (g->request.id == id) End(*g);
    }
    std::erase_if(running, [](const auto& g) { return g->ended; });
  }

  FakeClock clock;
  FaultyBackend backend;
  FakeModel model;
  std::unique_ptr<StatePool> pool = StatePool::Create(backend, model, kSlots).value();
  EngineStats stats;
  int owner_limit = 0;
  SessionManager sessions{
      *pool, clock, stats, {.default_ttl = kTtl, .owner_limit = [this](const std::string&) {
                              return owner_limit;
                            }}};
  std::unique_ptr<AdmissionQueue> queue;
  std::vector<std::unique_ptr<Generation>> running;
  std::vector<std::pair<std::string, std::string>> refused;  // id, reason
};

TEST_F(AdmissionQueueTest, TheOrderIsThatOfArrivalLessPriority) {
  Make({.max_rows = 1, .max_queued = 10});
  Request urgent = New("urgent");
  urgent.priority = 2;
  Submit(New("first"));
  clock.Advance(kPriorityStep);
  Submit(New("second"));
  Submit(New("third"));
  Submit(std::move(urgent));
  std::vector<std::string> order;
  for (int i = 0; i < 4; ++i) {
    for (const std::string& id : Admit()) {
      order.push_back(id);
      Finish(id);
    }
  }
  EXPECT_THAT(order, ElementsAre("urgent", "first", "second", "third"));
  EXPECT_EQ(queue->queued(), 0);
}

TEST_F(AdmissionQueueTest, NobodyOvertakesWhoWaitsForARow) {
  Submit(New("one"));
  ASSERT_THAT(Admit(), ElementsAre("one"));
  Request pair = New("pair");
  pair.n = 2;
  Submit(std::move(pair));
  Submit(New("small"));  // for which there would be a row
  EXPECT_THAT(Admit(), IsEmpty());
  EXPECT_EQ(queue->queued(), 2);
  EXPECT_EQ(queue->slabs_awaited(), 3);
  Finish("one");
  EXPECT_THAT(Admit(), ElementsAre("pair"));
  EXPECT_EQ(queue->queued(), 1);
}

TEST_F(AdmissionQueueTest, WhereOnlyAnExpiryCouldHelpTheAnswerIsNo) {
  LeaveFree(1);
  Submit(New("make", "named"));
  ASSERT_THAT(Admit(), ElementsAre("make"));
  Submit(New("hopeless"));
  EXPECT_THAT(Admit(), IsEmpty());
  EXPECT_THAT(refused, ElementsAre(std::pair("hopeless", kReasonNoFreeSlab)));
}

TEST_F(AdmissionQueueTest, WhoNeedsNoSlabPassesByWhoWaitsForOne) {
  LeaveFree(2);
  Submit(New("make", "named"));
  Submit(New("short"));
  ASSERT_THAT(Admit(), ElementsAre("make", "short"));
  Finish("make");
  Submit(New("waits"));
  Submit(New("goes on", "named"));
  EXPECT_THAT(Admit(), ElementsAre("goes on"));
  EXPECT_EQ(queue->slabs_awaited(), 1);
  EXPECT_EQ(queue->queued(), 1);
  Finish("short");
  Submit(New("later"));
  EXPECT_THAT(Admit(), ElementsAre("waits")) << "the slab was kept from the later one";
  EXPECT_EQ(queue->slabs_awaited(), 1);
  EXPECT_THAT(refused, IsEmpty());
}

TEST_F(AdmissionQueueTest, ASlowReaderLendsItsRows) {
  Make({.max_rows = 1, .max_queued = 2});
  Generation& slow = Submit(New("slow"));
  ASSERT_THAT(Admit(), ElementsAre("slow"));
  Submit(New("other"));
  EXPECT_THAT(Admit(), IsEmpty());
  (void)slow.stream->Push(TokenEvent());
  ASSERT_TRUE(slow.stream->full());
  EXPECT_THAT(Admit(), ElementsAre("other"));
}

TEST_F(AdmissionQueueTest, OneMoreThanMayWaitIsRefused) {
  Make({.max_rows = 1, .max_queued = 1});
  Submit(New("runs"));
  ASSERT_THAT(Admit(), ElementsAre("runs"));
  Submit(New("waits"));
  Submit(New("too many"));
  EXPECT_THAT(Admit(), IsEmpty());
  EXPECT_THAT(refused, ElementsAre(std::pair("too many", kReasonQueueFull)));
  EXPECT_EQ(queue->queued(), 1);
  End(*queue->waiting().front());
  queue->DropEnded();
  EXPECT_EQ(queue->queued(), 0) << "whoever is cancelled waits no more";
  Submit(New("now"));
  EXPECT_THAT(Admit(), IsEmpty());
  EXPECT_EQ(queue->queued(), 1);
}

TEST_F(AdmissionQueueTest, AnOwnersLimitCountsAgainWhenARowIsFree) {
  Make({.max_rows = 1, .max_queued = 2});
  owner_limit = 1;
  Submit(New("first", "a"));
  Submit(New("second", "b"));  // there is no session yet
  EXPECT_THAT(Admit(), ElementsAre("first"));
  EXPECT_THAT(refused, ElementsAre(std::pair("second", kReasonSessionLimit)));
  EXPECT_FALSE(sessions.IsClaimed({"", "b"}));
}

TEST_F(AdmissionQueueTest, ARequestThatCannotGoOnClaimsNothing) {
  Submit(New("make", "s"));
  ASSERT_THAT(Admit(), ElementsAre("make"));
  Session& session = *sessions.Find({"", "s"});
  session.fed_tokens = 5;
  const absl::Status busy = ClaimError(New("busy", "s"));
  EXPECT_EQ(ReasonOf(busy), kReasonSessionBusy);
  EXPECT_EQ(PositionOf(busy), 5);
  EXPECT_EQ(busy.message(), "session \"s\" is busy: another request for it waits or runs");
  Finish("make");

  Request missing = New("missing", "t");
  missing.create_session = false;
  EXPECT_EQ(ReasonOf(ClaimError(std::move(missing))), kReasonNoSession);
  Request elsewhere = New("elsewhere", "s");
  elsewhere.expected_position = 4;
  const absl::Status position = ClaimError(std::move(elsewhere));
  EXPECT_EQ(position.message(), "the session stands at position 5, expected 4");
  EXPECT_EQ(PositionOf(position), 5);
  Request empty = New("empty", "s");
  empty.prompt.continued.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(ClaimError(std::move(empty))));
  EXPECT_FALSE(sessions.IsClaimed({"", "s"}));
  EXPECT_EQ(stats.resumes[static_cast<size_t>(ResumeOutcome::kRefused)].value(), 4);
}

TEST_F(AdmissionQueueTest, OfTwoReadingsThatOfTheSessionsPositionStays) {
  Generation& fresh = Submit(New("fresh", "s"));
  EXPECT_THAT(fresh.request.prompt.at_start, ElementsAre(1, 2));
  EXPECT_THAT(fresh.request.prompt.continued, IsEmpty());
  ASSERT_THAT(Admit(), ElementsAre("fresh"));
  sessions.Find({"", "s"})->fed_tokens = 2;
  Finish("fresh");
  Generation& continued = Submit(New("continued", "s"));
  EXPECT_THAT(continued.request.prompt.at_start, IsEmpty());
  EXPECT_THAT(continued.request.prompt.continued, ElementsAre(2));
}

TEST_F(AdmissionQueueTest, AHistoryLeavesWhatTheSessionDoesNotKnow) {
  Submit(New("make", "s"));
  ASSERT_THAT(Admit(), ElementsAre("make"));
  Session& session = *sessions.Find({"", "s"});
  for (const int32_t token : {1, 2}) session.fed.Add(nullptr, token);
  session.fed_tokens = 2;
  Finish("make");
  Request whole = New("whole", "s");
  whole.whole_history = true;
  whole.prompt.at_start = {1, 2, 3, 4};
  EXPECT_THAT(Submit(whole).request.prompt.At(2), ElementsAre(3, 4));
  ASSERT_THAT(Admit(), ElementsAre("whole"));
  Finish("whole");
  whole.prompt.at_start = {1, 2};
  EXPECT_EQ(ReasonOf(ClaimError(whole)), kReasonHistory) << "nothing new";
  whole.prompt.at_start = {7, 2, 3};
  EXPECT_EQ(ReasonOf(ClaimError(whole)), kReasonHistory) << "another conversation";
}

}  // namespace
}  // namespace mneme
