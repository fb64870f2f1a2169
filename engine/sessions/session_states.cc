// SessionManager: sessions that lose what they were fed, and copies of them.
#include <memory>
#include <utility>

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

std::unique_ptr<Session> SessionManager::CopyEphemeral(const Session& parent) {
  ++ephemeral_slabs_;
  return ForkEphemeral(parent, pool_.Acquire().value());
}

}  // namespace mneme
