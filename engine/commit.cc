// EngineLoop: from a step's result to events and ended requests.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log_fields.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

FinishReason ReasonFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return FinishReason::kNone;
    case absl::StatusCode::kCancelled:
      return FinishReason::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return FinishReason::kDeadline;
    default:
      return FinishReason::kError;
  }
}

TokenLogprob LogprobAt(const StepResult& result, int logit_row, int32_t token, int top,
                       const Tokenizer* tokenizer) {
  TokenLogprob entry = {
      .token = token, .logprob = result.logprobs[logit_row], .text = TokenText(tokenizer, token)};
  for (int i = 0; i < std::min(top, result.top_columns); ++i) {
    const int at = logit_row * result.top_columns + i;
    if (result.top_tokens[at] < 0) break;  // a small vocabulary
    entry.top.push_back({result.top_tokens[at], result.top_logprobs[at],
                         TokenText(tokenizer, result.top_tokens[at])});
  }
  return entry;
}

// `session`: the request's, or the one that it would have had; null if there is none.
// `segment_tokens`: ModelInfo::segment.
void CompleteLast(const Generation& g, const Session* session, int segment_tokens,
                  const absl::Status& status, absl::Duration now, TokenEvent& last) {
  last.is_last = true;
  last.status = status;
  last.usage = g.usage;
  if (g.request.surprise && g.surprised_tokens > 0) {
    last.usage.surprise = g.surprise_sum / static_cast<double>(g.surprised_tokens);
  }
  last.usage.memory_evicted = g.memory_evicted;
  if (g.memory_use != nullptr) {
    last.usage.memory_use = g.memory_use->Result(segment_tokens, g.choices[0].session->evictions);
  }
  last.seed = g.seed;
  last.timings.queue = (g.is_admitted() ? g.admitted : now) - g.submitted;
  if (g.is_admitted()) {
    const bool generated = g.usage.completion_tokens > 0;
    last.timings.prefill = (generated ? g.first_token : now) - g.admitted;
    if (generated) last.timings.decode = g.last_token - g.first_token;
  }
  if (session != nullptr && !g.spoilt) {
    last.session_position = session->position();
    last.has_pending_token = session->pending_token.has_value();
  }
}

void CountEnd(const Generation& g, const absl::Status& status, absl::Duration now,
              EngineStats& stats) {
  if (!g.is_admitted()) {
    if (absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) {
      stats.finished_by(ReasonFor(status)).Add();
    } else {
      stats.Reject(status);
    }
    return;
  }
  stats.finished_by(g.choices[0].finish).Add();
  if (g.has_filled_context()) stats.contexts_filled.Add();
  stats.request_seconds.Observe(absl::ToDoubleSeconds(now - g.submitted));
  stats.inference_seconds.Observe(absl::ToDoubleSeconds(now - g.admitted));
  stats.request_prompt_tokens.Observe(static_cast<double>(g.usage.prompt_tokens));
  stats.request_generated_tokens.Observe(static_cast<double>(g.usage.completion_tokens));
  int longest = 0;
  for (const Choice& choice : g.choices) longest = std::max(longest, choice.stop.generated());
  stats.request_longest_choice.Observe(longest);
  stats.request_n.Observe(g.request.n);
  stats.request_max_tokens.Observe(g.request.stop.max_tokens);
  if (longest > 1) {
    stats.output_token_seconds.Observe(absl::ToDoubleSeconds(g.last_token - g.first_token) /
                                       (longest - 1));
  }
  if (g.usage.completion_tokens > 1) {
    stats.decode_seconds.Observe(absl::ToDoubleSeconds(g.last_token - g.first_token));
  }
}

}  // namespace

// Waits for the tokens of the step in flight, and does what the next one depends on, and no more:
// which tokens were drawn, and who goes on. The device waits meanwhile. Deliver() does the rest.
void EngineLoop::CommitStep() {
  const absl::Status status = pipeline_.Finish();
  const StepPlan& plan = pipeline_.plan();
  if (!status.ok()) return FailRows(plan, status);
  for (int row = 0; row < plan.rows(); ++row) {
    // Another choice of the same request may have ended it in this very step: FailForLogits.
    const Generation* generation = rows_[plan.candidates[row]].generation;
    if (generation != nullptr && !generation->ended) CommitRow(plan, row);
  }
}

void EngineLoop::CommitRow(const StepPlan& plan, int row) {
  Generation& g = *rows_[plan.candidates[row]].generation;
  Choice& choice = *rows_[plan.candidates[row]].choice;
  const RowCandidate& candidate = candidates_[plan.candidates[row]];
  const std::span<const int32_t> fed = plan.row_tokens(row);
  if (g.replay != nullptr) return CommitReplay(g, static_cast<int64_t>(fed.size()));
  Session& session = *choice.session;
  session.fed_tokens += static_cast<int64_t>(fed.size());
  if (log_ != nullptr && choice.index == 0 && g.named()) {
    g.turn.tokens.insert(g.turn.tokens.end(), fed.begin(), fed.end());
  }
  if (g.trail != nullptr && choice.index == 0) g.trail->Add(fed);
  for (const int32_t token : fed) session.fed.Add(parts_.tokenizer, token);
  session.pending_token.reset();  // it was the first one fed
  g.usage.fed_tokens += static_cast<int64_t>(fed.size());
  choice.last_run = pipeline_.steps();
  const SurpriseCounter::Row surprise =
      surprise_.Count(pipeline_.result().surprise, plan.row_offsets[row], plan.row_offsets[row + 1],
                      plan.positions[row]);
  if (surprise.divergence.has_value()) return FailForDivergence(g, *surprise.divergence);
  g.surprise_sum += surprise.sum;
  g.surprised_tokens += surprise.tokens;
  CountCrossings(g, choice);

  if (choice.cursor < g.feed_tokens()) {
    const int64_t begin = choice.cursor;
    choice.cursor += static_cast<int64_t>(fed.size());
    // Other choices feed some of it for themselves, which is no more prompt than there was.
    // Nor is what fills up a text's last segment.
    if (choice.index == 0) {
      const int64_t brought = g.usage.prompt_tokens + g.usage.cached_tokens;
      parts_.stats.prompt_tokens.Add(std::min(choice.cursor, brought) - begin);
    }
    for (size_t i = 0; i < fed.size() && !session.has_text; ++i) {
      session.has_text = IsText(parts_.tokenizer, fed[i]);
    }
    if (g.shows_prompt() && choice.index == 0) {
      ShowPrompt(g, plan.logit_offsets[row], begin, choice.cursor);
      if (g.ended) return;
    }
    if (g.prefix != nullptr && choice.index == 0) AdvancePrefix(g);
    if (g.must_fork()) Fork(g);
    if (g.request.classify) {
      if (choice.cursor == g.feed_tokens()) EndClassified(g, plan.logit_offsets[row]);
      return;
    }
    if (choice.cursor == g.feed_tokens() && g.request.stop.max_tokens == 0) EndUnsampled(g);
  }
  if (candidate.samples && fed.size() == candidate.tokens.size()) {
    CommitToken(g, choice, plan.logit_offsets[row + 1] - 1);
  }
}

// Stop conditions come first: the token is fed in the next step unless one of them holds, and a
// token that was fed cannot be taken back. Where one may hold, the token is delivered at once, as
// that tells; and what an ended request held is free for the next step.
void EngineLoop::CommitToken(Generation& g, Choice& choice, int logit_row) {
  const int32_t token = pipeline_.result().tokens[logit_row];
  if (token == kNothingLeft) return EndWithNothingLeft(g, choice);
  if (token < 0) return FailForLogits(g, choice);
  choice.session->pending_token = token;
  choice.undelivered = {token, logit_row};
  if (!choice.stop.GoesOnAfter(token)) DeliverToken(g, choice);
}

void EngineLoop::DeliverTokens(Generation& g) {
  for (Choice& choice : g.choices) {
    if (!choice.undelivered.has_value()) continue;
    DeliverToken(g, choice);
    CHECK(choice.finish == FinishReason::kNone) << "a choice went on after its end";
  }
}

void EngineLoop::DeliverToken(Generation& g, Choice& choice) {
  const auto [token, logit_row] = *std::exchange(choice.undelivered, std::nullopt);
  const absl::Duration now = pipeline_.sampled_at();
  Session& session = *choice.session;
  if (parts_.tokenizer != nullptr && !choice.decoder.has_value()) {
    choice.decoder.emplace(*parts_.tokenizer,
                           DecodeOptions{.skip_special_tokens = g.request.skip_special_tokens,
                                         .at_sequence_start = !session.has_text});
  }
  session.history.Push(token, /*generated=*/true);
  if (!session.has_text) session.has_text = IsText(parts_.tokenizer, token);

  EngineStats& stats = parts_.stats;
  stats.generated_tokens.Add();
  if (++g.usage.completion_tokens == 1) {
    g.first_token = now;
    stats.first_token_seconds.Observe(absl::ToDoubleSeconds(now - g.submitted));
    stats.prefill_seconds.Observe(absl::ToDoubleSeconds(now - g.admitted));
  }
  if (choice.stop.generated() > 0) {
    stats.inter_token_seconds.Observe(absl::ToDoubleSeconds(now - choice.last_token_at));
  }
  choice.last_token_at = g.last_token = now;

  TokenEvent event;
  AcceptToken(choice, g.rules, parts_.tokenizer, token, event);
  event.context_full = g.fills_context && event.finish == FinishReason::kLength;
  if (g.request.logprobs >= 0) {
    event.logprobs.push_back(
        LogprobAt(pipeline_.result(), logit_row, token, g.request.logprobs, parts_.tokenizer));
  }
  if (choice.finish == FinishReason::kNone) return outbox_.Send(g, std::move(event));
  ReleaseChoice(g, choice);
  if (--g.unfinished > 0) return outbox_.Send(g, std::move(event));
  End(g, absl::OkStatus(), std::move(event));
}

// Tokens [begin, end) of the feed went through the model, and logits from `logit_row` on followed
// them; so the tokens up to and including `end` can be shown.
void EngineLoop::ShowPrompt(Generation& g, int logit_row, int64_t begin, int64_t end) {
  TokenEvent event;
  event.is_prompt = true;
  for (; g.shown_prompt < std::min(end + 1, g.feed_tokens()); ++g.shown_prompt) {
    const int32_t token = g.feed[g.shown_prompt];
    event.token_ids.push_back(token);
    if (g.scores_prompt()) {
      const int64_t predictor = g.shown_prompt - 1;
      if (predictor >= begin && predictor < end) {
        const int predictor_row = logit_row + static_cast<int>(predictor - begin);
        if (!std::isfinite(pipeline_.result().logprobs[predictor_row])) {
          return FailForLogits(g, g.choices[0]);
        }
        event.logprobs.push_back(LogprobAt(pipeline_.result(), predictor_row, token,
                                           g.request.prompt_logprobs, parts_.tokenizer));
      } else {
        event.logprobs.push_back({.token = token,
                                  .logprob = std::numeric_limits<float>::quiet_NaN(),
                                  .text = TokenText(parts_.tokenizer, token)});
      }
    }
    Choice& first = g.choices[0];
    if (first.decoder.has_value() && parts_.tokenizer->contains(token)) {
      first.decoder->Push(token, event.text);
    }
  }
  if (!event.token_ids.empty()) outbox_.Send(g, std::move(event));
}

// The prompt was fed, and nothing is to be generated.
void EngineLoop::EndUnsampled(Generation& g) {
  for (Choice& choice : g.choices) {
    TokenEvent event;
    event.choice = choice.index;
    event.finish = choice.finish = FinishReason::kLength;
    if (choice.decoder.has_value()) {
      choice.decoder->Flush(event.text);
      event.is_prompt = true;
    }
    ReleaseChoice(g, choice);
    if (--g.unfinished > 0) {
      outbox_.Send(g, std::move(event));
    } else {
      End(g, absl::OkStatus(), std::move(event));
    }
  }
}

// The text was fed, and its logits are there.
void EngineLoop::EndClassified(Generation& g, int logit_row) {
  const auto classes = static_cast<size_t>(parts_.model.info().outputs());
  const std::span<const float> logits =
      std::span(pipeline_.result().class_logits)
          .subspan(classes * static_cast<size_t>(logit_row), classes);
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    return FailForLogits(g, g.choices[0]);
  }
  TokenEvent event;
  event.finish = g.choices[0].finish = FinishReason::kStop;
  event.class_logits.assign(logits.begin(), logits.end());
  ReleaseChoice(g, g.choices[0]);
  --g.unfinished;
  End(g, absl::OkStatus(), std::move(event));
}

// The model said nothing that can be served. What it remembers is most likely no better, so that
// goes, as after a failed step; the engine and the step's other rows are sound.
void EngineLoop::FailForLogits(Generation& g, const Choice& choice) {
  FailSpoilt(g, WithReason(absl::InternalError(
                               absl::StrCat("non-finite logits after ", choice.session->fed_tokens,
                                            " tokens: there is no token to draw or score")),
                           kReasonStepFailed));
}

// The memory's own training made it useless, which is the weights' doing, or the prompt's. Nothing
// else holds any of it.
void EngineLoop::FailForDivergence(Generation& g, const SurpriseCounter::Row::Divergence& where) {
  FailSpoilt(g, WithPosition(WithReason(SurpriseCounter::ErrorOf(where), kReasonMemoryDiverged),
                             where.position));
}

void EngineLoop::FailSpoilt(Generation& g, const absl::Status& failure) {
  g.spoilt = true;
  LogFields("request_failed")
      .Message(failure.message())
      .Add("id", absl::CHexEscape(g.request.id))
      .Write(LogSeverity::kError);
  End(g, failure);
}

// The model is sound, and what it remembers is: the tokens fed, and no more. It is the request that
// asked for what cannot be, and it ends alone.
void EngineLoop::EndWithNothingLeft(Generation& g, const Choice& choice) {
  End(g, FieldError("sampling",
                    absl::StrCat("leaves no token to draw after ", choice.session->fed_tokens,
                                 " tokens: all that the model allows is banned, by "
                                 "logit_bias or until min_tokens")));
}

void EngineLoop::FailRows(const StepPlan& plan, const absl::Status& error) {
  const absl::Status failure = WithReason(
      absl::InternalError(absl::StrCat("a step failed: ", error.ToString())), kReasonStepFailed);
  LogFields("step_failed")
      .Message(failure.message())
      .Add("rows", plan.rows())
      .Add("tokens", plan.tokens())
      .Write(LogSeverity::kError);
  parts_.stats.failed_steps.Add();
  {
    absl::MutexLock lock(&mu_);
    failure_ = failure;
  }
  for (const int candidate : plan.candidates) {
    const auto& [generation, choice] = rows_[candidate];
    if (generation != nullptr && choice->index == 0) generation->spoilt = true;
  }
  for (const int candidate : plan.candidates) {
    Generation* const generation = rows_[candidate].generation;
    if (generation != nullptr && !generation->ended) End(*generation, failure);
  }
}

// Lets go of everything the request holds. `last`, completed, is its last event: the reader gets it
// from Sweep(), when all that is counted shows that the request has ended.
void EngineLoop::End(Generation& g, const absl::Status& why, TokenEvent last) {
  if (g.replay != nullptr) return EndReplay(g, why);
  if (g.errand != nullptr) return EndErrand(g, why);
  const absl::Status status = g.spoilt ? WithWhatIsLeft(g, why) : why;
  DeliverTokens(g);
  EndLoad(g);
  EndPrefix(g);
  FinishChoices(g, status, last);
  const Session* session = g.on_copy         ? nullptr
                           : g.is_admitted() ? g.choices[0].session
                           : g.named()       ? sessions_.Find(g.request.session)
                                             : nullptr;
  CompleteLast(g, session, parts_.model.info().segment, status, Now(), last);
  if (GoesBack(g, status)) {
    const std::optional<SessionRecord> before = log_->Find(session->key);
    last.session_position = before.has_value() ? before->position() : 0;
    last.has_pending_token = before.has_value() && before->pending_token.has_value();
  }
  KeepEnd(g);
  if (MustLog(g, status)) return LogTurn(g, std::move(last));
  FinishWhenKept(g, std::move(last));
}

void EngineLoop::Finish(Generation& g, TokenEvent last) {
  const absl::Status status = last.status;
  g.ReportEnd(g.usage);
  if (HasEdited(g, status)) keys_.Undo(g.choices[0].session->id, g.parts_at);
  CloseRecord(g, last);
  LeaveRecord(g);
  if (g.is_admitted() && g.choices[0].ephemeral != nullptr) {
    sessions_.EndEphemeral(*g.choices[0].ephemeral);
  }
  ReleaseSessions(g, status);
  // Whoever submitted this one does so again with another cut, and that is the request that counts.
  if (ReasonOf(status) != kReasonHistoryCut) {
    CountEnd(g, status, Now(), parts_.stats);
    Tell(g, last);
  }
  MarkEnded(g, std::move(last));
}

// The slab of an ephemeral session is free as soon as its choice has ended.
void EngineLoop::ReleaseChoice(Generation& g, Choice& choice) {
  if (choice.index == 0) EndMemoryUse(g);
  if (choice.index == 0 && g.trail != nullptr) return;  // Finish
  if (choice.ephemeral != nullptr) sessions_.EndEphemeral(*choice.ephemeral);
}

// Ends the choices that still go on. The event of the last one of them is `last`.
void EngineLoop::FinishChoices(Generation& g, const absl::Status& status, TokenEvent& last) {
  if (!status.ok()) last.finish = ReasonFor(status);
  for (Choice& choice : g.choices) {
    if (choice.finish != FinishReason::kNone) continue;
    TokenEvent event;
    event.choice = choice.index;
    event.finish = choice.finish = ReasonFor(status);
    choice.stop.Flush(event.text);
    if (choice.decoder.has_value()) choice.decoder->Flush(event.text);
    ReleaseChoice(g, choice);
    if (--g.unfinished > 0) {
      outbox_.Send(g, std::move(event));
    } else {
      last = std::move(event);
    }
  }
}

// Leaves what a repetition of the request's idempotency key will find.
void EngineLoop::CloseRecord(Generation& g, const TokenEvent& last) {
  if (g.record == nullptr) return;
  KeyRecord& record = *std::exchange(g.record, nullptr);
  if (!g.record_closed) keys_.Append(record, last);
  const int64_t session_id = g.is_admitted() ? g.choices[0].session->id : 0;
  const bool did_something =
      last.status.ok() || g.usage.fed_tokens + g.usage.cached_tokens > 0 || g.spoilt;
  if (g.unlogged || GoesBack(g, last.status) || !did_something) {
    DismissAttached(record, last.status);
    return keys_.Forget(record);
  }
  const KeyState state = last.status.ok() ? KeyState::kFinished : KeyState::kBroken;
  keys_.End(record, state, last.session_position, session_id);
  DismissAttached(record, absl::OkStatus());
}

void EngineLoop::ReleaseSessions(Generation& g, const absl::Status& status) {
  sessions_.Unreserve(g.reserved_slots);
  if (!std::exchange(g.claims_session, false)) return;
  Session* session = sessions_.Unclaim(g.request.session, /*ran=*/g.is_admitted());
  if (session == nullptr) return;
  // A spoilt slab holds some layers' share of a step; a session that a failed request created and
  // never fed would be a trace of nothing.
  const bool unborn = IsUnborn(g, status);
  if (g.unlogged || GoesBack(g, status)) {
    sessions_.TakeBack(*session);
  } else if (g.spoilt || unborn) {
    sessions_.Remove(*session, g.spoilt ? SessionEnd::kSpoilt : SessionEnd::kUnborn);
  } else {
    sessions_.SnapshotIfDue(*session);
  }
}

void EngineLoop::MarkEnded(Generation& g, TokenEvent last) {
  g.ended = true;
  queue_.Leave(g);
  outbox_.KeepLast(g, std::move(last));
}

void EngineLoop::Tell(const Generation& g, const TokenEvent& last) const {
  if (options_.on_request_end) options_.on_request_end(MakeReport(g, last, Now()));
}

void EngineLoop::EndAll(const absl::Status& why) {
  if (pipeline_.in_flight()) CommitStep();
  ForEachRequest([&](Generation& g) {
    if (!g.ended) End(g, why);
  });
  Sweep();
}

}  // namespace mneme
