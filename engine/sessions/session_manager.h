// All sessions and all slabs: who has which, for how long, and who may have one more.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "engine/session_page.h"
#include "engine/sessions/host_states.h"
#include "engine/sessions/parking.h"
#include "engine/sessions/session.h"
#include "engine/sessions/session_log.h"
#include "engine/sessions/session_table.h"
#include "engine/sessions/snapshot_budget.h"
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
// Where there is a log, named sessions outlive this: one that rests in the store alone has its
// record there and nothing here, until somebody names it (Recall). Its time to live parks it then,
// and removes nothing. Changes by commands are made here at once, and are durable when `done` is
// called with OK; until then the name is claimed. Where they could not be made durable, they are
// taken back.
//
// Owned and called by one thread, the loop's. Whatever the constructor takes must outlive it.
class SessionManager {
 public:
  struct Options {
    absl::Duration default_ttl = absl::InfiniteDuration();
    int history_tokens = 0;  // Session::history
    // EngineOptions::owner_session_limit.
    std::function<int(const std::string& owner)> owner_limit;
    HostStates* host = nullptr;      // null: idle sessions keep their slabs, or go to the store
    SessionLog* log = nullptr;       // null: sessions end with this
    StoredStates* states = nullptr;  // of the log's
    int64_t snapshot_tokens = 0;     // EngineOptions, as the next one
    int64_t turn_snapshot_bytes_per_second = 0;
    absl::Duration retention = absl::InfiniteDuration();  // EngineOptions::session_retention
    int max_checkpoints = 0;                              // EngineOptions, as the next one
    int max_checkpoints_per_owner = 0;
    std::function<void()> wake;  // of Parking
    // Called when a session went back to a position, which the session of that id then has.
    std::function<void(int64_t id, int64_t position)> on_rewound;
  };
  SessionManager(StatePool& pool, Clock& clock, EngineStats& stats, Options options);

  // --- Named sessions, for requests ---

  // Null if there is none.
  Session* Find(const SessionKey& key) const { return table_.Find(key); }
  // The same, and from now on those that only the store has.
  Session* Recall(const SessionKey& key);
  bool IsClaimed(const SessionKey& key) const { return claimed_.contains(key); }
  // `key` is a request's from now on; it was nobody's.
  void Claim(const SessionKey& key);
  // That request has ended, or, if it `ran`, used the session until now. Returns the session, which
  // is idle, or null if it never came to be.
  Session* Unclaim(const SessionKey& key, bool ran);
  // The session of a claimed key that has none. A slab is free.
  Session& CreateClaimed(const SessionKey& key, const NewSession& options);
  // One that a request has claimed and that is not on its way forgets all that it was fed; a slab
  // is free where it has none. The log keeps what it has until a turn is added to the session: then
  // it goes back to `cut`, or, where that is null, to nothing.
  void BeginAnew(Session& session, std::shared_ptr<const RewindPoint> cut = nullptr);
  // OK where a session of that name may begin: none was lost, or `replaces_lost`.
  absl::Status CheckBeginning(const SessionKey& key, bool replaces_lost) const;
  // OK where nothing is known that would keep a turn from being durable. `session`: null where it
  // is to begin, with that durability.
  absl::Status CheckStorage(const SessionKey& key, const Session* session,
                            std::optional<Durability> durability) const;
  // Forgets an idle session.
  void Remove(Session& session, SessionEnd why);
  // Leaves one that nobody here is using to the store, which has it.
  void DropIfUnused(const SessionKey& key);
  // As Remove, of one that the store has as it was before; it did not end.
  void TakeBack(Session& session);
  // Writes a snapshot of an idle session if it was fed enough since the last one.
  void SnapshotIfDue(Session& session);
  // Writes snapshots of sessions that have none of what they are, as far as there is room for
  // writing; nobody is to feed sessions any more. False: none is left to be written that may be.
  bool SnapshotAll();
  // Sessions that end with this, though there is a store: that are not durable, and not there.
  std::vector<SessionInfo> Unsaved() const;

  // --- Going back (session_rewind.cc) ---

  // A session that was claimed, and does not run, goes back to where it was; nobody fetches or
  // parks it until `done` is called. Where that says OK, it rests in the store as it was there.
  // Otherwise it is as before. FAILED_PRECONDITION (NO_STORE, NOT_LOGGED), OUT_OF_RANGE
  // (POSITION_GONE), NOT_FOUND (NO_SUCH_CHECKPOINT), NOT_DURABLE.
  void RewindClaimed(Session& session, const RewindTarget& to, SessionLog::Done done);
  // Commands of idle sessions; `done` is called once, maybe at once.
  using InfoDone = std::function<void(const absl::StatusOr<SessionInfo>&)>;
  void Rewind(const SessionKey& key, const RewindTarget& to, InfoDone done);
  // `target` begins as `source` was there, and rests in the store.
  void ForkAt(const SessionKey& source, const SessionKey& target, absl::Duration ttl,
              const RewindTarget& at, InfoDone done);
  // Where the session stands now, with a snapshot of it, if it has its state here.
  using CheckpointDone = std::function<void(const absl::StatusOr<CheckpointInfo>&)>;
  void AddCheckpoint(const SessionKey& key, const std::string& name, CheckpointDone done);
  void DropCheckpoint(const SessionKey& key, const std::string& name, SessionLog::Done done);

  // --- Ephemeral sessions and reservations ---

  // A new session with a slab, one of which is free.
  std::unique_ptr<Session> BeginEphemeral();
  // Slots for ForkEphemeral; so many slabs are free.
  std::vector<int> Reserve(int count);
  // A copy of `parent`, its slab's too, in a reserved slot.
  std::unique_ptr<Session> ForkEphemeral(const Session& parent, int reserved_slot);
  // The same in a slab that is free.
  std::unique_ptr<Session> CopyEphemeral(const Session& parent);
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
  // All owners together where none is named.
  SessionUsage UsageOf(const std::optional<std::string>& owner) const;
  // Says that `needed` slabs are not to be had, and until when: the next expiry. `awaited` are what
  // waiting requests will need.
  absl::Status NoFreeSlab(int needed, int awaited) const;

  // --- Commands: errors as Engine says; gauges are up to date when they return ---

  // They do not wait for requests: where no slab is free but `slabs_awaited`, those that waiting
  // requests will need, a new session begins as a parked one, or is refused. MustAwaitRoom says
  // whether that is too early, as another session can be parked for it first.
  // `done` is called where they return OK: at once without a log.
  using Done = SessionLog::Done;
  absl::StatusOr<SessionInfo> Create(const SessionKey& key, const NewSession& options,
                                     int slabs_awaited, Done done = SessionLog::IgnoreStatus);
  absl::StatusOr<SessionInfo> Fork(const SessionKey& source, const SessionKey& target,
                                   absl::Duration ttl, int slabs_awaited,
                                   Done done = SessionLog::IgnoreStatus);
  absl::Status Delete(const SessionKey& key, Done done = SessionLog::IgnoreStatus);
  // An idle session with a slab has forgotten positions [begin, end): takes them out of what else
  // there is of it, and makes that durable.
  void LogForgetting(Session& session, int64_t begin, int64_t end, Done done);
  // Whether FindWithSlab has to wait for the store, which it cannot.
  bool RestsInStore(const SessionKey& key);
  // Whether Create, Fork or Import of a session that was fed `tokens` tokens would find no room
  // now, and would when others have been parked. `parent`: of a fork; null otherwise.
  bool MustAwaitRoom(const SessionKey& key, const NewSession& options, const SessionKey* parent,
                     int64_t tokens, int slabs_awaited);
  // Whether Create would find fault with the key or the time to live.
  absl::Status CheckNew(const SessionKey& key, const NewSession& options);
  // A new session that is what `facts` say beside its key, its times and its durability, with that
  // state, in a slab.
  absl::StatusOr<SessionInfo> Import(const SessionKey& key, absl::Duration ttl, int slabs_awaited,
                                     Session& facts, StateCopy& state, Done done);
  // Copies fields of an idle session.
  absl::Status ReadState(const SessionKey& key, StateImage& image);
  // An idle session that is to be read or changed, with its slab: waits for that, where it is
  // parked.
  absl::StatusOr<Session*> FindWithSlab(const SessionKey& key);
  absl::StatusOr<SessionInfo> Get(const SessionKey& key);
  // Those that are not in the store alone; without `owner`, those of all.
  SessionsHere ListHere(const std::optional<std::string>& owner, const std::string& name_prefix);
  // Describes one that is in the store alone. By any thread.
  SessionInfo Describe(const SessionRecord& record) const;

  // --- Time, and books ---

  // Removes the idle sessions whose time has come; with a log, parks them.
  void Expire();
  // Takes note of what has arrived from other threads.
  void Settle();
  // When the next one's does, on the monotonic clock; infinite if none will.
  absl::Duration NextExpiry() const { return table_.NextExpiry(); }
  // When Expire and Settle have to be called, though nothing came; infinite if never.
  absl::Duration NextUpkeep() const;
  void PublishGauges();

  // INTERNAL unless every slab has one owner and every session is where it should be. `held`: the
  // slots of ephemeral sessions and reservations, as those say who hold them; `claims`: keys that
  // requests say they claim.
  absl::Status CheckIntegrity(std::span<const int> held, int claims) const;

 private:
  absl::StatusOr<Session*> FindNamed(const SessionKey& key);
  // A session that may be copied, changed or deleted.
  absl::StatusOr<Session*> FindIdle(const SessionKey& key);
  // Whether there can be such a session; what it is to know of `parent`, if that is not null, is
  // copied.
  absl::StatusOr<Session*> Add(const SessionKey& key, const NewSession& options, int slabs_awaited,
                               Session* parent);
  Durability default_durability() const;
  // The end of NoFreeSlab()'s sentence.
  std::string WhyNotParked() const;
  // Claims a key for a change that the log is told of, and wraps `done`, which ends that: where the
  // change failed, the session that the change made or left is taken back if it
  // `takes_back`.
  Done Claiming(const SessionKey& key, Done done, bool takes_back = true);
  void DeleteOld();
  void NoteDate();
  void PublishLag();
  int64_t SessionsOf(const std::optional<std::string>& owner) const;
  int64_t CheckpointsOf(const std::string& owner) const;
  // Of a record that the store alone has.
  Residence ResidenceOf(const SessionRecord& record) const;
  // session_rewind.cc
  absl::StatusOr<Session*> FindLogged(const SessionKey& key);
  absl::Status CheckStore() const;
  absl::Status CheckLogged(const Session& session) const;
  absl::Status CheckCheckpoints(const SessionRecord& record) const;
  void ClaimForCommand(const SessionKey& key);
  void EndCommand(const SessionKey& key);
  void SnapshotCheckpoints();
  void BeginRewinds();
  void ReturnToStore(Session& session);
  // Without a slab. A ttl of zero is the default one.
  Session Make(const SessionKey& key, absl::Duration ttl);
  Session& Insert(Session session);
  void CopyState(Session& parent, Session& child);
  SessionInfo Describe(const Session& session) const;
  // Lets sessions that are here know what the store came to doubt of them since it found damage.
  void NoteDoubts();
  absl::Duration Now() const { return clock_.Monotonic(); }

  StatePool& pool_;
  Clock& clock_;
  EngineStats& stats_;
  const Options options_;

  Parking parking_;
  SessionTable table_;
  absl::flat_hash_set<SessionKey> claimed_;
  SnapshotBudget turn_snapshots_;
  int ephemeral_slabs_ = 0;
  int64_t made_ = 0;          // sessions
  int64_t times_mended_ = 0;  // SessionStore::times_mended, when NoteDoubts was called last
  int commands_ = 0;          // keys that they claim
  struct PendingRewind {
    SessionKey key;
    RewindTarget to;
    SessionLog::Done done;
  };
  std::vector<PendingRewind> rewinds_;  // of sessions that are on their way from the store
  // Whose checkpoint was taken after so many turns, and has no snapshot yet.
  absl::flat_hash_map<SessionKey, int64_t> checkpointed_;
  absl::flat_hash_map<std::string, int64_t> new_checkpoints_;  // on their way, by owner
  absl::Duration next_deletion_ = absl::ZeroDuration(), next_lag_ = absl::ZeroDuration();
  absl::Time started_ = absl::InfinitePast();       // this, by the date as it was last
  std::pair<std::string, std::string> deleted_to_;  // names in the store that were looked at
};

}  // namespace mneme
