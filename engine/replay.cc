// EngineLoop: sessions that come from the store, fed their log as if it were a prompt, and commands
// that wait for that.
#include "engine/replay.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"
#include "engine/session_memory.h"
#include "engine/status_payload.h"

namespace mneme {

SessionReplay::SessionReplay(Session& whole, StoredState state)
    : session(whole), from(std::move(state)) {
  fed.slot = session.slot;
  fed.fed_tokens = from.tokens;
  fed.memory_seed = session.memory_seed;
}

const Event* SessionReplay::Next() {
  while (turn_ < from.turns.size() && event_ == from.turns[turn_].events.size()) {
    ++turn_;
    event_ = 0;
  }
  return turn_ == from.turns.size() ? nullptr : &from.turns[turn_].events[event_++];
}

absl::StatusOr<TokenHistory> RestoreHistory(const StoredState& state, int capacity) {
  TokenHistory history(capacity);
  history.Restore(state.marks);
  bool pending = state.has_pending;
  for (const Turn& turn : state.turns) {
    const absl::StatusOr<LoggedFacts> facts = LoggedFacts::Decode(turn.facts);
    if (!facts.ok()) return facts.status();
    if (facts->dropped_pending && pending) history.PopLast();
    if (facts->dropped_pending || facts->fed_pending) pending = false;
    if (facts->sent_before) history.TakeAsPrompt();
    int64_t at = facts->fed_pending ? -1 : 0;  // in the history since it was drawn
    for (const Event& event : turn.events) {
      const auto* fed = std::get_if<TokensFed>(&event);
      if (fed == nullptr) continue;
      for (const int32_t token : fed->tokens) {
        if (at >= 0) history.Push(token, /*generated=*/at >= facts->prompted);
        ++at;
      }
    }
    if (turn.pending_token.has_value() && !pending) {
      history.Push(*turn.pending_token, /*generated=*/true);
    }
    pending = turn.pending_token.has_value();
  }
  return history;
}

void EngineLoop::BeginReplays() {
  while (std::optional<Parking::Replay> next = sessions_.parking().TakeReplay()) {
    auto stream = std::make_shared<TokenStream>(options_.stream_capacity_events);
    auto g = std::make_unique<Generation>(Request(), std::move(stream), Now());
    g->admitted = Now();
    g->replay = std::make_unique<SessionReplay>(*next->session, std::move(next->from));
    g->request.stop.max_tokens = 0;
    g->unfinished = 1;
    Choice& choice = g->choices.emplace_back(g->rules);
    choice.session = &g->replay->fed;
    SeedMemory(parts_.model, parts_.pool, g->replay->fed);
    choice.last_run = pipeline_.steps();
    FeedNext(*g);
    if (!g->ended) running_.push_back(std::move(g));
  }
}

// Up to the next tokens, or to the end.
void EngineLoop::FeedNext(Generation& g) {
  SessionReplay& replay = *g.replay;
  while (const Event* event = replay.Next()) {
    if (const auto* tokens = std::get_if<TokensFed>(event)) {
      if (tokens->tokens.empty()) continue;
      g.feed = tokens->tokens;
      g.choices[0].cursor = 0;
      return;
    }
    const auto* const seeded = std::get_if<MemorySeeded>(event);
    if (seeded != nullptr && seeded->seed == replay.session.memory_seed) continue;  // it has it
    absl::Status status = absl::FailedPreconditionError(
        "the session's log has an event that this server cannot repeat");
    if (const auto* range = std::get_if<RangeForgotten>(event)) {
      status = ForgetAgain(replay.fed, *range);
    }
    if (!status.ok()) return EndReplay(g, status);
  }
  const absl::Status right = CheckReplayed(replay);
  absl::IsDataLoss(right) ? ReplayAgain(g) : EndReplay(g, right);
}

// With what the store has beside the snapshot that this began with.
void EngineLoop::ReplayAgain(Generation& g) {
  g.ended = true;
  g.choices[0].finish = FinishReason::kLength;
  sessions_.parking().ReplayAgain(g.replay->session, g.replay->from.snapshot);
}

absl::Status EngineLoop::ForgetAgain(const Session& session, const RangeForgotten& range) {
  const int64_t segment = parts_.model.info().segment;
  if (segment <= 0 || range.begin % segment != 0 || range.end % segment != 0) {
    return absl::DataLossError(absl::StrCat("positions ", range.begin, " to ", range.end,
                                            " are no segments of this model"));
  }
  return ForgetEngrams(parts_.model, parts_.pool, session, range.begin / segment,
                       range.end / segment)
      .status();
}

void EngineLoop::CommitReplay(Generation& g, int64_t fed) {
  Choice& choice = g.choices[0];
  SessionReplay& replay = *g.replay;
  replay.fed.fed_tokens += fed;
  replay.replayed += fed;
  // Of a session that went back into a turn, the log does not say how many were evicted there.
  const StepReports& reports = pipeline_.result().reports;
  for (int i = 0; i < reports.count(); ++i) {
    if (reports[i][kReportSlot] != replay.fed.slot) continue;
    replay.session.evictions = reports[i][kReportEvicted];
  }
  parts_.stats.replayed_tokens.Add(fed);
  choice.cursor += fed;
  choice.last_run = pipeline_.steps();
  if (choice.cursor == g.feed_tokens()) FeedNext(g);
}

// DATA_LOSS: what was read does not lead to where the session stood. FAILED_PRECONDITION: nothing
// is wrong with it, but with this server's room for engrams it leads elsewhere.
absl::Status EngineLoop::CheckReplayed(const SessionReplay& replay) const {
  const SessionRecord& record = replay.from.record;
  if (replay.fed.fed_tokens != record.fed_tokens) {
    return absl::DataLossError(absl::StrCat("was fed ", record.fed_tokens,
                                            " tokens, its log leads to ", replay.fed.fed_tokens));
  }
  if (replay.session.evictions > 0) {
    MNEME_RETURN_IF_ERROR(log_->CheckCapacity(
        record, absl::StrCat("while its log was fed again, engrams were evicted for want of room ",
                             replay.session.evictions, " times")));
  }
  const auto& digest = log_->options().digest;
  const absl::StatusOr<LoggedFacts> facts = LoggedFacts::Decode(record.facts);
  // Other arithmetic has other bits.
  if (digest == nullptr || record.state_digest == 0 || !facts.ok() ||
      facts->arithmetic != log_->options().arithmetic) {
    return absl::OkStatus();
  }
  if (digest(replay.fed) == record.state_digest) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(log_->CheckCapacity(record, "its log leads to another state here"));
  return absl::DataLossError(
      absl::StrCat("has another state after ", record.fed_tokens, " tokens"));
}

void EngineLoop::EndReplay(Generation& g, const absl::Status& status) {
  if (g.ended) return;
  g.ended = true;
  g.choices[0].finish = FinishReason::kLength;
  SessionReplay& replay = *g.replay;
  absl::StatusOr<TokenHistory> history = RestoreHistory(replay.from, options_.history_tokens);
  absl::Status ended = status;
  ended.Update(history.status());
  if (ended.ok()) replay.session.replayed = replay.replayed;
  sessions_.parking().FinishReplay(replay.session,
                                   history.ok() ? *std::move(history) : TokenHistory(), ended);
}

void EngineLoop::OnSession(const SessionKey& key, std::function<void(const absl::Status&)> work) {
  if (!sessions_.RestsInStore(key)) return work(absl::OkStatus());
  auto errand = NewErrand(key);
  errand->errand = std::move(work);
  Take({.submitted = std::move(errand)});
}

void EngineLoop::OnRoom(const SessionKey& key, const NewSession& options, const SessionKey* parent,
                        int64_t tokens, std::function<void(const absl::Status&)> work) {
  if (!sessions_.MustAwaitRoom(key, options, parent, tokens, queue_.slabs_awaited())) {
    return work(absl::OkStatus());
  }
  auto errand = NewErrand(key);
  errand->request.create_session = true;
  errand->errand = std::move(work);
  Take({.submitted = std::move(errand)});
}

void EngineLoop::OnLoggedSession(const SessionKey& key, LoggedWork work) {
  const Session* session = sessions_.IsClaimed(key) ? nullptr : sessions_.Recall(key);
  const bool reads = prefixes_ != nullptr && log_ != nullptr && session != nullptr &&
                     session->fed_tokens > 0 &&
                     prefixes_->TokensOf(session->path, session->fed_tokens).empty();
  if (!reads) {
    return OnSession(key,
                     [work = std::move(work)](const absl::Status& status) { work(status, {}); });
  }
  auto errand = NewErrand(key);
  errand->reads_log = true;
  errand->errand = [&g = *errand, work = std::move(work)](const absl::Status& status) {
    const bool knows = g.search != nullptr && g.search->done() && g.search->found().ok();
    work(status, knows ? g.search->found()->tokens : std::vector<int32_t>());
  };
  Take({.submitted = std::move(errand)});
}

std::unique_ptr<Generation> EngineLoop::NewErrand(const SessionKey& key) {
  auto errand = std::make_unique<Generation>(
      Request(), std::make_shared<TokenStream>(options_.stream_capacity_events), Now());
  errand->request.session = key;
  errand->request.create_session = false;
  return errand;
}

// The session is idle then, as the command expects it to be.
void EngineLoop::RunErrand(Generation& g) {
  g.choices.emplace_back(g.rules).finish = FinishReason::kLength;
  EndErrand(g, absl::OkStatus());
}

void EngineLoop::EndErrand(Generation& g, const absl::Status& status) {
  g.ended = true;
  queue_.Leave(g);
  ReleaseSessions(g, status);
  g.errand(status);
}

}  // namespace mneme
