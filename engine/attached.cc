// EngineLoop: a request whose idempotency key is that of one that still runs feeds nothing. It is
// told what that one says, from its record, and ends with it; should that one come to nothing, it
// runs.
#include <memory>
#include <utility>

#include "engine/engine_loop.h"
#include "engine/repetition.h"

namespace mneme {
namespace {

// The part of a recorded event that was not told yet.
TokenEvent Rest(const TokenEvent& whole, const Attachment& told) {
  TokenEvent rest = whole;
  rest.replayed = true;
  rest.text.erase(0, told.text);
  rest.token_ids.erase(rest.token_ids.begin(),
                       rest.token_ids.begin() + static_cast<int64_t>(told.tokens));
  rest.logprobs.erase(rest.logprobs.begin(),
                      rest.logprobs.begin() + static_cast<int64_t>(told.logprobs));
  return rest;
}

}  // namespace

// False: there is no record to go by, or too many do.
bool EngineLoop::Attach(Generation& g, KeyRecord& record) {
  if (record.state != KeyState::kRunning || record.digest != RequestDigest(g.request)) return false;
  const auto most = static_cast<size_t>(options_.max_queued_requests);
  if (record.dropped_events || attached_.size() >= most) return false;
  g.attachment = std::make_unique<Attachment>();
  g.attachment->record = &record;
  g.deadline = g.request.deadline;  // which ends the listening
  ++record.followers;
  attached_.push_back(queue_.Remove(g));
  return true;
}

// Whatever records have by now, as far as readers take it.
void EngineLoop::HandOn() {
  for (const auto& g : attached_) {
    if (g->ended || g->attachment->record == nullptr) continue;
    Attachment& told = *g->attachment;
    const std::vector<TokenEvent>& events = told.record->events;
    // Nothing is told of one that has only begun: should it end so, this one begins.
    while (told.event < events.size() && events.size() > 1 && !events[told.event].is_last &&
           !g->stream->full()) {
      const TokenEvent& whole = events[told.event];
      const bool is_new =
          !told.begun || whole.text.size() > told.text || whole.token_ids.size() > told.tokens;
      if (is_new) outbox_.Send(*g, Rest(whole, told));
      const bool may_grow = !whole.is_start && whole.finish == FinishReason::kNone;
      if (told.event + 1 < events.size() || !may_grow) {
        told = {.record = told.record, .event = told.event + 1};
        continue;
      }
      told.begun = true;
      told.text = whole.text.size();
      told.tokens = whole.token_ids.size();
      told.logprobs = whole.logprobs.size();
      break;
    }
  }
}

// Those events of a finished request that this one was not told.
void EngineLoop::AnswerFrom(Generation& g, const KeyRecord& known) {
  const Request& request = g.request;
  const Session* session = sessions_.Recall(request.session);
  const bool gone = request.remember && IsSessionGone(known, request.session, session);
  parts_.stats.replayed.Add();
  g.ReportEnd(Usage());
  Attachment told = g.attachment == nullptr ? Attachment() : *g.attachment;
  for (size_t i = told.event; i < known.events.size(); ++i) {
    TokenEvent event = Rest(known.events[i], told);
    told = {};
    event.session_gone = gone;
    if (!event.is_last) {
      outbox_.Send(g, std::move(event));
      continue;
    }
    Tell(g, event);
    MarkEnded(g, std::move(event));
  }
}

// Whether its reader has left, and nobody else wants the answer. Where others do, the reader is
// told that it has ended, and it goes on.
bool EngineLoop::IsUnwanted(Generation& g) {
  const bool followed = g.record != nullptr && g.record->followers > 0;
  if (g.taken_over) return !followed;
  if (!g.stream->cancelled()) return false;
  if (!followed) return true;
  TokenEvent last = {.finish = FinishReason::kCancelled, .is_last = true};
  last.status = absl::CancelledError("the request was cancelled, and goes on for its repetition");
  last.usage = g.usage;
  outbox_.KeepLast(g, std::move(last));
  g.stream = std::make_shared<TokenStream>(options_.stream_capacity_events);
  g.stream->Abandon();
  g.taken_over = true;
  absl::MutexLock lock(&mu_);  // one more that will have a last event
  ++unended_;
  ++open_;
  return false;
}

// It has ended before the one that it repeats.
void EngineLoop::LeaveRecord(Generation& g) {
  if (g.attachment == nullptr || g.attachment->record == nullptr) return;
  KeyRecord& record = *std::exchange(g.attachment->record, nullptr);
  // A request that only waited for this one to be told ends now.
  if (--record.followers == 0) mailbox_.Wake();
}

// The request of the record has ended. Not OK: why it is as if it had never come.
void EngineLoop::DismissAttached(KeyRecord& record, const absl::Status& forgotten) {
  for (size_t i = 0; record.followers > 0 && i < attached_.size(); ++i) {
    Generation& g = *attached_[i];
    if (g.ended || g.attachment->record != &record) continue;
    --record.followers;
    g.attachment->record = nullptr;
    if (!forgotten.ok()) {
      const bool was_told = g.attachment->begun || g.attachment->event > 0;
      was_told ? End(g, forgotten) : mailbox_.Wake();  // TakeAgain
      continue;
    }
    const absl::Status kept =
        CheckRepetition(record, record.digest, g.request, sessions_.Recall(g.request.session));
    kept.ok() ? AnswerFrom(g, record) : End(g, kept);
  }
}

void EngineLoop::TakeAgain() {
  for (size_t i = 0; i < attached_.size(); ++i) {
    if (attached_[i]->ended || attached_[i]->attachment->record != nullptr) continue;
    std::unique_ptr<Generation> g = std::move(attached_[i]);
    attached_.erase(attached_.begin() + static_cast<int64_t>(i--));
    g->attachment.reset();
    if (g->request.detached) g->deadline = absl::InfiniteDuration();
    TakeIn(queue_.Add(std::move(g)));
  }
}

}  // namespace mneme
