// Parking: sessions on their way to the store, and those that it refuses.
#include <algorithm>
#include <utility>

#include "engine/sessions/parking.h"
#include "store/owner_limit.h"

namespace mneme {
namespace {

// A disk that is full is asked again, and not at once.
constexpr absl::Duration kAskedAgainAfter = absl::Seconds(1);

StoredStates::Urgency UrgencyOf(bool stays) {
  return stays ? StoredStates::Urgency::kLazy : StoredStates::Urgency::kUrgent;
}

}  // namespace

bool Parking::ParkInStore(Session& session, bool stays) {
  if (session.residence != Residence::kResident || !session.logged) return false;
  if (IsInStore(session)) {
    if (stays) return true;
    Leave(session);
    pool_.Release(session.slot);
    session.slot = -1;
    session.residence = Residence::kStored;
    stored_.push_back(session.key);
    return true;
  }
  if (IsRefused(session)) return false;
  const int buffer = store_->TakeBuffer(UrgencyOf(stays));
  if (buffer < 0) return false;
  Leave(session);
  session.stays = stays;
  ++leaving_;
  const absl::Duration now = clock_.Monotonic();
  Begin(session, Residence::kLeaving, now,
        store_->Save(session.slot, session.fed_tokens, buffer, wake_), buffer);
  return true;
}

bool Parking::Snapshot(Session& session) {
  return stores() && ParkInStore(session, /*stays=*/true);
}

std::vector<SessionKey> Parking::TakeStored() { return std::exchange(stored_, {}); }

// Its state is in a buffer of the store's.
void Parking::Copied(Session& session, const Move& move) {
  if (session.durability == Durability::kNone) {
    if (std::exchange(session.stays, false)) {
      // It is to go on at once, and nothing may go on behind a snapshot of it.
      store_->ReturnBuffer(move.buffer);
      --leaving_;
      return Stay(session);
    }
    before_snapshot_(session);
    writing_.push_back(
        {store_->Write(session, move.buffer, UrgencyOf(false)), &session, move.begun});
    return;
  }
  store_->Write(session, move.buffer, UrgencyOf(session.stays));
  session.snapshot = session.fed_tokens;
  session.snapshot_turn = session.turns;
  --leaving_;
  if (std::exchange(session.stays, false)) return Stay(session);
  stats_.park_seconds.Observe(absl::ToDoubleSeconds(clock_.Monotonic() - move.begun));
  pool_.Release(session.slot);
  session.slot = -1;
  session.residence = Residence::kStored;
}

void Parking::Wrote(const StoredStates::Written& written) {
  stored_.push_back(written.key);
  WroteFromHost(written);
  const auto found = std::find_if(writing_.begin(), writing_.end(),
                                  [&](const Writing& one) { return one.ticket == written.ticket; });
  if (found == writing_.end()) return;
  Session& session = *found->session;
  const absl::Duration begun = found->begun;
  writing_.erase(found);
  --leaving_;
  session.stays = false;
  if (!written.status.ok()) {
    Refuse(session, written.status);
    return Stay(session);
  }
  stats_.park_seconds.Observe(absl::ToDoubleSeconds(clock_.Monotonic() - begun));
  session.snapshot = session.fed_tokens;
  session.parked = true;
  pool_.Release(session.slot);
  session.slot = -1;
  session.residence = Residence::kStored;
}

// What a key may have does not concern the sessions of others. A disk refuses all alike.
void Parking::Refuse(Session& session, const absl::Status& why) {
  const bool is_disks = !ExceededLimit(why).has_value() && !absl::IsNotFound(why);
  const absl::Duration until =
      saves_all_ && !is_disks ? absl::InfiniteDuration() : clock_.Monotonic() + kAskedAgainAfter;
  refusal_ = why;
  refused_[&session] = until;
  if (!is_disks || saves_all_) return;
  const auto refuse = [&](Session* other) {
    if (other->durability == Durability::kNone) refused_[other] = until;
  };
  for (const auto& [rested, other] : resting_) refuse(other);
  for (Session* other : in_use_) refuse(other);
}

void Parking::AskAgain() {
  if (refused_.empty()) return;
  const absl::Duration now = clock_.Monotonic();
  absl::erase_if(refused_, [now](const auto& one) { return one.second <= now; });
  if (refused_.empty()) refusal_ = absl::OkStatus();
}

// Those with a slab that neither the store nor the host would take.
int Parking::RefusedAndResident(const Session* keeper, bool newcomer) const {
  if (refused_.empty()) return 0;
  int64_t room = host_ == nullptr ? 0 : FreePages(newcomer) + coming_pages_;
  int refused = 0;
  for (const auto& [session, until] : refused_) {
    if (session == keeper || session->residence != Residence::kResident) continue;
    const int64_t pages = host_ == nullptr ? 1 : host_->PagesOf(session->fed_tokens);
    if (pages <= room) {
      room -= pages;
    } else {
      ++refused;
    }
  }
  return refused;
}

}  // namespace mneme
