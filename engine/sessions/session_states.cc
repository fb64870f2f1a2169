// SessionManager: sessions that lose what they were fed, and ephemeral ones with their slabs.
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/sessions/session_manager.h"

namespace mneme {

void SessionManager::BeginAnew(Session& session, std::shared_ptr<const RewindPoint> cut) {
  CHECK(session.busy) << "session \"" << session.key.name << "\" is nobody's";
  parking_.Remove(session);
  checkpointed_.erase(session.key);
  Session anew = Make(session.key, session.ttl);
  anew.id = session.id;
  anew.created = session.created;
  anew.durability = session.durability;
  anew.logged = session.logged;
  anew.parked = session.parked;
  anew.rewinds = session.rewinds;
  anew.memory_seed = session.memory_seed;
  anew.busy = true;
  if (session.logged) {
    anew.cut = cut != nullptr ? std::move(cut) : std::make_shared<const RewindPoint>();
  }
  anew.slot = pool_.Acquire().value();
  session = std::move(anew);
  parking_.AddWithSlab(session);
  parking_.Use(session);
}

std::unique_ptr<Session> SessionManager::BeginEphemeral() {
  auto session = std::make_unique<Session>(Make({}, absl::ZeroDuration()));
  session->slot = pool_.Acquire().value();
  ++ephemeral_slabs_;
  return session;
}

std::vector<int> SessionManager::Reserve(int count) {
  std::vector<int> slots;
  for (int i = 0; i < count; ++i) slots.push_back(pool_.Acquire().value());
  ephemeral_slabs_ += count;
  return slots;
}

std::unique_ptr<Session> SessionManager::ForkEphemeral(const Session& parent, int reserved_slot) {
  auto session = std::make_unique<Session>(parent);
  session->key = {};
  session->slot = reserved_slot;
  pool_.Copy(parent.slot, reserved_slot, parent.fed_tokens);
  return session;
}

std::unique_ptr<Session> SessionManager::CopyEphemeral(const Session& parent) {
  ++ephemeral_slabs_;
  return ForkEphemeral(parent, pool_.Acquire().value());
}

void SessionManager::EndEphemeral(Session& session) {
  if (session.slot < 0) return;
  pool_.Release(session.slot);
  session.slot = -1;
  --ephemeral_slabs_;
}

void SessionManager::Unreserve(std::vector<int>& slots) {
  for (const int slot : slots) pool_.Release(slot);
  ephemeral_slabs_ -= static_cast<int>(slots.size());
  slots.clear();
}

}  // namespace mneme
