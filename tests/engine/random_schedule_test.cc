// Thousands of random schedules: requests, cancellations, deadlines, slow readers, forks,
// deletions, expiry, retries and failing steps, in any order. Every answer is compared with an
// oracle that feeds one conversation after the other, token by token.
//
// A request has its session to itself from submission to end, so the oracle may treat it as one
// event at the time of its submission.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/schedule_judge.h"

namespace mneme {
namespace {

class Schedule {
 public:
  Schedule(uint64_t seed, bool failures)
      : random_(seed), failures_(failures), h_(RandomOptions(random_)) {}

  void Run() {
    for (int turn = 0; turn < 60 && !::testing::Test::HasFatalFailure(); ++turn) {
      const int actions = Pick(0, 3);
      for (int i = 0; i < actions; ++i) Act();
      if (failures_ && Pick(0, 59) == 0) h_.backend.FailNext(absl::InternalError("injected"));
      // What moves between device and host takes its time.
      if (Pick(0, 4) == 0) h_.backend.HoldTransfers();
      if (Pick(0, 4) == 0) h_.backend.FinishTransfers();
      if (Pick(0, 9) == 0) h_.clock.Advance(absl::Milliseconds(Pick(1, 50)));
      for (int quiet = Chance(60) ? 1 : Pick(2, 8); quiet > 0; --quiet) {
        Turn();
        ReadSome();
      }
    }
    Settle();
    judge_.Judge(log_);
  }

  int answers() const { return judge_.answers(); }
  int64_t ahead_steps() const { return h_.stats.ahead_steps.value(); }
  int64_t cached() const { return judge_.cached(); }
  int64_t prefix_waits() const { return h_.stats.prefix.waits.value(); }
  int edits() const { return judge_.edits(); }
  int64_t fetches() const { return h_.stats.fetch_seconds.count(); }
  // The outcomes of requests, and how often there was each.
  std::map<std::string, int> outcomes() const {
    std::map<std::string, int> all = judge_.outcomes();
    all.insert(refused_.begin(), refused_.end());
    return all;
  }

 private:
  static HarnessOptions RandomOptions(std::mt19937_64& random) {
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    HarnessOptions options;
    options.slots = pick(1, 6);
    options.host_states = pick(0, 1) * pick(1, 6);
    options.prefix_states = pick(0, 1) * pick(1, 8);
    options.engine.prefix_cache_least_tokens = pick(1, 3);
    options.engine.prefix_cache_shared = pick(0, 1) == 1;
    options.vocab = pick(3, 20);
    options.first_token_bonus = pick(0, 3);
    if (pick(0, 1) == 0) options.end_tokens = {0};
    options.engine.graphs = pick(0, 1) == 1;
    options.engine.max_rows = pick(1, 4);
    options.engine.max_tokens_per_step = options.engine.max_rows + pick(0, 8);
    options.engine.max_logit_rows_per_step = pick(1, 5);
    options.engine.max_queued_requests = pick(1, 8);
    options.engine.stream_capacity_events = pick(1, 6);
    options.engine.history_tokens = pick(0, 12);
    options.engine.max_idempotency_keys = pick(2, 30);
    options.engine.default_session_ttl = absl::Milliseconds(pick(30, 400));
    options.asynchronous = pick(0, 2) > 0;
    options.engine.async_scheduling = pick(0, 3) > 0;
    return options;
  }

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Pick(1, 100) <= percent; }
  std::string Name() { return absl::StrCat("s", Pick(0, 4)); }

  void Act() {
    const int action = Pick(0, 99);
    if (action < 50) {
      SubmitNew();
    } else if (action < 60) {
      Retry();
    } else if (action < 72) {
      ScheduleEvent* event = AnyLive();
      if (event != nullptr && !IsRepeated(*event)) event->stream->Cancel();
    } else if (action < 80) {
      Fork();
    } else if (action < 86) {
      ScheduleEvent& event = Command(ScheduleEvent::kDelete);
      Post([&] {
        event.status = h_.loop->commands().Delete({"", event.name});
        if (event.status.ok()) known_.erase(event.name);  // it did not vanish
      });
    } else if (action < 92) {
      ScheduleEvent& event = Command(ScheduleEvent::kCreate);
      Post([&] {
        event.status = h_.loop->commands().Create({"", event.name}, absl::ZeroDuration()).status();
      });
    } else {
      h_.clock.Advance(absl::Milliseconds(Pick(1, 100)));
    }
  }

  Request RandomRequest() {
    Request request;
    if (Chance(60)) request.session.name = Name();
    request.create_session = Chance(85);
    const int length = Chance(10) ? 0 : Pick(1, 14);
    // Many begin alike, and part somewhere.
    const int common = Chance(75) ? Pick(0, length) : 0;
    const int text = Pick(0, 1);
    for (int i = 0; i < length; ++i) {
      request.prompt.continued.push_back(i < common ? (i * (2 + text) + 1) % h_.options.vocab
                                                    : Pick(0, h_.options.vocab - 1));
    }
    // Told apart, so that the wrong reading is noticed.
    request.prompt.at_start = request.prompt.continued;
    if (!request.prompt.at_start.empty())
      request.prompt.at_start.insert(request.prompt.at_start.begin(), 1);
    request.stop.max_tokens = Chance(10) ? 0 : Pick(1, 12);
    request.stop.min_tokens = Chance(30) ? Pick(0, request.stop.max_tokens) : 0;
    request.stop.ignore_eos = Chance(20);
    if (Chance(20)) request.stop.stop_token_ids = {Pick(0, h_.options.vocab - 1)};
    if (Chance(15)) request.n = Pick(2, 4);
    SamplingParams& sampling = request.sampling;
    sampling.temperature = Chance(50) ? 0.0f : 0.5f * static_cast<float>(Pick(1, 4));
    if (Chance(20)) sampling.top_k = Pick(1, 5);
    if (Chance(20)) sampling.repetition_penalty = 1.5f;
    if (Chance(20)) sampling.presence_penalty = 0.5f;
    if (Chance(20)) sampling.frequency_penalty = 0.25f;
    if (Chance(20)) sampling.logit_bias = {{1, Chance(50) ? -100.0f : 1.5f}};
    if (Chance(30)) sampling.seed = Pick(0, 1000);
    if (Chance(20)) request.logprobs = Pick(0, 3);
    if (Chance(20)) request.prompt_logprobs = Pick(0, 3);
    request.echo = Chance(15);
    if (Chance(15)) request.deadline = h_.clock.Monotonic() + absl::Milliseconds(Pick(0, 20));
    request.priority = Chance(20) ? Pick(-2, 2) : 0;
    if (Chance(30)) request.idempotency_key = absl::StrCat("key", next_key_++);
    if (Chance(15)) request.expected_position = Pick(0, 20);
    request.detached = Chance(20);
    request.prefix_cache.bypass = Chance(10);
    if (Chance(10)) request.prefix_cache.salt = "salt";
    if (Chance(20) && length > 0) request.prefix_cache.marks = {Pick(1, length)};
    if (Chance(30) && length > 0) request.prompt.message_ends = {Pick(1, length)};
    if (Chance(30) && length > 0) MakeWhole(request);
    return request;
  }

  // All of a conversation, which may be what its session was fed, or go back on that.
  void MakeWhole(Request& request) {
    request.whole_history = request.prompt.same_everywhere = true;
    request.on_mismatch = Chance(70) ? OnMismatch::kReplace : OnMismatch::kRefuse;
    std::vector<int32_t>& told = request.prompt.at_start;
    std::vector<const ScheduleEvent*> earlier;
    for (const auto& event : log_) {
      if (event->kind == ScheduleEvent::kRequest && event->answer.status().ok() &&
          event->request.whole_history && event->request.session == request.session &&
          !event->answer.tokens.empty()) {
        earlier.push_back(event.get());
      }
    }
    if (!earlier.empty() && Chance(70)) {
      const ScheduleEvent& before = *earlier.back();
      std::vector<int32_t> whole = before.request.prompt.at_start;
      const std::vector<int32_t>& said = before.answer.tokens[0];
      whole.insert(whole.end(), said.begin(), said.end());
      if (Chance(50)) whole.resize(static_cast<size_t>(Pick(1, static_cast<int>(whole.size()))));
      told.insert(told.begin(), whole.begin(), whole.end());
    }
    request.prompt.continued.clear();
  }

  void SubmitNew() { SubmitOne(RandomRequest()); }

  void SubmitOne(Request request) {
    auto stream = h_.Submit(request);
    if (!stream.ok()) {
      const absl::StatusCode code = stream.status().code();
      ++refused_[absl::StrCat("refused ", absl::StatusCodeToString(code))];
      EXPECT_TRUE(code == absl::StatusCode::kResourceExhausted ||
                  code == absl::StatusCode::kInvalidArgument ||
                  (failures_ && code == absl::StatusCode::kUnavailable))
          << stream.status();
      return;
    }
    auto event = std::make_unique<ScheduleEvent>();
    event->kind = ScheduleEvent::kRequest;
    event->request = std::move(request);
    event->stream = *std::move(stream);
    log_.push_back(std::move(event));
  }

  void Retry() {
    std::vector<ScheduleEvent*> keyed;
    for (const auto& event : log_) {
      if (event->kind == ScheduleEvent::kRequest && !event->request.idempotency_key.empty()) {
        keyed.push_back(event.get());
      }
    }
    // One that is about to be cancelled would go on for it (IsRepeated).
    std::erase_if(keyed, [&](const ScheduleEvent* event) {
      return std::any_of(log_.begin(), log_.end(), [&](const auto& other) {
        return other->kind == ScheduleEvent::kRequest && !other->answer.ended &&
               other->request.idempotency_key == event->request.idempotency_key &&
               other->stream->cancelled();
      });
    });
    if (!keyed.empty()) SubmitOne(keyed[Pick(0, static_cast<int>(keyed.size()) - 1)]->request);
  }

  void Fork() {
    ScheduleEvent& event = Command(ScheduleEvent::kFork);
    event.source = Name();
    Post([&] {
      const auto info =
          h_.loop->commands().Fork({"", event.source}, {"", event.name}, absl::ZeroDuration());
      event.status = info.status();
      if (info.ok()) event.position = info->position;
    });
  }

  // Commands take the same way as requests, so that they keep their order.
  ScheduleEvent& Command(ScheduleEvent::Kind kind) {
    log_.push_back(std::make_unique<ScheduleEvent>());
    log_.back()->kind = kind;
    log_.back()->name = Name();
    log_.back()->status = absl::UnknownError("not run yet");
    return *log_.back();
  }
  void Post(std::function<void()> work) { ASSERT_TRUE(h_.loop->Post(std::move(work))); }

  // Whether it may go on for another one that comes with its key, and says nothing of where it
  // ends.
  bool IsRepeated(const ScheduleEvent& event) const {
    const std::string& key = event.request.idempotency_key;
    return !key.empty() && std::count_if(log_.begin(), log_.end(), [&](const auto& other) {
                             return other->kind == ScheduleEvent::kRequest &&
                                    other->request.idempotency_key == key;
                           }) > 1;
  }

  ScheduleEvent* AnyLive() {
    std::vector<ScheduleEvent*> live;
    for (const auto& event : log_) {
      if (event->kind == ScheduleEvent::kRequest && !event->answer.ended)
        live.push_back(event.get());
    }
    return live.empty() ? nullptr : live[Pick(0, static_cast<int>(live.size()) - 1)];
  }

  void Turn() {
    h_.Turn();
    NoteVanished();
    ASSERT_EQ(h_.loop->CheckIntegrity(), absl::OkStatus());
  }

  void NoteVanished() {
    std::set<std::string> now;
    for (const SessionInfo& info : ListSessions(*h_.loop, "", "")) now.insert(info.key.name);
    for (const std::string& name : known_) {
      if (now.contains(name)) continue;
      auto event = std::make_unique<ScheduleEvent>();
      event->kind = ScheduleEvent::kVanish;
      event->name = name;
      log_.push_back(std::move(event));
    }
    known_ = std::move(now);
  }

  void ReadSome() {
    for (const auto& event : log_) {
      if (event->kind != ScheduleEvent::kRequest || event->answer.ended || Chance(50)) continue;
      for (int i = Pick(1, 4); i > 0; --i) {
        std::optional<TokenEvent> next = event->stream->TryNext();
        if (!next.has_value()) break;
        event->answer.Add(*std::move(next));
      }
    }
  }

  void Settle() {
    h_.backend.FinishTransfers();
    bool all_ended = false;
    for (int turn = 0; turn < 3000 && !all_ended; ++turn) {
      all_ended = true;
      for (const auto& event : log_) {
        if (event->kind != ScheduleEvent::kRequest || event->answer.ended) continue;
        LoopHarness::Read(*event->stream, event->answer);
        all_ended = all_ended && event->answer.ended;
      }
      Turn();
    }
    ASSERT_TRUE(all_ended) << "a request hangs";
    EXPECT_EQ(h_.stats.requests_running.value(), 0);
    EXPECT_EQ(h_.stats.requests_waiting.value(), 0);
    // Whatever is left is asked once more, so that its memory is seen.
    for (const SessionInfo& info : ListSessions(*h_.loop, "", "")) {
      Request request = Greedy({1}, 3, info.key.name);
      request.expected_position = info.position;
      const size_t before = log_.size();
      SubmitOne(std::move(request));
      if (log_.size() == before) continue;
      ScheduleEvent& event = *log_.back();
      for (int turn = 0; turn < 1000 && !event.answer.ended; ++turn) {
        Turn();
        LoopHarness::Read(*event.stream, event.answer);
      }
    }
    for (const SessionInfo& info : ListSessions(*h_.loop, "", "")) {
      EXPECT_EQ(h_.loop->commands().Delete(info.key), absl::OkStatus());
    }
    EXPECT_EQ(h_.pool->used_slots(), 0) << "a slab leaked";
  }

  std::mt19937_64 random_;
  const bool failures_;
  LoopHarness h_;
  std::vector<std::unique_ptr<ScheduleEvent>> log_;
  std::set<std::string> known_;  // names of the sessions after the last turn
  int next_key_ = 0;
  std::map<std::string, int> refused_;  // by Submit
  ScheduleJudge judge_{h_.options};
};

void RunSchedules(uint64_t first_seed, int count, bool failures) {
  int answers = 0;
  int64_t ahead_steps = 0, fetches = 0, cached = 0, waits = 0, edits = 0;
  std::map<std::string, int> outcomes;
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + i));
    Schedule schedule(first_seed + i, failures);
    schedule.Run();
    if (::testing::Test::HasFailure()) return;
    answers += schedule.answers();
    ahead_steps += schedule.ahead_steps();
    fetches += schedule.fetches();
    cached += schedule.cached();
    waits += schedule.prefix_waits();
    edits += schedule.edits();
    for (const auto& [outcome, n] : schedule.outcomes()) outcomes[outcome] += n;
  }
  EXPECT_GT(answers, count);
  EXPECT_GT(ahead_steps, count);
  EXPECT_GT(fetches, count / 10);
  EXPECT_GT(cached, count);
  EXPECT_GT(waits, count / 20);
  EXPECT_GT(edits, count / 2);
  std::string summary =
      absl::StrCat(count, " schedules, ", answers, " answers, ", ahead_steps, " steps ahead, ",
                   fetches, " sessions fetched, ", cached, " tokens cached, ", waits,
                   " waits for a prefix, ", edits, " edits\n");
  for (const auto& [outcome, n] : outcomes) absl::StrAppend(&summary, "  ", outcome, ": ", n, "\n");
  printf("%s", summary.c_str());
}

TEST(RandomScheduleTest, EveryTokenOfEveryScheduleIsTheOracles) {
  RunSchedules(/*first_seed=*/1, /*count=*/3000, /*failures=*/false);
}

TEST(RandomScheduleTest, AFailingStepSpoilsOnlyTheSessionsInIt) {
  RunSchedules(/*first_seed=*/100'001, /*count=*/500, /*failures=*/true);
}

}  // namespace
}  // namespace mneme
