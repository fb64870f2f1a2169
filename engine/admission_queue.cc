#include "engine/admission_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "engine/whole_history.h"

namespace mneme {
namespace {

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

bool IsAway(const Session& session) {
  return session.residence == Residence::kParked || session.residence == Residence::kStored;
}

// Whether nobody needs what the session has elsewhere, as it begins anew.
bool LeavesState(const Generation& g, const Session& session) {
  return g.goes_back && IsAway(session);
}

// Rows of a step that running requests may want, those left out whose readers are slow or whose
// prompt's beginning is on its way.
int RowsTaken(const std::vector<std::unique_ptr<Generation>>& running) {
  int rows = 0;
  for (const auto& g : running) {
    if (!g->ended && !g->lends_rows()) rows += g->rows();
  }
  return rows;
}

}  // namespace

AdmissionQueue::AdmissionQueue(SessionManager& sessions, const Tokenizer* tokenizer,
                               EngineStats& stats, const Options& options)
    : sessions_(sessions), tokenizer_(tokenizer), stats_(stats), options_(options) {}

Generation& AdmissionQueue::Add(std::unique_ptr<Generation> submitted) {
  Generation& g = *submitted;
  g.arrival = arrivals_++;
  const auto place =
      std::upper_bound(waiting_.begin(), waiting_.end(), g,
                       [](const Generation& a, const auto& b) { return Place(a) < Place(*b); });
  waiting_.insert(place, std::move(submitted));
  return g;
}

std::unique_ptr<Generation> AdmissionQueue::Remove(const Generation& g) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& waiting) { return waiting.get() == &g; });
  std::unique_ptr<Generation> removed = std::move(*found);
  waiting_.erase(found);
  return removed;
}

// Null if it names none, or one that does not exist yet.
Session* AdmissionQueue::SessionOf(const Generation& g) const {
  return g.named() ? sessions_.Find(g.request.session) : nullptr;
}

absl::Status AdmissionQueue::Claim(Generation& g) {
  const Request& request = g.request;
  Session* session = sessions_.Recall(request.session);
  if (g.named() && sessions_.IsClaimed(request.session)) {
    stats_.resumed_as(ResumeOutcome::kRefused).Add();
    absl::Status busy = WithReason(
        absl::AbortedError(absl::StrCat("session \"", request.session.name,
                                        "\" is busy: another request for it waits or runs")),
        kReasonSessionBusy);
    return session == nullptr ? busy : WithPosition(std::move(busy), session->position());
  }
  if (g.errand != nullptr) {
    sessions_.Claim(request.session);
    g.claims_session = true;
    return absl::OkStatus();
  }
  if (request.whole_history && session != nullptr) {
    MNEME_RETURN_IF_ERROR(FitHistory(g, *session, tokenizer_));
  }
  const absl::Status fits = CheckAgainstSession(g, session);
  if (!fits.ok()) {
    if (g.named()) stats_.resumed_as(ResumeOutcome::kRefused).Add();
    return fits;
  }
  const bool begins = session == nullptr || g.goes_back;
  DropUnusedReading(g.request.prompt, begins ? 0 : session->position());
  g.on_copy = !request.remember && begins;
  if (!g.named()) return absl::OkStatus();
  sessions_.Claim(request.session);
  g.claims_session = true;
  if (session != nullptr) session->doubted_at.reset();
  return absl::OkStatus();
}

// Checks what depends on where the session stands; null: it does not exist yet.
absl::Status AdmissionQueue::CheckAgainstSession(const Generation& g,
                                                 const Session* session) const {
  const Request& request = g.request;
  if (g.named() && session == nullptr) {
    MNEME_RETURN_IF_ERROR(sessions_.CheckBeginning(request.session, request.replaces_lost));
    if (!request.create_session) {
      return WithReason(
          absl::NotFoundError(absl::StrCat("there is no session \"", request.session.name, "\"")),
          kReasonNoSession);
    }
    if (request.remember) {
      MNEME_RETURN_IF_ERROR(sessions_.CheckOwnerLimit(request.session.owner));
    }
  }
  const int64_t position = session == nullptr ? 0 : session->position();
  if (session != nullptr &&
      request.durability.value_or(session->durability) != session->durability) {
    const bool durable = session->durability == Durability::kTurn;
    return WithPosition(WithReason(absl::FailedPreconditionError(absl::StrCat(
                                       "session \"", request.session.name, "\" has had durability ",
                                       durable ? "turn" : "none",
                                       " since it began, and keeps it; the request asks "
                                       "for ",
                                       durable ? "none" : "turn")),
                                   kReasonDurability),
                        position);
  }
  if (session != nullptr && request.memory_seed.has_value() &&
      *request.memory_seed != session->memory_seed.value_or(options_.memory_seed)) {
    return WithPosition(
        WithReason(
            absl::FailedPreconditionError(absl::StrCat(
                "session \"", request.session.name, "\" has drawn from the seed ",
                session->memory_seed.value_or(options_.memory_seed),
                " since it began, and keeps it; the request asks for ", *request.memory_seed)),
            kReasonMemorySeed),
        position);
  }
  if (request.expected_position.has_value() && *request.expected_position != position) {
    return WithPosition(
        WithReason(absl::AbortedError(absl::StrCat("the session stands at position ", position,
                                                   ", expected ", *request.expected_position)),
                   kReasonPosition),
        position);
  }
  if (session != nullptr) MNEME_RETURN_IF_ERROR(SessionLog::CheckDoubt(*session, request));
  const Session* base = g.goes_back ? nullptr : session;  // what the prompt is fed to
  const int64_t fed_to = base == nullptr ? 0 : position;
  if (const absl::Status& reading = request.prompt.StatusAt(fed_to); !reading.ok()) {
    return WithPosition(reading, position);
  }
  const bool pending = base != nullptr && base->pending_token.has_value();
  if (request.prompt.At(fed_to).empty() && !pending) {
    return WithPosition(
        FieldError(PromptField(request.prompt),
                   "is empty, expected at least one token: the session has no pending token to go "
                   "on from"),
        position);
  }
  MNEME_RETURN_IF_ERROR(CheckContext(request, base));
  if (!g.named() || !request.remember) return absl::OkStatus();
  const absl::Status storage = sessions_.CheckStorage(request.session, session, request.durability);
  return storage.ok() ? storage : WithPosition(storage, position);
}

// A prompt that the session's state has no room for is refused before anything of it is fed.
absl::Status AdmissionQueue::CheckContext(const Request& request, const Session* session) const {
  if (!options_.max_context.has_value()) return absl::OkStatus();
  const int64_t most = *options_.max_context;
  const int64_t fed = session == nullptr ? 0 : session->fed_tokens;
  const int64_t tokens = TokensToFeed(request, session, tokenizer_);
  if (fed + tokens <= most) return absl::OkStatus();
  // Whoever counts what was sent finds one more where the session's last token was not fed yet.
  const bool with_pending =
      tokens >
      static_cast<int64_t>(request.prompt.At(session == nullptr ? 0 : session->position()).size());
  const std::string fault = absl::StrCat(
      "would feed ", tokens, tokens == 1 ? " token" : " tokens", " to a session that was fed ", fed,
      ", expected at most ", most, " together (", options_.context_bound, ")",
      with_pending ? "; the last token of its answer before is one of them, as it was not fed yet"
                   : "");
  return WithPosition(
      WithReason(FieldError(PromptField(request.prompt), fault), kReasonContextFull),
      session == nullptr ? 0 : session->position());
}

// A session that is parked comes first, and choices wait until it is there.
int AdmissionQueue::SlabsNeeded(const Generation& g) const {
  const Session* session = SessionOf(g);
  const int own = (g.forks() ? g.request.n - 1 : 0) + (g.request.remember ? 0 : 1);
  if (session == nullptr) return g.on_copy ? own : 1 + own;
  if (session->residence == Residence::kResident) return own;
  if (LeavesState(g, *session)) return 1 + own;
  return IsAway(*session) ? 1 : 0;
}

// Whether what it needs of slabs adds to the sessions that there are.
bool AdmissionQueue::IsNewcomer(const Generation& g) const {
  const Session* session = SessionOf(g);
  return session == nullptr || session->residence == Residence::kResident;
}

absl::Status AdmissionQueue::CheckRoom(const Generation& g, int slabs_needed) const {
  // Checked again, because other requests may have made sessions while this one waited.
  if (g.named() && SessionOf(g) == nullptr) {
    MNEME_RETURN_IF_ERROR(sessions_.CheckOwnerLimit(g.request.session.owner));
  }
  const Parking& parking = sessions_.parking();
  const int expected = sessions_.free_slabs() + sessions_.ephemeral_slabs() + parking.leaving();
  if (slabs_needed == 0 || slabs_needed <= expected ||
      slabs_needed <= expected + parking.Obtainable(SessionOf(g), IsNewcomer(g))) {
    return absl::OkStatus();
  }
  return sessions_.NoFreeSlab(slabs_needed, slabs_awaited_);
}

void AdmissionQueue::AdmitInto(std::vector<std::unique_ptr<Generation>>& running,
                               absl::FunctionRef<void(Generation&)> begin,
                               absl::FunctionRef<void(Generation&, const absl::Status&)> refuse) {
  slabs_awaited_ = 0;
  if (waiting_.empty()) return;
  int rows = RowsTaken(running);
  bool slab_is_awaited = false, row_is_awaited = false;  // by a request further ahead
  int next = 0;    // requests that wait for a row with all else that they need, or come to
  int wanted = 0;  // slabs, by those that lack them so far
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Generation& g = *waiting_[i];
    if (g.ended || g.is_searching()) continue;
    absl::Status refusal = CheckFetched(g);
    if (refusal.ok()) refusal = CheckRoom(g, SlabsNeeded(g));
    if (refusal.ok()) {
      // While it waits for a row its session may come, but only so many sessions do at once.
      if (next < options_.max_rows && !(row_is_awaited && HasSession(g))) {
        MakeRoom(i, wanted + SlabsNeeded(g));
        if (!slab_is_awaited) BringBack(g);
      }
      const int needed = SlabsNeeded(g);
      if (needed > 0 && (slab_is_awaited || needed > sessions_.free_slabs())) {
        slab_is_awaited = true;  // later ones must not take what this one waits for
        wanted += needed;
        ++next;
        refusal = Wait(g, needed);
      } else if (!HasSession(g)) {
        ++next;
        refusal = Wait(g, needed);
      } else if (row_is_awaited || (rows > 0 && rows + g.rows() > options_.max_rows)) {
        row_is_awaited = true;
        ++next;
        refusal = Wait(g, needed);
      } else {
        rows += g.rows();
        begin(g);
        CHECK(g.is_admitted());
        Leave(g);
      }
    }
    if (!refusal.ok()) refuse(g, refusal);
  }
  for (auto& waiting : waiting_) {
    if (waiting->is_admitted()) running.push_back(std::move(waiting));
  }
  std::erase(waiting_, nullptr);
}

// The error of a request whose session did not come back from the store.
absl::Status AdmissionQueue::CheckFetched(const Generation& g) const {
  Session* session = SessionOf(g);
  return session == nullptr ? absl::OkStatus()
                            : std::exchange(session->not_there, absl::OkStatus());
}

// Whether its session, if that exists already, has its state in a slab.
bool AdmissionQueue::HasSession(const Generation& g) const {
  const Session* session = SessionOf(g);
  return session == nullptr || session->residence == Residence::kResident ||
         LeavesState(g, *session);
}

void AdmissionQueue::BringBack(const Generation& g) {
  if (HasSession(g)) return;
  Session& session = *SessionOf(g);
  if (session.residence == Residence::kLeaving || sessions_.free_slabs() > 0) {
    sessions_.parking().Fetch(session);
  }
}

void AdmissionQueue::MakeRoom(size_t i, int slabs) {
  Parking& parking = sessions_.parking();
  int lacking = slabs - sessions_.free_slabs() - parking.leaving();
  if (!parking.enabled() || lacking <= 0) return;
  const bool newcomer = IsNewcomer(*waiting_[i]);
  lacking -= parking.ParkResting(lacking, newcomer);
  for (size_t behind = waiting_.size(); lacking > 0 && behind-- > i + 1;) {
    if (waiting_[behind]->ended) continue;
    Session* session = SessionOf(*waiting_[behind]);
    if (session != nullptr && parking.Park(*session, newcomer)) --lacking;
  }
}

absl::Status AdmissionQueue::Wait(Generation& g, int slabs_needed) {
  if (!g.queued && queued_ >= options_.max_queued) {
    return QueueFullError(absl::StrCat(queued_, " requests are waiting"));
  }
  if (!g.queued) ++queued_;
  g.queued = true;
  slabs_awaited_ += slabs_needed;
  return absl::OkStatus();
}

void AdmissionQueue::Leave(Generation& g) {
  if (g.queued) --queued_;
  g.queued = false;
}

void AdmissionQueue::DropEnded() {
  std::erase_if(waiting_, [](const auto& g) { return g->ended; });
}

}  // namespace mneme
