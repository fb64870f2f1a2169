// EngineLoop: sessions that go back to where they were.
#include <utility>

#include "base/log_fields.h"
#include "engine/engine_loop.h"

namespace mneme {

void EngineLoop::RewindSession(const SessionKey& key, const RewindTarget& to,
                               SessionManager::InfoDone done) {
  sessions_.Rewind(key, to, [key, done = std::move(done)](const absl::StatusOr<SessionInfo>& info) {
    if (info.ok()) {
      LogFields("session_rewound")
          .Add("owner", key.owner)
          .Add("session", key.name)
          .Add("tokens", info->position)
          .Write(LogSeverity::kInfo);
    }
    done(info);
  });
}

void EngineLoop::ForkSessionAt(const SessionKey& source, const SessionKey& target,
                               absl::Duration ttl, const RewindTarget& at,
                               SessionManager::InfoDone done) {
  sessions_.ForkAt(source, target, ttl, at, std::move(done));
}

void EngineLoop::CreateCheckpoint(const SessionKey& key, const std::string& name,
                                  SessionManager::CheckpointDone done) {
  sessions_.AddCheckpoint(key, name, std::move(done));
}

void EngineLoop::DeleteCheckpoint(const SessionKey& key, const std::string& name, Done done) {
  sessions_.DropCheckpoint(key, name, std::move(done));
}

}  // namespace mneme
