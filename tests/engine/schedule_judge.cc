#include "tests/engine/schedule_judge.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {

void ScheduleJudge::Judge(std::span<const std::unique_ptr<ScheduleEvent>> log) {
  for (const auto& event : log) {
    if (::testing::Test::HasFailure()) return;
    switch (event->kind) {
      case ScheduleEvent::kVanish:
        sessions_.erase(event->name);
        break;
      case ScheduleEvent::kDelete:
        if (event->status.ok()) sessions_.erase(event->name);
        break;
      case ScheduleEvent::kCreate:
        if (event->status.ok()) sessions_[event->name] = {};
        break;
      case ScheduleEvent::kFork:
        if (!event->status.ok()) break;
        sessions_[event->name] = sessions_[event->source];
        EXPECT_EQ(sessions_[event->name].position(), event->position);
        break;
      case ScheduleEvent::kRequest:
        JudgeRequest(*event);
        break;
    }
  }
}

void ScheduleJudge::JudgeRequest(const ScheduleEvent& event) {
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
  const bool followed = answer.start.has_value() && answer.start->replayed;
  if (followed && !answer.status().ok()) {  // what it repeats broke off, or it left
    if (absl::IsAborted(answer.status())) {
      EXPECT_THAT(ReasonOf(answer.status()).value_or(""),
                  ::testing::AnyOf(kReasonKeyBroken, kReasonKeyUndone, kReasonKeyForgotten));
    }
    return;
  }
  if (answer.last.replayed) return JudgeReplay(request, answer);
  if (answer.status().ok() && !request.idempotency_key.empty()) {
    finished_[request.idempotency_key] = &answer;
  }
  if (!answer.start.has_value()) {
    EXPECT_FALSE(answer.status().ok());
    EXPECT_EQ(answer.last.usage.fed_tokens, 0);
    return JudgeRefusal(request, answer, session);
  }

  std::vector<int32_t> prompt =
      session.position() == 0 ? request.prompt.at_start : request.prompt.continued;
  if (request.whole_history) FitWhole(request, answer, session, prompt);
  std::vector<int32_t> feed;
  if (session.pending.has_value()) feed.push_back(*session.pending);
  const bool had_pending = !feed.empty();
  feed.insert(feed.end(), prompt.begin(), prompt.end());
  EXPECT_EQ(answer.start->usage.resumed_tokens, session.fed);
  const int64_t cached = answer.start->usage.cached_tokens;
  EXPECT_EQ(answer.start->usage.prompt_tokens + cached, feed.size());
  if (cached > 0) {
    EXPECT_EQ(session.position(), 0) << "only new sessions begin with what others were fed";
    EXPECT_LT(cached, feed.size()) << "something is left to be fed";
    EXPECT_FALSE(request.prefix_cache.bypass || request.echo || request.prompt_logprobs >= 0);
    cached_ += cached;
  }
  JudgePrompt(request, answer, session, feed, had_pending);

  // Each choice should have said this, had it had the time.
  OracleSession after_prompt = session;
  after_prompt.FeedPrompt(prompt);
  const TokenEvent& last = answer.last;
  const std::vector<int32_t>& said = answer.tokens.at(0);
  for (int choice = 0; choice < request.n; ++choice) {
    OracleSession branch = after_prompt;
    const std::vector<int32_t> want =
        branch.Generate(options_, request, answer.start->seed, choice);
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
    EXPECT_EQ(last.usage.fed_tokens,
              session.fed - answer.start->usage.resumed_tokens - answer.start->usage.cached_tokens);
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

void ScheduleJudge::FitWhole(const Request& request, const Answer& answer, OracleSession& session,
                             std::vector<int32_t>& prompt) {
  prompt = request.prompt.at_start;
  const int64_t position = session.position();
  if (session.pending.has_value()) session.history.pop_back();
  session.pending.reset();
  const auto fed = static_cast<size_t>(session.fed);
  bool goes_on = fed < prompt.size();
  for (size_t i = 0; i < fed && goes_on; ++i) goes_on = session.history[i].first == prompt[i];
  EXPECT_EQ(answer.start->usage.rewound_from, goes_on ? 0 : position);
  if (goes_on) {
    prompt.erase(prompt.begin(), prompt.begin() + session.fed);
    return;
  }
  EXPECT_EQ(request.on_mismatch, OnMismatch::kReplace);
  session = {};
  ++edits_;
}

void ScheduleJudge::JudgeRefusal(const Request& request, const Answer& answer,
                                 const OracleSession& session) {
  const std::string reason = ReasonOf(answer.status()).value_or("");
  switch (answer.status().code()) {
    case absl::StatusCode::kAborted:
      EXPECT_THAT(reason,
                  ::testing::AnyOf(kReasonSessionBusy, kReasonPosition, kReasonKeyRunning,
                                   kReasonKeyBroken, kReasonKeyUndone, kReasonKeyForgotten));
      if (reason == kReasonKeyUndone) {
        EXPECT_TRUE(PositionOf(answer.status()).has_value());
      }
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
    case absl::StatusCode::kFailedPrecondition:
      EXPECT_EQ(reason, kReasonHistory);
      EXPECT_TRUE(request.whole_history && request.on_mismatch == OnMismatch::kRefuse);
      break;
    case absl::StatusCode::kInvalidArgument:
      EXPECT_TRUE(request.prompt.continued.empty()) << answer.status();
      break;
    default:
      EXPECT_TRUE(absl::IsCancelled(answer.status()) || absl::IsDeadlineExceeded(answer.status()))
          << answer.status();
  }
}

void ScheduleJudge::JudgeReplay(const Request& request, const Answer& answer) {
  ASSERT_TRUE(finished_.contains(request.idempotency_key));
  const Answer& original = *finished_[request.idempotency_key];
  EXPECT_EQ(answer.tokens, original.tokens);
  EXPECT_EQ(answer.finish, original.finish);
  EXPECT_EQ(answer.prompt_tokens, original.prompt_tokens);
  EXPECT_EQ(answer.last.session_position, original.last.session_position);
  EXPECT_EQ(answer.last.usage.fed_tokens, original.last.usage.fed_tokens);
}

void ScheduleJudge::JudgePrompt(const Request& request, const Answer& answer,
                                const OracleSession& session, const std::vector<int32_t>& feed,
                                bool had_pending) {
  if (!request.echo && request.prompt_logprobs < 0) {
    EXPECT_TRUE(answer.prompt_tokens.empty());
    return;
  }
  const std::vector<int32_t> prompt(feed.begin() + (had_pending ? 1 : 0), feed.end());
  ASSERT_LE(answer.prompt_tokens.size(), prompt.size());
  EXPECT_TRUE(std::equal(answer.prompt_tokens.begin(), answer.prompt_tokens.end(), prompt.begin()));
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

void ScheduleJudge::JudgeLogprobs(OracleSession at, const std::vector<int32_t>& tokens,
                                  const std::vector<TokenLogprob>& logprobs, int top) {
  ASSERT_EQ(tokens.size(), logprobs.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(logprobs[i].token, tokens[i]);
    JudgeLogprob(at, logprobs[i], top);
    at.FeedPrompt({tokens[i]});
  }
}

void ScheduleJudge::JudgeLogprob(const OracleSession& at, const TokenLogprob& got, int top) {
  const std::vector<double> logits = at.memory.Logits(options_.vocab, options_.first_token_bonus);
  EXPECT_NEAR(got.logprob, OracleLogprob(logits, got.token), 1e-5);
  ASSERT_EQ(got.top.size(), std::min(top, options_.vocab));
  for (const TopLogprob& entry : got.top) {
    EXPECT_NEAR(entry.logprob, OracleLogprob(logits, entry.token), 1e-5);
  }
}

}  // namespace mneme
