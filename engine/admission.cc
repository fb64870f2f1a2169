// EngineLoop: from the mailbox to a session with a slab, or a refusal.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

const std::vector<int32_t>& PromptAt(const Request& request, int64_t position) {
  return request.prompt.At(position);
}

// Waiting requests are sorted by it, and it stays what it is: what a priority is worth is lost as
// fast as time passes.
std::pair<absl::Duration, int64_t> Place(const Generation& g) {
  return {g.submitted - g.request.priority * kPriorityStep, g.arrival};
}

// A long prompt may wait for long; where its session stands is settled before.
void DropUnusedReading(Prompt& prompt, int64_t position) {
  if (prompt.same_everywhere) return;
  std::vector<int32_t>().swap(position == 0 ? prompt.continued : prompt.at_start);
}

}  // namespace

void EngineLoop::Apply(Command command) {
  if (command.work != nullptr) {
    command.work();
  } else {
    Enqueue(std::move(command.submitted));
  }
}

void EngineLoop::Enqueue(std::unique_ptr<Generation> generation) {
  Generation& g = *generation;
  const Request& request = g.request;
  g.arrival = arrivals_++;
  const auto place =
      std::upper_bound(waiting_.begin(), waiting_.end(), g,
                       [](const Generation& a, const auto& b) { return Place(a) < Place(*b); });
  waiting_.insert(place, std::move(generation));

  if (!request.idempotency_key.empty() && Replay(g)) return;
  Session* session = g.named() ? sessions_.Find(request.session) : nullptr;
  EngineStats& stats = parts_.stats;
  if (g.named() && sessions_.IsClaimed(request.session)) {
    stats.resumed_as(ResumeOutcome::kRefused).Add();
    absl::Status busy = WithReason(
        absl::AbortedError(absl::StrCat("session \"", request.session.name,
                                        "\" is busy: another request for it waits or runs")),
        kReasonSessionBusy);
    if (session != nullptr) busy = WithPosition(std::move(busy), session->position());
    return End(g, busy);
  }
  if (request.whole_history && session != nullptr) {
    const absl::Status known = SkipKnownHistory(g, *session);
    if (!known.ok()) return End(g, known);
  }
  const absl::Status fits = CheckAgainstSession(g, session);
  if (!fits.ok()) {
    if (g.named()) stats.resumed_as(ResumeOutcome::kRefused).Add();
    return End(g, fits);
  }
  DropUnusedReading(g.request.prompt, session == nullptr ? 0 : session->position());
  if (!g.named()) return;
  sessions_.Claim(request.session);
  g.claims_session = true;
}

// Answers a repeated idempotency key; false if the key is new, which then has a record.
bool EngineLoop::Replay(Generation& g) {
  const Request& request = g.request;
  const uint64_t digest = RequestDigest(request);
  KeyRecord* known = keys_.Find(request.session.owner, request.idempotency_key);
  if (known == nullptr) {
    g.record = &keys_.Insert(request.session.owner, request.idempotency_key, digest);
    return false;
  }
  if (known->digest != digest) {
    End(g, WithReason(FieldError("idempotency_key", "was used before, with a different request"),
                      kReasonKeyReused));
  } else if (known->state == KeyState::kRunning) {
    absl::Status status =
        WithReason(absl::AbortedError("the request with this idempotency key is still running"),
                   kReasonKeyRunning);
    const Session* session = sessions_.Find(request.session);
    if (session != nullptr) status = WithPosition(std::move(status), session->position());
    End(g, status);
  } else if (known->state == KeyState::kBroken) {
    End(g, WithPositionNow(
               *known, request.session,
               WithReason(absl::AbortedError(absl::StrCat(
                              "the request with this idempotency key broke off; the session "
                              "then stood at position ",
                              known->position)),
                          kReasonKeyBroken)));
  } else if (known->dropped_events) {
    End(g, WithPositionNow(*known, request.session,
                           WithReason(absl::AbortedError(absl::StrCat(
                                          "the request with this idempotency key finished at "
                                          "position ",
                                          known->position,
                                          ", and its answer is no longer "
                                          "kept")),
                                      kReasonKeyForgotten)));
  } else {
    parts_.stats.replayed.Add();
    const bool gone = IsSessionGone(*known, request.session);
    g.ReportEnd(Usage());
    for (TokenEvent event : known->events) {
      event.replayed = true;
      event.session_gone = gone;
      if (!event.is_last) {
        Send(g, std::move(event));
        continue;
      }
      Tell(g, event);
      MarkEnded(g, std::move(event));
    }
  }
  return true;
}

// Whether the named session that a request ran in has ended since; what has its name now, if
// anything does, is another.
bool EngineLoop::IsSessionGone(const KeyRecord& record, const SessionKey& key) const {
  if (key.name.empty()) return false;
  const Session* session = sessions_.Find(key);
  return session == nullptr || session->id != record.session_id;
}

// For a request that ended long ago: with the position that its session was left at, or, where the
// session is gone, 0, and words that say so.
absl::Status EngineLoop::WithPositionNow(const KeyRecord& record, const SessionKey& key,
                                         const absl::Status& status) const {
  if (!IsSessionGone(record, key)) return WithPosition(status, record.position);
  return WithReason(
      WithPosition(absl::Status(status.code(),
                                absl::StrCat(status.message(), "; the session has ended since")),
                   0),
      ReasonOf(status).value_or(""));
}

// Leaves of the prompt what the session does not hold yet. A beginning of the history is not fed
// again, and nothing that was fed can be taken back.
absl::Status EngineLoop::SkipKnownHistory(Generation& g, const Session& session) const {
  Prompt& prompt = g.request.prompt;
  const HistoryMatch match = MatchHistory(parts_.tokenizer, prompt.at_start, session.fed);
  if (!match.matches) {
    return WithPosition(
        WithReason(absl::FailedPreconditionError(absl::StrCat(
                       "the conversation sent does not begin with the ", session.fed_tokens,
                       " tokens that session \"", session.key.name, "\" remembers")),
                   kReasonHistory),
        session.position());
  }
  if (match.cuts_token) {
    return WithPosition(
        WithReason(absl::FailedPreconditionError("the session ends inside of a token"),
                   kReasonHistoryCut),
        session.fed.bytes);
  }
  if (match.tokens == static_cast<int64_t>(prompt.at_start.size())) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "session \"", session.key.name,
                          "\" remembers all of the conversation sent, and nothing new follows")),
                      kReasonHistory);
  }
  prompt.at_start.erase(prompt.at_start.begin(), prompt.at_start.begin() + match.tokens);
  prompt.continued.clear();
  prompt.same_everywhere = true;
  return absl::OkStatus();
}

// Whether the prompt says itself what follows the tokens that the session was fed.
bool EngineLoop::SupersedesPending(const Request& request, const Session& session) const {
  if (!session.pending_token.has_value()) return false;
  if (request.whole_history) return true;
  const std::vector<int32_t>& prompt = PromptAt(request, session.position());
  return request.repeats_end && !prompt.empty() && prompt.front() == *session.pending_token &&
         !IsText(parts_.tokenizer, *session.pending_token);
}

// What depends on where the session stands; null: it does not exist yet.
absl::Status EngineLoop::CheckAgainstSession(const Generation& g, const Session* session) const {
  const Request& request = g.request;
  if (g.named() && session == nullptr && !request.create_session) {
    return WithReason(
        absl::NotFoundError(absl::StrCat("there is no session \"", request.session.name, "\"")),
        kReasonNoSession);
  }
  if (g.named() && session == nullptr) {
    const absl::Status limit = sessions_.CheckOwnerLimit(request.session.owner);
    if (!limit.ok()) return limit;
  }
  const int64_t position = session == nullptr ? 0 : session->position();
  if (request.expected_position.has_value() && *request.expected_position != position) {
    return WithPosition(
        WithReason(absl::AbortedError(absl::StrCat("the session stands at position ", position,
                                                   ", expected ", *request.expected_position)),
                   kReasonPosition),
        position);
  }
  if (const absl::Status& reading = request.prompt.StatusAt(position); !reading.ok()) {
    return WithPosition(reading, position);
  }
  const bool pending = session != nullptr && session->pending_token.has_value();
  if (PromptAt(request, position).empty() && !pending) {
    return WithPosition(
        FieldError(PromptField(request.prompt),
                   "is empty, expected at least one token: the session has no pending token to go "
                   "on from"),
        position);
  }
  return absl::OkStatus();
}

int EngineLoop::SlabsNeeded(const Generation& g) const {
  const bool exists = g.named() && sessions_.Find(g.request.session) != nullptr;
  return (exists ? 0 : 1) + (g.forks() ? g.request.n - 1 : 0);
}

// Rows of a step that running requests may want, those left out whose readers are slow.
int EngineLoop::RowsTaken() const {
  int rows = 0;
  for (const auto& g : running_) {
    if (!g->ended && !g->stream->full()) rows += g->rows();
  }
  return rows;
}

void EngineLoop::AdmitWaiting() {
  slabs_awaited_ = 0;
  if (waiting_.empty()) return;
  int rows = RowsTaken();
  bool slab_is_awaited = false, row_is_awaited = false;  // by a request further ahead
  for (const auto& generation : waiting_) {
    Generation& g = *generation;
    if (g.ended) continue;
    const int needed = SlabsNeeded(g);
    const bool creates = g.named() && sessions_.Find(g.request.session) == nullptr;
    // Checked again, because other requests may have made sessions while this one waited.
    if (const absl::Status limit =
            creates ? sessions_.CheckOwnerLimit(g.request.session.owner) : absl::OkStatus();
        !limit.ok()) {
      End(g, limit);
    } else if (needed > 0 && needed > sessions_.free_slabs() + sessions_.ephemeral_slabs()) {
      End(g, sessions_.NoFreeSlab(needed, slabs_awaited_));
    } else if (needed > 0 && (slab_is_awaited || needed > sessions_.free_slabs())) {
      slab_is_awaited = true;  // later ones must not take what this one waits for
      Queue(g, needed);
    } else if (row_is_awaited || (rows > 0 && rows + g.rows() > options_.max_rows)) {
      row_is_awaited = true;
      Queue(g, needed);
    } else {
      rows += g.rows();
      Admit(g);
    }
  }
  for (auto& generation : waiting_) {
    if (generation->is_admitted()) running_.push_back(std::move(generation));
  }
  std::erase(waiting_, nullptr);
}

void EngineLoop::Queue(Generation& g, int slabs_needed) {
  if (!g.queued && queued_ >= options_.max_queued_requests) {
    return End(g, QueueFullError(absl::StrCat(queued_, " requests are waiting")));
  }
  if (!g.queued) ++queued_;
  g.queued = true;
  slabs_awaited_ += slabs_needed;
}

void EngineLoop::LeaveQueue(Generation& g) {
  if (g.queued) --queued_;
  g.queued = false;
}

void EngineLoop::Admit(Generation& g) {
  const Request& request = g.request;
  g.admitted = Now();
  Session* session = g.named() ? sessions_.Find(request.session) : nullptr;
  g.created_session = session == nullptr;
  PrepareFeed(g, session);
  PrepareDraws(g);
  g.unfinished = request.n;
  g.choices.reserve(request.n);
  for (int i = 0; i < request.n; ++i) g.choices.emplace_back(g.rules).index = i;
  BeginFirstChoice(g, session);
  if (g.forks()) g.reserved_slots = sessions_.Reserve(request.n - 1);
  LeaveQueue(g);
  SendStart(g);
  if (g.must_fork()) Fork(g);
}

// The session's pending token, unless the prompt says what takes its place, and the prompt.
void EngineLoop::PrepareFeed(Generation& g, Session* session) const {
  const int64_t position = session == nullptr ? 0 : session->position();
  if (session != nullptr && SupersedesPending(g.request, *session)) {
    session->history.PopLast();
    session->pending_token.reset();
  }
  const std::vector<int32_t>& prompt = PromptAt(g.request, position);
  g.usage.resumed_tokens = session == nullptr ? 0 : session->fed_tokens;
  if (session != nullptr && session->pending_token.has_value()) {
    g.feeds_pending = true;
    g.shown_prompt = 1;
    g.feed.push_back(*session->pending_token);
  }
  g.feed.insert(g.feed.end(), prompt.begin(), prompt.end());
  g.usage.prompt_tokens = g.feed_tokens();
  g.request.prompt = {};
}

void EngineLoop::PrepareDraws(Generation& g) const {
  const Request& request = g.request;
  const PhiloxCounter bits = RandomBits(seed_, 0, static_cast<uint64_t>(g.arrival));
  g.seed = request.sampling.seed.value_or(uint64_t{bits[0]} << 32 | bits[1]);
  g.rules = StopRules(request.stop, parts_.end_tokens);
  g.sampler = Sampler(request.sampling, g.seed, g.rules.StopTokens(), request.logprobs,
                      request.prompt_logprobs);
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
    stats.resumed_as(resumes ? ResumeOutcome::kHot : ResumeOutcome::kCold).Add();
  }
  stats.queue_seconds.Observe(absl::ToDoubleSeconds(g.admitted - g.submitted));
  stats.resumed_tokens.Add(g.usage.resumed_tokens);
  TokenEvent start;
  start.is_start = true;
  start.seed = g.seed;
  start.usage = g.usage;
  start.timings.queue = g.admitted - g.submitted;
  Send(g, std::move(start));
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
