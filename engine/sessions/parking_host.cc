// Parking: states with the host, of which the least recently used ones go on to the store.
#include <utility>

#include "engine/sessions/parking.h"

namespace mneme {

bool Parking::IsInStore(const Session& session) {
  return session.logged && session.durability == Durability::kTurn &&
         session.snapshot_turn == session.turns;
}

// What is not durable stays: nothing of it may go on behind its snapshot, as it would if it were
// wanted while it is written.
Session* Parking::OldestOnHost() const {
  if (!stores()) return nullptr;
  for (const auto& [rested, session] : on_host_) {
    if (session->busy || !session->logged || session->durability == Durability::kNone) continue;
    if (demotion_.has_value() && demotion_->session == session) continue;
    if (session->fed_tokens > 0 || IsInStore(*session)) return session;
  }
  return nullptr;
}

void Parking::LeaveHost(Session& session) {
  on_host_.erase({session.rested, &session});
  FreeHostState(session);
  session.residence = Residence::kStored;
  stored_.push_back(session.key);
}

void Parking::MakeRoomOnHost() {
  if (host_ == nullptr || !stores() || demotion_.has_value()) return;
  if (clock_.Monotonic() < no_demotion_until_) return;
  // Room for the next one to be parked, and where that is not all there is, for what newcomers
  // leave.
  const int64_t spare = host_->spare_pages();
  const int64_t wanted = host_->pages() < 3 * spare ? spare : 2 * spare;
  const auto room = [&] {  // those that are wanted leave by themselves
    int64_t pages = host_->free_pages() + coming_pages_;
    for (const auto& [rested, session] : on_host_) {
      if (session->busy) pages += host_->PagesHeld(session->host_state);
    }
    return pages;
  };
  while (host_->free_pages() < wanted && room() < wanted) {
    Session* const oldest = OldestOnHost();
    if (oldest == nullptr) return;
    if (IsInStore(*oldest)) {
      LeaveHost(*oldest);
      continue;
    }
    const int buffer = store_->TakeBuffer(StoredStates::Urgency::kUrgent);
    if (buffer < 0) return;
    demotion_ = {store_->WriteParked(*oldest, buffer, host_->Spans(oldest->host_state)), oldest,
                 oldest->host_state};
    return;
  }
}

void Parking::WroteFromHost(const StoredStates::Written& written) {
  if (!demotion_.has_value() || demotion_->ticket != written.ticket) return;
  const Demotion done = *std::exchange(demotion_, std::nullopt);
  if (done.session == nullptr) return host_->Remove(done.host_state);  // it went elsewhere
  const bool durable = written.status.ok();
  // A disk that is full is asked again, and not at once.
  if (!durable) no_demotion_until_ = clock_.Monotonic() + absl::Seconds(1);
  // One that is just coming back has its state from there, and frees it then.
  if (!durable || done.session->residence != Residence::kParked) return;
  done.session->snapshot = done.session->fed_tokens;
  done.session->snapshot_turn = done.session->turns;
  if (!done.session->busy) LeaveHost(*done.session);
}

void Parking::FreeHostState(Session& session) {
  const int state = std::exchange(session.host_state, -1);
  if (state < 0) return;
  if (demotion_.has_value() && demotion_->session == &session) {
    demotion_->session = nullptr;
  } else {
    host_->Remove(state);
  }
}

}  // namespace mneme
