// Commands on sessions, which need nothing of the model: to make, copy, describe, rewind and delete
// them, and to forget parts of their memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/admission_queue.h"
#include "engine/engine.h"
#include "engine/idempotency.h"
#include "engine/request_check.h"
#include "engine/sessions/prefix_cache.h"
#include "engine/sessions/session_file.h"
#include "engine/sessions/session_log.h"
#include "engine/sessions/session_manager.h"
#include "engine/state_pool.h"
#include "models/model.h"
#include "models/state_codec.h"

namespace mneme {

// Called by the loop's thread between two steps, but for PageOf. What the constructor takes must
// outlive it.
class SessionCommands {
 public:
  struct Parts {
    const Model& model;
    StatePool& pool;
    Clock& clock;
    SessionManager& sessions;
    const AdmissionQueue& queue;  // who waits for slabs has them before new sessions do
    IdempotencyTable& keys;
    PrefixCache* prefixes;      // null: there is none
    const SessionStore* store;  // null: there is none
  };
  // `history_tokens`: of imported sessions, EngineOptions.
  SessionCommands(const Parts& parts, const RequestBounds& bounds, int history_tokens)
      : parts_(parts), bounds_(bounds), history_tokens_(history_tokens) {}

  // Where these return OK, `done` is called with what became of the change: OK when it is durable,
  // which it is at once without a store.
  using Done = SessionManager::Done;
  absl::StatusOr<SessionInfo> Create(const SessionKey& key, const NewSession& options,
                                     Done done = SessionLog::IgnoreStatus);
  absl::StatusOr<SessionInfo> Get(const SessionKey& key);
  SessionsHere ListHere(const SessionQuery& query);
  // The page, by any thread: there may be many in the store.
  SessionPage PageOf(SessionsHere here, const SessionQuery& query) const;
  absl::StatusOr<SessionInfo> Fork(const SessionKey& source, const SessionKey& target,
                                   absl::Duration ttl, Done done = SessionLog::IgnoreStatus);
  absl::Status Delete(const SessionKey& key, Done done = SessionLog::IgnoreStatus);

  // These call `done` once, maybe at once, with the answer or an error, as Engine says.
  void Rewind(const SessionKey& key, const RewindTarget& to, SessionManager::InfoDone done);
  void ForkAt(const SessionKey& source, const SessionKey& target, absl::Duration ttl,
              const RewindTarget& at, SessionManager::InfoDone done);
  void CreateCheckpoint(const SessionKey& key, const std::string& name,
                        SessionManager::CheckpointDone done);
  void DeleteCheckpoint(const SessionKey& key, const std::string& name, Done done);

  // Copies an idle session's fields.
  absl::Status ReadState(const SessionKey& key, StateImage& image);
  // Copies all of an idle session. `facts` but for those of the model.
  absl::Status Export(const SessionKey& key, SessionFacts& facts, StateCopy& state);
  absl::Status CheckNew(const SessionKey& key, absl::Duration ttl);
  // The file is one that SessionImport::Read found to be in order.
  absl::StatusOr<SessionInfo> Import(const SessionKey& key, absl::Duration ttl,
                                     const SessionFacts& facts, StateCopy& state,
                                     Done done = SessionLog::IgnoreStatus);
  // Copies kept beside the state go also where the engrams of these segments have died: going
  // back would bring them back. `logged`: all that the session was fed, where only its log says
  // that (EngineLoop::OnLoggedSession).
  absl::StatusOr<ForgottenEngrams> ForgetSegments(const SessionKey& key, int64_t first, int64_t end,
                                                  Done done = SessionLog::IgnoreStatus,
                                                  std::span<const int32_t> logged = {});

 private:
  void ForgetBeside(const Session& session, int64_t position, std::span<const int32_t> logged);

  const Parts parts_;
  const RequestBounds& bounds_;
  const int history_tokens_;
};

}  // namespace mneme
