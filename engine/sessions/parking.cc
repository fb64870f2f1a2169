#include "engine/sessions/parking.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mneme {

Parking::Parking(StatePool& pool, HostStates* host, Clock& clock, EngineStats& stats,
                 std::function<void()> wake)
    : pool_(pool), host_(host), clock_(clock), stats_(stats), wake_(std::move(wake)) {
  if (host_ != nullptr) stats_.host_bytes_total.Set(host_->pages() * host_->page_bytes());
}

Parking::~Parking() { moves_.clear(); }

void Parking::AddWithSlab(Session& session) { Rest(session); }

void Parking::AddWithHost(Session& session) {
  session.residence = Residence::kParked;
  session.host_state = host_->Add(session.fed_tokens);
  ++parked_;
}

void Parking::Remove(Session& session) {
  Await(session);
  Use(session);
  in_use_.erase(&session);
  if (session.slot >= 0) pool_.Release(session.slot);
  if (session.residence == Residence::kParked) --parked_;
  Free(session.host_state);
}

void Parking::Rest(Session& session) {
  session.fetched = false;
  if (session.residence != Residence::kResident) return;
  in_use_.erase(&session);
  session.rested = ++uses_;
  resting_.emplace(session.rested, &session);
}

void Parking::Use(Session& session) {
  if (session.residence != Residence::kResident) return;
  resting_.erase({session.rested, &session});
  in_use_.insert(&session);
}

int64_t Parking::FreePages(bool newcomer) const {
  return host_->free_pages() - (newcomer ? host_->spare_pages() : 0);
}

bool Parking::HasRoomForNewcomer(int64_t tokens) const {
  return enabled() && host_->PagesOf(tokens) <= FreePages(/*newcomer=*/true);
}

int Parking::Obtainable(const Session* keeper, bool newcomer) const {
  if (!enabled()) return 0;
  int64_t room = FreePages(newcomer) + coming_pages_;
  int slabs = 0;
  const auto take = [&](const Session& session) {
    if (&session == keeper) return true;
    room -= host_->PagesOf(session.fed_tokens);
    if (room >= 0) ++slabs;
    return room > 0;
  };
  for (const auto& [rested, session] : resting_) {
    if (!take(*session)) return slabs;
  }
  for (const Session* session : in_use_) {
    if (!take(*session)) break;
  }
  return slabs;
}

int Parking::ParkResting(int slabs, bool newcomer) {
  int begun = 0;
  while (begun < slabs && !resting_.empty() && Park(*resting_.begin()->second, newcomer)) ++begun;
  return begun;
}

bool Parking::Park(Session& session, bool newcomer) {
  if (!enabled() || session.residence != Residence::kResident) return false;
  if (host_->PagesOf(session.fed_tokens) > FreePages(newcomer)) return false;
  resting_.erase({session.rested, &session});
  in_use_.erase(&session);
  session.fetched = false;
  session.host_state = host_->Add(session.fed_tokens);
  ++leaving_;
  const absl::Duration now = clock_.Monotonic();
  Begin(session, Residence::kLeaving, now, host_->Save(session.slot, session.host_state, wake_));
  return true;
}

bool Parking::FreeSlab() {
  if (resting_.empty()) return false;
  Session& session = *resting_.begin()->second;
  if (!Park(session, /*newcomer=*/false)) return false;
  Await(session);
  return true;
}

void Parking::Fetch(Session& session) {
  if (session.residence == Residence::kLeaving) {
    session.stays = true;
    return;
  }
  if (session.residence != Residence::kParked) return;
  session.slot = pool_.Acquire().value();
  --parked_;
  coming_pages_ += host_->PagesHeld(session.host_state);
  const absl::Duration now = clock_.Monotonic();
  Begin(session, Residence::kComing, now, host_->Load(session.host_state, session.slot, wake_));
}

void Parking::Begin(Session& session, Residence to, absl::Duration now,
                    std::unique_ptr<Transfer> transfer) {
  session.residence = to;
  moves_.push_back({&session, now, std::move(transfer)});
  Settle();
}

void Parking::Settle() {
  for (auto move = moves_.begin(); move != moves_.end();) {
    if (move->transfer->done()) {
      Arrive(*move);
      move = moves_.erase(move);
    } else {
      ++move;
    }
  }
}

void Parking::Await(Session& session) {
  const auto move = std::find_if(moves_.begin(), moves_.end(),
                                 [&](const Move& m) { return m.session == &session; });
  if (move == moves_.end()) return;
  move->transfer.reset();
  Arrive(*move);
  moves_.erase(move);
}

void Parking::Arrive(const Move& move) {
  Session& session = *move.session;
  const double seconds = absl::ToDoubleSeconds(clock_.Monotonic() - move.begun);
  if (session.residence == Residence::kLeaving) {
    --leaving_;
    if (std::exchange(session.stays, false)) {
      return Stay(session);
    }
    stats_.park_seconds.Observe(seconds);
    pool_.Release(session.slot);
    session.slot = -1;
    session.residence = Residence::kParked;
    ++parked_;
    return;
  }
  stats_.fetch_seconds.Observe(seconds);
  coming_pages_ -= host_->PagesHeld(session.host_state);
  session.fetched = true;
  Stay(session);
}

// It has its slab, and nothing with the host any more.
void Parking::Stay(Session& session) {
  Free(session.host_state);
  session.residence = Residence::kResident;
  if (session.busy) {
    in_use_.insert(&session);
  } else {
    Rest(session);  // who wanted it has ended
  }
}

void Parking::Free(int& host_state) {
  if (host_state < 0) return;
  host_->Remove(host_state);
  host_state = -1;
}

void Parking::CopyToHost(const Session& from, Session& to) {
  if (from.residence == Residence::kParked) {
    Free(to.host_state);
    to.host_state = host_->Duplicate(from.host_state);
  } else {
    host_->Save(from.slot, to.host_state, nullptr).reset();
  }
}

void Parking::CopyToSlab(const Session& from, const Session& to) {
  host_->Load(from.host_state, to.slot, nullptr).reset();
}

void Parking::PublishGauges() const {
  if (!enabled()) return;
  stats_.sessions_parked.Set(parked_);
  stats_.host_bytes_used.Set((host_->pages() - host_->free_pages()) * host_->page_bytes());
}

}  // namespace mneme
