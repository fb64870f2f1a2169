// EngineLoop: from a submitted request to its first row, or to the answer that was given before.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Whether the named session that a request ran in has ended since; what has its name now, if
// anything does, is another.
bool IsSessionGone(const KeyRecord& record, const SessionKey& key, const Session* session) {
  return !key.name.empty() && (session == nullptr || session->id != record.session_id);
}

// For a request that ended long ago: with the position that its session was left at, or, where the
// session is gone, 0, and words that say so.
absl::Status WithPositionThen(const KeyRecord& record, bool session_gone,
                              const absl::Status& status) {
  if (!session_gone) return WithPosition(status, record.position);
  return WithReason(
      WithPosition(absl::Status(status.code(),
                                absl::StrCat(status.message(), "; the session has ended since")),
                   0),
      ReasonOf(status).value_or(""));
}

// OK if `known`, the record of the request's idempotency key, has its answer. `session`: the one
// that has the request's name now, or null.
absl::Status CheckRepetition(const KeyRecord& known, uint64_t digest, const Request& request,
                             const Session* session) {
  if (known.digest != digest) {
    return WithReason(FieldError("idempotency_key", "was used before, with a different request"),
                      kReasonKeyReused);
  }
  const bool gone = IsSessionGone(known, request.session, session);
  if (known.state == KeyState::kRunning) {
    absl::Status status =
        WithReason(absl::AbortedError("the request with this idempotency key is still running"),
                   kReasonKeyRunning);
    return session == nullptr ? status : WithPosition(std::move(status), session->position());
  }
  if (known.state == KeyState::kBroken) {
    return WithPositionThen(
        known, gone,
        WithReason(absl::AbortedError(absl::StrCat(
                       "the request with this idempotency key broke off; the session then stood "
                       "at position ",
                       known.position)),
                   kReasonKeyBroken));
  }
  if (known.dropped_events) {
    return WithPositionThen(
        known, gone,
        WithReason(absl::AbortedError(
                       absl::StrCat("the request with this idempotency key finished at position ",
                                    known.position, ", and its answer is no longer kept")),
                   kReasonKeyForgotten));
  }
  return absl::OkStatus();
}

}  // namespace

// From the mailbox to the queue.
void EngineLoop::Take(Command command) {
  if (command.work != nullptr) return command.work();
  Generation& g = queue_.Add(std::move(command.submitted));
  if (!g.request.idempotency_key.empty() && AnswerFromRecord(g)) return;
  const absl::Status claimed = queue_.Claim(g);
  if (!claimed.ok()) End(g, claimed);
}

// Answers a repeated idempotency key; false if the key is new, which then has a record.
bool EngineLoop::AnswerFromRecord(Generation& g) {
  const Request& request = g.request;
  const uint64_t digest = RequestDigest(request);
  KeyRecord* known = keys_.Find(request.session.owner, request.idempotency_key);
  if (known == nullptr) {
    g.record = &keys_.Insert(request.session.owner, request.idempotency_key, digest);
    return false;
  }
  const Session* session = sessions_.Find(request.session);
  const absl::Status kept = CheckRepetition(*known, digest, request, session);
  if (!kept.ok()) {
    End(g, kept);
    return true;
  }
  parts_.stats.replayed.Add();
  g.ReportEnd(Usage());
  for (TokenEvent event : known->events) {
    event.replayed = true;
    event.session_gone = IsSessionGone(*known, request.session, session);
    if (!event.is_last) {
      outbox_.Send(g, std::move(event));
      continue;
    }
    Tell(g, event);
    MarkEnded(g, std::move(event));
  }
  return true;
}

// Gives a request that is let in its session, its slabs and what to feed.
void EngineLoop::Begin(Generation& g) {
  const Request& request = g.request;
  g.admitted = Now();
  Session* session = g.named() ? sessions_.Find(request.session) : nullptr;
  g.created_session = session == nullptr;
  if (request.classify) {
    BeginText(g, parts_.model.info().classes);
  } else {
    BeginFeed(g, session, parts_.tokenizer);
  }
  if (const auto most = parts_.model.state_layout().max_tokens()) LimitDraws(g, *most);
  const PhiloxCounter bits = RandomBits(seed_, 0, static_cast<uint64_t>(g.arrival));
  BeginDraws(g, uint64_t{bits[0]} << 32 | bits[1], parts_.end_tokens);
  g.unfinished = request.n;
  g.choices.reserve(request.n);
  for (int i = 0; i < request.n; ++i) g.choices.emplace_back(g.rules).index = i;
  BeginFirstChoice(g, session);
  if (g.forks()) g.reserved_slots = sessions_.Reserve(request.n - 1);
  SendStart(g);
  if (g.must_fork()) Fork(g);
}

// In `session`, or, if that is null, in one that begins here.
void EngineLoop::BeginFirstChoice(Generation& g, Session* session) {
  const Request& request = g.request;
  Choice& first = g.choices[0];
  if (session != nullptr) {
    // Counts from when the session is idle again.
    if (request.session_ttl != absl::ZeroDuration()) session->ttl = request.session_ttl;
  } else if (g.named()) {
    session = &sessions_.CreateClaimed(request.session, request.session_ttl);
  } else {
    first.ephemeral = sessions_.BeginEphemeral();
    session = first.ephemeral.get();
  }
  first.session = session;
  first.last_run = pipeline_.steps();
  BeginMemoryUse(g);
  if (parts_.tokenizer != nullptr && request.echo) {
    first.decoder.emplace(*parts_.tokenizer,
                          DecodeOptions{.skip_special_tokens = request.skip_special_tokens,
                                        .at_sequence_start = !session->has_text});
  }
}

void EngineLoop::SendStart(Generation& g) {
  EngineStats& stats = parts_.stats;
  if (g.named()) {
    const bool resumes = g.usage.resumed_tokens > 0;
    const bool parked = g.choices[0].session->fetched;
    stats
        .resumed_as(!resumes ? ResumeOutcome::kCold
                    : parked ? ResumeOutcome::kParked
                             : ResumeOutcome::kHot)
        .Add();
  }
  stats.queue_seconds.Observe(absl::ToDoubleSeconds(g.admitted - g.submitted));
  stats.resumed_tokens.Add(g.usage.resumed_tokens);
  TokenEvent start;
  start.is_start = true;
  start.seed = g.seed;
  start.usage = g.usage;
  start.timings.queue = g.admitted - g.submitted;
  outbox_.Send(g, std::move(start));
}

// The other choices begin where the first one stands: one token in front of the first draw.
void EngineLoop::Fork(Generation& g) {
  const Choice& first = g.choices[0];
  if (g.shows_prompt()) ShowPrompt(g, 0, 0, 0);
  parts_.stats.forked_choices.Add(g.request.n - 1);
  for (int i = 1; i < g.request.n; ++i) {
    Choice& choice = g.choices[i];
    choice.ephemeral = sessions_.ForkEphemeral(*first.session, g.reserved_slots[i - 1]);
    choice.session = choice.ephemeral.get();
    choice.decoder = first.decoder;
    choice.cursor = first.cursor;
    choice.last_run = pipeline_.steps();
  }
  g.reserved_slots.clear();
}

}  // namespace mneme
