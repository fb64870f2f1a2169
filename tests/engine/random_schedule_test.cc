// Thousands of random schedules: requests, cancellations, deadlines, slow readers, forks,
// deletions, expiry, retries and failing steps, in any order. Every answer is compared with an
// oracle that feeds one conversation after the other, token by token.
//
// A request has its session to itself from submission to end, so the oracle may treat it as one
// event at the time of its submission.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

// Something that happened, in order.
struct Event {
  enum Kind { kRequest, kCreate, kFork, kDelete, kVanish } kind;
  Request request;  // kRequest
  std::shared_ptr<TokenStream> stream;
  Answer answer;
  std::string name, source;  // all others
  absl::Status status;       // of the command
  int64_t position = 0;      // kFork: what the engine said
};

class Schedule {
 public:
  Schedule(uint64_t seed, bool failures)
      : random_(seed), failures_(failures), h_(RandomOptions(random_)) {}

  void Run() {
    for (int turn = 0; turn < 60 && !::testing::Test::HasFatalFailure(); ++turn) {
      const int actions = Pick(0, 3);
      for (int i = 0; i < actions; ++i) Act();
      if (failures_ && Pick(0, 59) == 0) h_.backend.FailNext(absl::InternalError("injected"));
      if (Pick(0, 9) == 0) h_.clock.Advance(absl::Milliseconds(Pick(1, 50)));
      Turn();
      ReadSome();
    }
    Settle();
    Judge();
  }

  int answers() const { return answers_; }
  const std::map<std::string, int>& outcomes() const { return outcomes_; }

 private:
  static HarnessOptions RandomOptions(std::mt19937_64& random) {
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    HarnessOptions options;
    options.slots = pick(1, 6);
    options.vocab = pick(3, 20);
    options.first_token_bonus = pick(0, 3);
    if (pick(0, 1) == 0) options.end_tokens = {0};
    options.engine.max_rows = pick(1, 4);
    options.engine.max_tokens_per_step = options.engine.max_rows + pick(0, 8);
    options.engine.max_logit_rows_per_step = pick(1, 5);
    options.engine.max_queued_requests = pick(1, 8);
    options.engine.stream_capacity_events = pick(1, 6);
    options.engine.history_tokens = pick(0, 12);
    options.engine.max_idempotency_keys = pick(2, 30);
    options.engine.default_session_ttl = absl::Milliseconds(pick(30, 400));
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
      if (Event* event = AnyLive()) event->stream->Cancel();
    } else if (action < 80) {
      Fork();
    } else if (action < 86) {
      Event& event = Command(Event::kDelete);
      Post([&] {
        event.status = h_.loop->DeleteSession({"", event.name});
        if (event.status.ok()) known_.erase(event.name);  // it did not vanish
      });
    } else if (action < 92) {
      Event& event = Command(Event::kCreate);
      Post([&] {
        event.status = h_.loop->CreateSession({"", event.name}, absl::ZeroDuration()).status();
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
    for (int i = 0; i < length; ++i) {
      request.prompt.continued.push_back(Pick(0, h_.options.vocab - 1));
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
    if (Chance(15)) request.deadline = h_.clock.Now() + absl::Milliseconds(Pick(0, 20));
    request.priority = Chance(20) ? Pick(-2, 2) : 0;
    if (Chance(30)) request.idempotency_key = absl::StrCat("key", next_key_++);
    if (Chance(15)) request.expected_position = Pick(0, 20);
    request.detached = Chance(20);
    return request;
  }

  void SubmitNew() { SubmitOne(RandomRequest()); }

  void SubmitOne(Request request) {
    auto stream = h_.Submit(request);
    if (!stream.ok()) {
      const absl::StatusCode code = stream.status().code();
      ++outcomes_[absl::StrCat("refused ", absl::StatusCodeToString(code))];
      EXPECT_TRUE(code == absl::StatusCode::kResourceExhausted ||
                  code == absl::StatusCode::kInvalidArgument ||
                  (failures_ && code == absl::StatusCode::kUnavailable))
          << stream.status();
      return;
    }
    auto event = std::make_unique<Event>();
    event->kind = Event::kRequest;
    event->request = std::move(request);
    event->stream = *std::move(stream);
    log_.push_back(std::move(event));
  }

  void Retry() {
    std::vector<Event*> keyed;
    for (const auto& event : log_) {
      if (event->kind == Event::kRequest && !event->request.idempotency_key.empty()) {
        keyed.push_back(event.get());
      }
    }
    if (!keyed.empty()) SubmitOne(keyed[Pick(0, static_cast<int>(keyed.size()) - 1)]->request);
  }

  void Fork() {
    Event& event = Command(Event::kFork);
    event.source = Name();
    Post([&] {
      const auto info =
          h_.loop->ForkSession({"", event.source}, {"", event.name}, absl::ZeroDuration());
      event.status = info.status();
      if (info.ok()) event.position = info->position;
    });
  }

  // Commands take the same way as requests, so that they keep their order.
  Event& Command(Event::Kind kind) {
    log_.push_back(std::make_unique<Event>());
    log_.back()->kind = kind;
    log_.back()->name = Name();
    log_.back()->status = absl::UnknownError("not run yet");
    return *log_.back();
  }
  void Post(std::function<void()> work) { ASSERT_TRUE(h_.loop->Post(std::move(work))); }

  Event* AnyLive() {
    std::vector<Event*> live;
    for (const auto& event : log_) {
      if (event->kind == Event::kRequest && !event->answer.ended) live.push_back(event.get());
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
    for (const SessionInfo& info : h_.loop->ListSessions("", "")) now.insert(info.key.name);
    for (const std::string& name : known_) {
      if (now.contains(name)) continue;
      auto event = std::make_unique<Event>();
      event->kind = Event::kVanish;
      event->name = name;
      log_.push_back(std::move(event));
    }
    known_ = std::move(now);
  }

  void ReadSome() {
    for (const auto& event : log_) {
      if (event->kind != Event::kRequest || event->answer.ended || Chance(50)) continue;
      for (int i = Pick(1, 4); i > 0; --i) {
        std::optional<TokenEvent> next = event->stream->TryNext();
        if (!next.has_value()) break;
        event->answer.Add(*std::move(next));
      }
    }
  }

  void Settle() {
    bool all_ended = false;
    for (int turn = 0; turn < 3000 && !all_ended; ++turn) {
      all_ended = true;
      for (const auto& event : log_) {
        if (event->kind != Event::kRequest || event->answer.ended) continue;
        LoopHarness::Read(*event->stream, event->answer);
        all_ended = all_ended && event->answer.ended;
      }
      Turn();
    }
    ASSERT_TRUE(all_ended) << "a request hangs";
    EXPECT_EQ(h_.stats.requests_running.value(), 0);
    EXPECT_EQ(h_.stats.requests_waiting.value(), 0);
    // Whatever is left is asked once more, so that its memory is seen.
    for (const SessionInfo& info : h_.loop->ListSessions("", "")) {
      Request request = Greedy({1}, 3, info.key.name);
      request.expected_position = info.position;
      const size_t before = log_.size();
      SubmitOne(std::move(request));
      if (log_.size() == before) continue;
      Event& event = *log_.back();
      for (int turn = 0; turn < 1000 && !event.answer.ended; ++turn) {
        Turn();
        LoopHarness::Read(*event.stream, event.answer);
      }
    }
    for (const SessionInfo& info : h_.loop->ListSessions("", "")) {
      EXPECT_EQ(h_.loop->DeleteSession(info.key), absl::OkStatus());
    }
    EXPECT_EQ(h_.pool->used_slots(), 0) << "a slab leaked";
  }

  void Judge() {
    for (const auto& event : log_) {
      if (::testing::Test::HasFailure()) return;
      switch (event->kind) {
        case Event::kVanish:
          sessions_.erase(event->name);
          break;
        case Event::kDelete:
          if (event->status.ok()) sessions_.erase(event->name);
          break;
        case Event::kCreate:
          if (event->status.ok()) sessions_[event->name] = {};
          break;
        case Event::kFork:
          if (!event->status.ok()) break;
          sessions_[event->name] = sessions_[event->source];
          EXPECT_EQ(sessions_[event->name].position(), event->position);
          break;
        case Event::kRequest:
          JudgeRequest(*event);
          break;
      }
    }
  }

  void JudgeRequest(const Event& event) {
    const Request& request = event.request;
    const Answer& answer = event.answer;
    SCOPED_TRACE(absl::StrCat("request for \"", request.session.name, "\", answer ",
                              answer.status().ToString()));
    ASSERT_TRUE(answer.ended);
    ++answers_;
    ++outcomes_[absl::StrCat(answer.last.replayed ? "replayed " : "",
                             absl::StatusCodeToString(answer.status().code()), " ",
                             ReasonOf(answer.status()).value_or(""),
                             answer.start.has_value() ? "" : " (never admitted)")];
    const bool named = !request.session.name.empty();
    const auto found = sessions_.find(request.session.name);
    OracleSession session = named && found != sessions_.end() ? found->second : OracleSession{};
    if (answer.last.replayed) return JudgeReplay(request, answer);
    if (answer.status().ok() && !request.idempotency_key.empty()) {
      finished_[request.idempotency_key] = &answer;
    }
    if (!answer.start.has_value()) {
      EXPECT_FALSE(answer.status().ok());
      EXPECT_EQ(answer.last.usage.fed_tokens, 0);
      return JudgeRefusal(request, answer, session);
    }

    const std::vector<int32_t>& prompt =
        session.position() == 0 ? request.prompt.at_start : request.prompt.continued;
    std::vector<int32_t> feed;
    if (session.pending.has_value()) feed.push_back(*session.pending);
    const bool had_pending = !feed.empty();
    feed.insert(feed.end(), prompt.begin(), prompt.end());
    EXPECT_EQ(answer.start->usage.resumed_tokens, session.fed);
    EXPECT_EQ(answer.start->usage.prompt_tokens, prompt.size());
    JudgePrompt(request, answer, session, feed, had_pending);

    // What each choice should have said, had it had the time.
    OracleSession after_prompt = session;
    after_prompt.FeedPrompt(prompt);
    const TokenEvent& last = answer.last;
    const std::vector<int32_t>& said = answer.tokens.at(0);
    for (int choice = 0; choice < request.n; ++choice) {
      OracleSession branch = after_prompt;
      const std::vector<int32_t> want =
          branch.Generate(h_.options, request, answer.start->seed, choice);
      std::vector<int32_t> got = answer.tokens.size() > static_cast<size_t>(choice)
                                     ? answer.tokens[choice]
                                     : std::vector<int32_t>{};
      if (answer.status().ok()) {
        EXPECT_EQ(got, want) << "choice " << choice;
      } else {
        ASSERT_LE(got.size(), want.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << "choice " << choice;
        EXPECT_NE(answer.finish.at(choice), FinishReason::kNone);
      }
      if (request.logprobs >= 0) {
        JudgeLogprobs(after_prompt, got, answer.logprobs.at(choice), request.logprobs);
      }
    }

    // Where that leaves the session.
    if (!said.empty()) {
      session = after_prompt;
      for (const int32_t token : said) {
        if (session.pending.has_value()) session.FeedPrompt({});
        session.pending = token;
        session.history.emplace_back(token, true);
      }
    } else {
      int64_t fed = static_cast<int64_t>(feed.size());
      if (!answer.status().ok()) {
        fed = last.session_position - session.fed;
        if (had_pending && last.has_pending_token) fed = 0;
      }
      if (answer.status().code() == absl::StatusCode::kInternal && last.session_position == 0) {
        fed = 0;  // the session is gone
      }
      ASSERT_GE(fed, 0);
      ASSERT_LE(fed, feed.size());
      if (fed > 0) {
        session.FeedPrompt({feed.begin() + (had_pending ? 1 : 0), feed.begin() + fed});
      }
    }
    const bool spoilt =
        answer.status().code() == absl::StatusCode::kInternal && last.session_position == 0;
    if (!spoilt) {
      EXPECT_EQ(last.session_position, session.position());
      EXPECT_EQ(last.has_pending_token, session.pending.has_value());
    }
    if (request.n == 1 && !spoilt) {
      EXPECT_EQ(last.usage.fed_tokens, session.fed - answer.start->usage.resumed_tokens);
    }
    if (named && spoilt) {
      sessions_.erase(request.session.name);
    } else if (named) {
      sessions_[request.session.name] = session;
      if (!answer.status().ok() && session.position() == 0 && found == sessions_.end()) {
        sessions_.erase(request.session.name);
      }
    }
  }

  void JudgeRefusal(const Request& request, const Answer& answer, const OracleSession& session) {
    const std::string reason = ReasonOf(answer.status()).value_or("");
    switch (answer.status().code()) {
      case absl::StatusCode::kAborted:
        EXPECT_THAT(reason, ::testing::AnyOf(kReasonSessionBusy, kReasonPosition, kReasonKeyRunning,
                                             kReasonKeyBroken, kReasonKeyForgotten));
        if (reason == kReasonPosition) {
          EXPECT_NE(request.expected_position, PositionOf(answer.status()));
          EXPECT_EQ(PositionOf(answer.status()), session.position());
        }
        break;
      case absl::StatusCode::kResourceExhausted:
        EXPECT_THAT(reason, ::testing::AnyOf(kReasonNoFreeSlab, kReasonQueueFull));
        EXPECT_TRUE(RetryAfterOf(answer.status()).has_value());
        break;
      case absl::StatusCode::kNotFound:
        EXPECT_FALSE(request.create_session);
        break;
      case absl::StatusCode::kInvalidArgument:
        EXPECT_TRUE(request.prompt.continued.empty()) << answer.status();
        break;
      default:
        EXPECT_TRUE(absl::IsCancelled(answer.status()) || absl::IsDeadlineExceeded(answer.status()))
            << answer.status();
    }
  }

  void JudgeReplay(const Request& request, const Answer& answer) {
    ASSERT_TRUE(finished_.contains(request.idempotency_key));
    const Answer& original = *finished_[request.idempotency_key];
    EXPECT_EQ(answer.tokens, original.tokens);
    EXPECT_EQ(answer.finish, original.finish);
    EXPECT_EQ(answer.prompt_tokens, original.prompt_tokens);
    EXPECT_EQ(answer.last.session_position, original.last.session_position);
    EXPECT_EQ(answer.last.usage.fed_tokens, original.last.usage.fed_tokens);
  }

  void JudgePrompt(const Request& request, const Answer& answer, const OracleSession& session,
                   const std::vector<int32_t>& feed, bool had_pending) {
    if (!request.echo && request.prompt_logprobs < 0) {
      EXPECT_TRUE(answer.prompt_tokens.empty());
      return;
    }
    const std::vector<int32_t> prompt(feed.begin() + (had_pending ? 1 : 0), feed.end());
    ASSERT_LE(answer.prompt_tokens.size(), prompt.size());
    EXPECT_TRUE(
        std::equal(answer.prompt_tokens.begin(), answer.prompt_tokens.end(), prompt.begin()));
    if (answer.status().ok()) {
      EXPECT_EQ(answer.prompt_tokens.size(), prompt.size());
    }
    if (request.prompt_logprobs < 0) return;
    ASSERT_EQ(answer.prompt_logprobs.size(), answer.prompt_tokens.size());
    OracleSession at = session;
    if (had_pending) at.FeedPrompt({});
    for (size_t i = 0; i < answer.prompt_logprobs.size(); ++i) {
      const TokenLogprob& got = answer.prompt_logprobs[i];
      EXPECT_EQ(got.token, prompt[i]);
      if (i == 0 && !had_pending) {
        EXPECT_TRUE(std::isnan(got.logprob));
      } else {
        JudgeLogprob(at, got, request.prompt_logprobs);
      }
      at.FeedPrompt({prompt[i]});
    }
  }

  void JudgeLogprobs(OracleSession at, const std::vector<int32_t>& tokens,
                     const std::vector<TokenLogprob>& logprobs, int top) {
    ASSERT_EQ(tokens.size(), logprobs.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(logprobs[i].token, tokens[i]);
      JudgeLogprob(at, logprobs[i], top);
      at.FeedPrompt({tokens[i]});
    }
  }

  void JudgeLogprob(const OracleSession& at, const TokenLogprob& got, int top) {
    const std::vector<double> logits =
        at.memory.Logits(h_.options.vocab, h_.options.first_token_bonus);
    EXPECT_NEAR(got.logprob, OracleLogprob(logits, got.token), 1e-5);
    ASSERT_EQ(got.top.size(), std::min(top, h_.options.vocab));
    for (const TopLogprob& entry : got.top) {
      EXPECT_NEAR(entry.logprob, OracleLogprob(logits, entry.token), 1e-5);
    }
  }

  std::mt19937_64 random_;
  const bool failures_;
  LoopHarness h_;
  std::vector<std::unique_ptr<Event>> log_;
  std::set<std::string> known_;  // names of the sessions after the last turn
  int next_key_ = 0;
  int answers_ = 0;
  std::map<std::string, int> outcomes_;
  std::map<std::string, OracleSession> sessions_;
  std::map<std::string, const Answer*> finished_;  // by key
};

void RunSchedules(uint64_t first_seed, int count, bool failures) {
  int answers = 0;
  std::map<std::string, int> outcomes;
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + i));
    Schedule schedule(first_seed + i, failures);
    schedule.Run();
    if (::testing::Test::HasFailure()) return;
    answers += schedule.answers();
    for (const auto& [outcome, n] : schedule.outcomes()) outcomes[outcome] += n;
  }
  EXPECT_GT(answers, count);
  std::string summary = absl::StrCat(count, " schedules, ", answers, " answers\n");
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
