// All sessions and all slabs: who has which, for how long, and who may have one more.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "engine/sessions/host_states.h"
#include "engine/sessions/parking.h"
#include "engine/sessions/session.h"
#include "engine/sessions/session_table.h"
#include "engine/state_pool.h"
#include "models/state_codec.h"

namespace mneme {

// The sole owner of slots. Each slab that the pool has given away belongs to one of these, which
// holds until the call named last:
//
//   a named session       CreateClaimed, Create, Fork            Delete, Remove, Expire
//   an ephemeral session  BeginEphemeral, ForkEphemeral          EndEphemeral
//   a reservation, for    Reserve                                ForkEphemeral, Unreserve
//   a choice to be forked
//
// Slabs of the last two kinds are counted as ephemeral: they come back when requests end. A named
// session is busy as long as a request claims its key, and idle, so that it can expire, be copied
// or be deleted, at all other times. A key can be claimed before it has a session.
//
// Idle sessions keep their slabs until others need them and they can be parked (Parking).
//
// Owned and called by one thread, the loop's. Whatever the constructor takes must outlive it.
class SessionManager {
 public:
  struct Options {
    absl::Duration default_ttl = absl::InfiniteDuration();
    int history_tokens = 0;  // Session::history
    // EngineOptions::owner_session_limit.
    std::function<int(const std::string& owner)> owner_limit;
    HostStates* host = nullptr;  // null: idle sessions keep their slabs
    std::function<void()> wake;  // of Parking
  };
  SessionManager(StatePool& pool, Clock& clock, EngineStats& stats, Options options);

  // --- Named sessions, for requests ---

  // Null if there is none.
  Session* Find(const SessionKey& key) const { return table_.Find(key); }
  bool IsClaimed(const SessionKey& key) const { return claimed_.contains(key); }
  // `key` is a request's from now on; it was nobody's.
  void Claim(const SessionKey& key);
  // That request has ended, or, if it `ran`, used the session until now. Returns the session, which
  // is idle, or null if it never came to be.
  Session* Unclaim(const SessionKey& key, bool ran);
  // The session of a claimed key that has none. A slab is free.
  Session& CreateClaimed(const SessionKey& key, absl::Duration ttl);
  // Forgets an idle session.
  void Remove(Session& session, SessionEnd why);

  // --- Ephemeral sessions and reservations ---

  // A new session with a slab, one of which is free.
  std::unique_ptr<Session> BeginEphemeral();
  // Slots for ForkEphemeral; so many slabs are free.
  std::vector<int> Reserve(int count);
  // A copy of `parent`, its slab's too, in a reserved slot.
  std::unique_ptr<Session> ForkEphemeral(const Session& parent, int reserved_slot);
  // Gives its slab back. What else the session says stays. Again: nothing.
  void EndEphemeral(Session& session);
  // Gives reservations back, and leaves `slots` empty.
  void Unreserve(std::vector<int>& slots);

  // --- Room ---

  int free_slabs() const { return pool_.free_slots(); }
  Parking& parking() { return parking_; }
  const Parking& parking() const { return parking_; }
  int ephemeral_slabs() const { return ephemeral_slabs_; }
  // Whether one more named session of `owner` may be made.
  absl::Status CheckOwnerLimit(const std::string& owner) const;
  // Says that `needed` slabs are not to be had, and until when: the next expiry. `awaited` are what
  // waiting requests will need.
  absl::Status NoFreeSlab(int needed, int awaited) const;

  // --- Commands: errors as Engine says; gauges are up to date when they return ---

  // They do not wait for requests: where no slab is free but `slabs_awaited`, those that waiting
  // requests will need, a new session begins as a parked one, or is refused.
  absl::StatusOr<SessionInfo> Create(const SessionKey& key, absl::Duration ttl, int slabs_awaited);
  absl::StatusOr<SessionInfo> Fork(const SessionKey& source, const SessionKey& target,
                                   absl::Duration ttl, int slabs_awaited);
  absl::Status Delete(const SessionKey& key);
  // Copies fields of an idle session.
  absl::Status ReadState(const SessionKey& key, StateImage& image);
  // An idle session that is to be read or changed, with its slab: waits for that, where it is
  // parked.
  absl::StatusOr<Session*> FindWithSlab(const SessionKey& key);
  absl::StatusOr<SessionInfo> Get(const SessionKey& key) const;
  // Sorted by key; without `owner`, those of all.
  std::vector<SessionInfo> List(const std::optional<std::string>& owner,
                                const std::string& name_prefix) const;

  // --- Time, and books ---

  // Removes the idle sessions whose time has come.
  void Expire();
  // When the next one's does, on the monotonic clock; infinite if none will.
  absl::Duration NextExpiry() const { return table_.NextExpiry(); }
  void PublishGauges();

  // INTERNAL unless every slab has one owner and every session is where it should be. `held`: the
  // slots of ephemeral sessions and reservations, as those say who hold them; `claims`: keys that
  // requests say they claim.
  absl::Status CheckIntegrity(std::span<const int> held, int claims) const;

 private:
  absl::StatusOr<Session*> FindNamed(const SessionKey& key) const;
  // A session that may be copied, changed or deleted.
  absl::StatusOr<Session*> FindIdle(const SessionKey& key) const;
  // Whether there can be such a session; what it is to know of `parent`, if that is not null, is
  // copied.
  absl::StatusOr<Session*> Add(const SessionKey& key, absl::Duration ttl, int slabs_awaited,
                               Session* parent);
  // Without a slab. A ttl of zero is the default one.
  Session Make(const SessionKey& key, absl::Duration ttl);
  Session& Insert(Session session);
  void CopyState(Session& parent, Session& child);
  SessionInfo Describe(const Session& session) const;
  absl::Duration Now() const { return clock_.Monotonic(); }

  StatePool& pool_;
  Clock& clock_;
  EngineStats& stats_;
  const Options options_;

  Parking parking_;
  SessionTable table_;
  absl::flat_hash_set<SessionKey> claimed_;
  int ephemeral_slabs_ = 0;
  int64_t made_ = 0;  // sessions
};

}  // namespace mneme
