// SessionManager: changes of sessions that the log is told of beside their turns.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "engine/sessions/session_manager.h"

namespace mneme {

void ForgottenRange::Add(int64_t from, int64_t to, int64_t position) {
  begin = from;
  end = to;
  at = position;
  std::erase_if(all, [&](const std::pair<int64_t, int64_t>& known) {
    if (known.first > to || known.second < from) return false;
    from = std::min(from, known.first);
    to = std::max(to, known.second);
    return true;
  });
  all.insert(std::ranges::upper_bound(all, std::pair(from, to)), {from, to});
  if (all.size() > kMostKnown) all.erase(all.begin());
}

bool ForgottenRange::Has(int64_t from, int64_t to) const {
  return std::ranges::any_of(
      all, [&](const auto& known) { return known.first <= from && to <= known.second; });
}

SessionManager::Done SessionManager::Claiming(const SessionKey& key, Done done, bool takes_back) {
  Claim(key);
  ++commands_;
  return [this, key, takes_back, waiting = std::move(done)](const absl::Status& status) {
    --commands_;
    Session* session = Unclaim(key, /*ran=*/false);
    if (session != nullptr && !status.ok() && takes_back) TakeBack(*session);
    PublishGauges();
    waiting(status);
  };
}

bool SessionManager::MustAwaitRoom(const SessionKey& key, const NewSession& options,
                                   const SessionKey* parent, int64_t tokens, int slabs_awaited) {
  if (!parking_.stores() || slabs_awaited < free_slabs()) return false;
  Durability durability = options.durability.value_or(default_durability());
  if (parent != nullptr) {
    const absl::StatusOr<Session*> found = FindIdle(*parent);
    if (!found.ok()) return false;  // which Fork says
    const bool rests_in_store = (*found)->residence == Residence::kStored;
    durability = (*found)->durability;
    tokens = (*found)->fed_tokens;
    if (rests_in_store) DropIfUnused(*parent);
    if (rests_in_store) return false;
  }
  if (durability == Durability::kTurn || parking_.HasRoomForNewcomer(tokens)) return false;
  if (!CheckNew(key, options).ok()) return false;
  return parking_.leaving() + parking_.Obtainable(/*keeper=*/nullptr, /*newcomer=*/true) > 0;
}

void SessionManager::LogForgetting(Session& session, int64_t begin, int64_t end, Done done) {
  session.history.Forget(begin - session.position(), end - session.position());
  const ForgottenRange before = session.forgotten;
  const bool is_stored = session.durability == Durability::kTurn || session.parked;
  session.forgotten.Add(begin, end, session.position());
  if (options_.log == nullptr) return done(absl::OkStatus());
  // What is not durable may be here alone.
  Done undone = [this, key = session.key, before, is_stored,
                 waiting = std::move(done)](const absl::Status& status) {
    Session* const left = status.ok() || is_stored ? nullptr : Find(key);
    if (left != nullptr) {
      left->forgotten = before;
      left->parked = false;
    }
    waiting(status);
  };
  Done claiming = Claiming(session.key, std::move(undone), /*takes_back=*/is_stored);
  options_.log->AddTurnWithoutPast(session, {.forgotten = std::pair(begin, end)},
                                   /*answers_beyond=*/begin, std::move(claiming));
}

absl::StatusOr<SessionInfo> SessionManager::Import(const SessionKey& key, absl::Duration ttl,
                                                   int slabs_awaited, Session& facts,
                                                   StateCopy& state, Done done) {
  facts.durability = default_durability();
  const bool durable = facts.durability == Durability::kTurn;
  // Where no slab is free the store alone has it, until somebody asks for it.
  if (durable && free_slabs() <= slabs_awaited) facts.residence = Residence::kStored;
  MNEME_ASSIGN_OR_RETURN(Session * session, Add(key, ttl, slabs_awaited, &facts));
  absl::Status written;
  if (session->residence != Residence::kStored) {
    // One that is parked has bytes that are nobody's until they are written.
    written = FindWithSlab(key).status();
    if (written.ok()) written = state.Write(pool_.backend(), pool_.slab(session->slot));
    if (!written.ok()) Remove(*session, SessionEnd::kDeleted);
  }
  PublishGauges();
  if (!written.ok()) return written;
  SessionInfo info = Describe(*session);
  if (options_.log == nullptr) {
    done(absl::OkStatus());
    return info;
  }
  Done claiming = Claiming(key, std::move(done));
  if (durable) {
    options_.log->AddTurnWithoutPast(*session, {.imported = true},
                                     /*answers_beyond=*/std::numeric_limits<int64_t>::max(),
                                     std::move(claiming), state.slab());
  } else {
    options_.log->AddTurn(*session, {}, std::nullopt, std::move(claiming));
  }
  return info;
}

}  // namespace mneme
