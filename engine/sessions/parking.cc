#include "engine/sessions/parking.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mneme {
namespace {

// For so long it is expected that more sessions come and go.
constexpr absl::Duration kBusyFor = absl::Seconds(10);

}  // namespace

Parking::Parking(StatePool& pool, HostStates* host, StoredStates* store, Clock& clock,
                 EngineStats& stats, std::function<void()> wake,
                 std::function<void(Session&)> before_snapshot)
    : pool_(pool),
      host_(host),
      store_(store),
      clock_(clock),
      stats_(stats),
      wake_(std::move(wake)),
      before_snapshot_(std::move(before_snapshot)) {
  if (host_ != nullptr) stats_.host_bytes_total.Set(host_->pages() * host_->page_bytes());
}

Parking::~Parking() {
  moves_.clear();
  arrivals_.clear();
}

void Parking::AddWithSlab(Session& session) { Rest(session); }

void Parking::AddWithHost(Session& session) {
  session.residence = Residence::kParked;
  session.host_state = host_->Add(session.fed_tokens);
  session.rested = ++uses_;
  on_host_.emplace(session.rested, &session);
}

void Parking::Remove(Session& session) {
  Await(session);
  CHECK(!IsBeingFetchedFromStore(session)) << "session \"" << session.key.name << "\" comes";
  Use(session);
  in_use_.erase(&session);
  leaving_ -= static_cast<int>(
      std::erase_if(writing_, [&](const Writing& one) { return one.session == &session; }));
  refused_.erase(&session);
  if (session.slot >= 0) pool_.Release(session.slot);
  on_host_.erase({session.rested, &session});
  FreeHostState(session);
}

void Parking::Rest(Session& session) {
  session.fetched = false;
  session.replayed = -1;
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
  return host_ != nullptr && host_->PagesOf(tokens) <= FreePages(/*newcomer=*/true);
}

int Parking::Obtainable(const Session* keeper, bool newcomer) const {
  if (!enabled()) return 0;
  if (stores()) {
    // Those that come, too, once they are there and were used.
    const auto comes = [](const Move& move) {
      return move.session->residence == Residence::kComing;
    };
    const auto coming =
        static_cast<size_t>(std::count_if(moves_.begin(), moves_.end(), comes)) + arrivals_.size();
    const bool keeps = keeper != nullptr && (keeper->residence == Residence::kResident ||
                                             keeper->residence == Residence::kComing);
    return static_cast<int>(resting_.size() + in_use_.size() + coming) - (keeps ? 1 : 0) -
           RefusedAndResident(keeper, newcomer);
  }
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
  busy_until_ = clock_.Monotonic() + kBusyFor;
  return ParkOldest(slabs, newcomer);
}

void Parking::KeepPlacesFree() {
  if (!enabled() || clock_.Monotonic() >= busy_until_) return;
  const int wanted = std::min(pool_.slots() / kPlacesPerFree, kMostFree);
  const int lacking = wanted - pool_.free_slots() - leaving_;
  if (lacking > 0) ParkOldest(lacking, /*newcomer=*/true);
}

int Parking::ParkOldest(int slabs, bool newcomer) {
  int begun = 0;
  for (auto next = resting_.begin(); begun < slabs && next != resting_.end();) {
    Session& session = *(next++)->second;
    if (Park(session, newcomer)) {
      ++begun;
    } else if (!IsRefused(session)) {
      break;
    }
  }
  return begun;
}

bool Parking::Park(Session& session, bool newcomer) {
  if (!enabled() || session.residence != Residence::kResident) return false;
  while (host_ != nullptr && host_->PagesOf(session.fed_tokens) > FreePages(newcomer)) {
    Session* const oldest = OldestOnHost();
    if (oldest == nullptr || !IsInStore(*oldest)) break;
    LeaveHost(*oldest);
  }
  if (host_ == nullptr || host_->PagesOf(session.fed_tokens) > FreePages(newcomer)) {
    return stores() && ParkInStore(session, /*stays=*/false);
  }
  Leave(session);
  session.host_state = host_->Add(session.fed_tokens);
  ++leaving_;
  const absl::Duration now = clock_.Monotonic();
  Begin(session, Residence::kLeaving, now, host_->Save(session.slot, session.host_state, wake_));
  return true;
}

void Parking::Leave(Session& session) {
  resting_.erase({session.rested, &session});
  in_use_.erase(&session);
  session.fetched = false;
  session.replayed = -1;
}

bool Parking::IsBeingFetchedFromStore(const Session& session) const {
  return std::any_of(arrivals_.begin(), arrivals_.end(),
                     [&](const Arrival& arrival) { return arrival.session == &session; });
}

std::optional<Parking::Replay> Parking::TakeReplay() {
  for (Arrival& arrival : arrivals_) {
    if (!arrival.copied || arrival.replays) continue;
    arrival.replays = true;
    return Replay{arrival.session, *std::move(arrival.state)};
  }
  return std::nullopt;
}

std::list<Parking::Arrival>::iterator Parking::ArrivalOf(const Session& session) {
  const auto arrival = std::find_if(arrivals_.begin(), arrivals_.end(),
                                    [&](const Arrival& one) { return one.session == &session; });
  CHECK(arrival != arrivals_.end()) << "session \"" << session.key.name << "\" does not come";
  return arrival;
}

void Parking::ReplayAgain(Session& session, uint64_t suspect) {
  Arrival& arrival = *ArrivalOf(session);
  arrival.state.reset();
  arrival.copied = arrival.replays = false;
  // What it was fed is in its slab; a new one has what a session begins with.
  pool_.Release(session.slot);
  session.slot = pool_.Acquire().value();
  session.snapshot = session.snapshot_turn = 0;
  store_->ReadAgain(session, suspect);
}

void Parking::FinishReplay(Session& session, TokenHistory history, const absl::Status& status) {
  const auto arrival = ArrivalOf(session);
  const absl::Duration begun = arrival->begun;
  arrivals_.erase(arrival);
  if (!status.ok()) return Fail(session, status);
  stats_.load_seconds.Observe(absl::ToDoubleSeconds(clock_.Monotonic() - begun));
  session.history = std::move(history);
  session.fetched = true;
  Stay(session);
}

bool Parking::store_is_busy() const {
  return !arrivals_.empty() || (store_ != nullptr && store_->writing() > 0) ||
         std::any_of(moves_.begin(), moves_.end(),
                     [](const Move& move) { return move.buffer >= 0; });
}

void Parking::Fail(Session& session, const absl::Status& why) {
  pool_.Release(session.slot);
  session.slot = -1;
  session.residence = Residence::kStored;
  session.not_there = why;
  stored_.push_back(session.key);
}

// One step further, if it can.
void Parking::Advance(Arrival& arrival) {
  Session& session = *arrival.session;
  if (!arrival.state.has_value()) {
    arrival.state = store_->TakeRead(session);
    if (!arrival.state.has_value() || !arrival.state->status.ok()) return;
    if (arrival.state->in_buffer) {
      arrival.transfer =
          store_->Load(arrival.state->buffer, session.slot, arrival.state->tokens, wake_);
    }
  }
  if (arrival.copied || (arrival.transfer != nullptr && !arrival.transfer->done())) return;
  arrival.transfer.reset();
  store_->ReturnBuffer(arrival.state->buffer);
  arrival.copied = true;
  session.snapshot = arrival.state->tokens;
  session.snapshot_turn = arrival.state->turn;
}

bool Parking::FreeSlab() {
  if (resting_.empty()) return false;
  Session& session = *resting_.begin()->second;
  if (!Park(session, /*newcomer=*/false)) return false;
  Await(session);
  return session.slot < 0;
}

void Parking::Fetch(Session& session) {
  if (session.residence == Residence::kLeaving) {
    session.stays = true;
    return;
  }
  busy_until_ = clock_.Monotonic() + kBusyFor;
  if (session.residence == Residence::kStored) {
    session.slot = pool_.Acquire().value();
    session.residence = Residence::kComing;
    arrivals_.push_back({.session = &session, .begun = clock_.Monotonic()});
    store_->Read(session);
    return;
  }
  if (session.residence != Residence::kParked) return;
  session.slot = pool_.Acquire().value();
  on_host_.erase({session.rested, &session});
  coming_pages_ += host_->PagesHeld(session.host_state);
  const absl::Duration now = clock_.Monotonic();
  Begin(session, Residence::kComing, now, host_->Load(session.host_state, session.slot, wake_));
}

void Parking::Begin(Session& session, Residence to, absl::Duration now,
                    std::unique_ptr<Transfer> transfer, int buffer) {
  session.residence = to;
  moves_.push_back({&session, now, std::move(transfer), buffer});
  Settle();
}

void Parking::Settle() {
  if (store_ != nullptr) {
    store_->Settle();
    for (const StoredStates::Written& written : store_->TakeWritten()) Wrote(written);
    AskAgain();
    for (auto arrival = arrivals_.begin(); arrival != arrivals_.end();) {
      Advance(*arrival);
      const bool failed = arrival->state.has_value() && !arrival->state->status.ok() &&
                          !arrival->replays && !arrival->copied;
      if (!failed) {
        ++arrival;
        continue;
      }
      store_->ReturnBuffer(arrival->state->buffer);
      Fail(*arrival->session, arrival->state->status);
      arrival = arrivals_.erase(arrival);
    }
  }
  for (auto move = moves_.begin(); move != moves_.end();) {
    if (move->transfer->done()) {
      Arrive(*move);
      move = moves_.erase(move);
    } else {
      ++move;
    }
  }
  MakeRoomOnHost();
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
    if (move.buffer >= 0) return Copied(session, move);
    --leaving_;
    if (std::exchange(session.stays, false)) {
      return Stay(session);
    }
    stats_.park_seconds.Observe(seconds);
    pool_.Release(session.slot);
    session.slot = -1;
    session.residence = Residence::kParked;
    on_host_.emplace(session.rested, &session);
    return;
  }
  stats_.fetch_seconds.Observe(seconds);
  coming_pages_ -= host_->PagesHeld(session.host_state);
  session.fetched = true;
  Stay(session);
}

// It has its slab, and nothing with the host any more.
void Parking::Stay(Session& session) {
  FreeHostState(session);
  session.residence = Residence::kResident;
  if (session.busy) {
    in_use_.insert(&session);
  } else {
    Rest(session);  // who wanted it has ended
  }
}

void Parking::CopyToHost(const Session& from, Session& to) {
  if (from.residence == Residence::kParked) {
    host_->Remove(to.host_state);
    to.host_state = host_->Duplicate(from.host_state);
  } else {
    host_->Save(from.slot, to.host_state, nullptr).reset();
  }
}

void Parking::CopyToSlab(const Session& from, const Session& to) {
  host_->Load(from.host_state, to.slot, nullptr).reset();
}

void Parking::PublishGauges() const {
  if (host_ == nullptr) return;
  stats_.sessions_parked.Set(static_cast<int64_t>(on_host_.size()));
  stats_.host_bytes_used.Set((host_->pages() - host_->free_pages()) * host_->page_bytes());
}

}  // namespace mneme
