// EngineLoop: from a submitted request to its first row, or to the answer that was given before.
#include <utility>

#include "base/random.h"
#include "engine/engine_loop.h"
#include "engine/repetition.h"
#include "engine/session_memory.h"

namespace mneme {

// From the mailbox to the queue.
void EngineLoop::Take(Command command) {
  if (command.work != nullptr) return command.work();
  TakeIn(queue_.Add(std::move(command.submitted)));
}

void EngineLoop::TakeIn(Generation& g) {
  if (!g.request.idempotency_key.empty() && AnswerFromRecord(g)) {
    return sessions_.DropIfUnused(g.request.session);
  }
  const absl::Status claimed = queue_.Claim(g);
  claimed.ok() ? SearchCut(g) : End(g, claimed);
  if (g.ended) sessions_.DropIfUnused(g.request.session);
}

// Answers a repeated idempotency key; false if the key is new, which then has a record.
bool EngineLoop::AnswerFromRecord(Generation& g) {
  const Request& request = g.request;
  const uint64_t digest = RequestDigest(request);
  KeyRecord* known = keys_.Find(request.session.owner, request.idempotency_key);
  if (known == nullptr) {
    const absl::StatusOr<KeyRecord*> stored = FindStoredRecord(request);
    if (!stored.ok()) {
      End(g, stored.status());
      return true;
    }
    known = *stored;
  }
  if (known == nullptr) {
    g.record = &keys_.Insert(request.session.owner, request.idempotency_key, digest);
    return false;
  }
  if (Attach(g, *known)) return true;
  const absl::Status kept =
      CheckRepetition(*known, digest, request, sessions_.Recall(request.session));
  kept.ok() ? AnswerFrom(g, *known) : End(g, kept);
  return true;
}

// Gives a request that is let in its session, its slabs and what to feed.
void EngineLoop::Begin(Generation& g) {
  const Request& request = g.request;
  g.admitted = Now();
  if (g.errand != nullptr) return RunErrand(g);
  Session* session = BeginSession(g);
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
  BeginPrefix(g);
  if (BeginLoad(g)) return;                                 // FinishLoads
  if (g.prefix != nullptr && !g.prefix->started()) return;  // StartPrefixes
  SendStart(g);
  if (g.must_fork()) Fork(g);
}

// The session that it has when it is let in; null: one is to begin.
Session* EngineLoop::BeginSession(Generation& g) {
  Session* session = g.named() ? sessions_.Find(g.request.session) : nullptr;
  g.created_session = session == nullptr || g.goes_back;
  if (session == nullptr) return nullptr;
  if (g.goes_back) BeginEdit(g, *session);
  if (g.request.remember) return session;
  g.copy = sessions_.CopyEphemeral(*session);
  g.on_copy = true;
  g.claims_session = false;
  sessions_.Unclaim(g.request.session, /*ran=*/false);
  return g.copy.get();
}

// In `session`, or, if that is null, in one that begins here.
void EngineLoop::BeginFirstChoice(Generation& g, Session* session) {
  const Request& request = g.request;
  Choice& first = g.choices[0];
  if (g.copy != nullptr) {
    first.ephemeral = std::move(g.copy);
  } else if (session != nullptr) {
    // Counts from when the session is idle again.
    if (request.session_ttl != absl::ZeroDuration()) session->ttl = request.session_ttl;
  } else if (g.named()) {
    NewSession options = request.session_ttl;
    options.durability = request.durability;
    options.memory_seed = request.memory_seed;
    session = &sessions_.CreateClaimed(request.session, options);
  } else {
    first.ephemeral = sessions_.BeginEphemeral();
    session = first.ephemeral.get();
    session->memory_seed = request.memory_seed;
  }
  SeedMemory(parts_.model, parts_.pool, *session);
  if (g.opening.bytes > 0) session->opening = g.opening;
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
    const Session& session = *g.choices[0].session;
    stats
        .resumed_as(g.goes_back             ? ResumeOutcome::kRewound
                    : !resumes              ? ResumeOutcome::kCold
                    : session.replayed >= 0 ? ResumeOutcome::kStored
                    : session.fetched       ? ResumeOutcome::kParked
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
