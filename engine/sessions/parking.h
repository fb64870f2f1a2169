// Where the states of named sessions are: in a slab, in memory of the host, in the store, or on the
// way.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine_stats.h"
#include "engine/sessions/host_states.h"
#include "engine/sessions/session.h"
#include "engine/sessions/stored_states.h"
#include "engine/state_pool.h"

namespace mneme {

// Idle sessions are parked, the least recently used first, when requests need more slabs than are
// free, and come back when a request wants them. Both go on beside steps: a slab that is left is
// free once all of its bytes are with the host, and a session that comes has its slab from the
// beginning. What is moved are the slab's own bytes, so that a session that was parked says the
// same as one that was not.
//
// Where there is a store, too, a host that is full sends the least recently used of its states on.
// A session that is not durable is nowhere else until the store has its snapshot, and keeps its
// slab until then. Where the store refuses that, it stays, and is not tried again for a second.
//
// Newcomers, that is, whatever adds to the sessions that there are, leave room for one state with
// the host. So a session that is parked can always change places with one that is not, and a
// request for it waits for no more than its turn: requests that run come to an end, and what those
// that wait have claimed can be parked for the ones in front of them.
//
// Owned and called by one thread. What the constructor takes must outlive it.
class Parking {
 public:
  // `host`, `store`: null where nothing is ever parked there. `wake`: called, maybe by another
  // thread, when Settle() has something to do; may be empty. `before_snapshot`: called with each
  // session that is not durable before its snapshot is handed to the store, which takes none of
  // another position than it knows; may be empty where there is no store.
  Parking(StatePool& pool, HostStates* host, StoredStates* store, Clock& clock, EngineStats& stats,
          std::function<void()> wake, std::function<void(Session&)> before_snapshot);
  ~Parking();  // waits for what is on its way
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  bool enabled() const { return host_ != nullptr || store_ != nullptr; }

  // --- Sessions come, go, rest and are used. Those that are named call all of these ---

  // A new one that holds a slab, idle.
  void AddWithSlab(Session& session);
  // A new one without: room for a newcomer is there.
  void AddWithHost(Session& session);
  // Gives back all that it holds, after waiting for it where it is on its way.
  void Remove(Session& session);
  // Nobody uses it from now on: it may be parked.
  void Rest(Session& session);
  // A request that waits has claimed it, or one that runs is using it: it is parked by Park()
  // alone, or not at all.
  void Use(Session& session);

  // --- Slabs ---

  // Slabs that will be free when those that leave have left.
  int leaving() const { return leaving_; }
  // How many more could be made free, now or when requests end that run: those of all sessions that
  // the host has room for, or the store, but for that of `keeper`, which may be null.
  int Obtainable(const Session* keeper, bool newcomer) const;
  // Whether the host has room for another session.
  bool HasRoomForNewcomer(int64_t tokens) const;
  // Whether states go to the store.
  bool stores() const { return store_ != nullptr; }
  // Begins to park up to so many of those that rest, and says how many.
  int ParkResting(int slabs, bool newcomer);
  // Begins to park one that has a slab, resting or claimed by a request that waits. False: it moves
  // already, or there is no room.
  bool Park(Session& session, bool newcomer);
  // Parks one that rests and waits until its slab is free. False: there is none, or no room.
  bool FreeSlab();
  // Begins to bring one back: a slab is free. One that is leaving stays instead.
  void Fetch(Session& session);
  // Waits until the session is where it is going, but for one that goes to the store and is not
  // durable: that is leaving as long as it is written.
  void Await(Session& session);
  // Takes note of what has arrived.
  void Settle();
  // Begins to park some of those that rest, if sessions came or had to make room lately: whoever
  // comes next then waits for its own state, and not for another's to leave as well. Of every
  // kPlacesPerFree slabs one is kept free, and kMostFree at most.
  void KeepPlacesFree();
  static constexpr int kPlacesPerFree = 16;
  static constexpr int kMostFree = 4;

  // --- The store ---

  // Begins to write a snapshot of one that rests. False: it moves, or too much is being written.
  bool Snapshot(Session& session);
  // Park() to the store, wherever there is room.
  bool ParkInStore(Session& session) { return ParkInStore(session, /*stays=*/false); }
  // Why the store has refused a session that is not durable, the last one; OK: none is known that
  // it would refuse again.
  const absl::Status& refusal() const { return refusal_; }
  bool IsRefused(const Session& session) const {
    return refused_.contains(const_cast<Session*>(&session));
  }
  // From now on nobody needs slabs, and what counts is that each session gets to the store: a disk
  // that has refused one is asked for each of the others, too. What a key may have does not change
  // any more: for that, a session is refused for good.
  void SaveAll() { saves_all_ = true; }
  bool IsRefusedForGood(const Session& session) const {
    const auto refused = refused_.find(const_cast<Session*>(&session));
    return refused != refused_.end() && refused->second == absl::InfiniteDuration();
  }
  // Sessions that were written, or could not be, and that nobody may have a use for, since the last
  // call: by key, as some may be gone or come again.
  std::vector<SessionKey> TakeStored();
  // Whether it comes from the store, which nobody can wait for without running steps.
  bool IsBeingFetchedFromStore(const Session& session) const;
  // A session whose slab has what it was fed up to a turn of its log, and what is to follow.
  struct Replay {
    Session* session = nullptr;
    StoredState from;
  };
  std::optional<Replay> TakeReplay();
  // The rest was fed to its slab, whose history is that; or, not OK, was not, and it stays where it
  // was.
  void FinishReplay(Session& session, TokenHistory history, const absl::Status& status);
  // The rest was fed, and led to another state than the log says. It is read once more, without the
  // snapshot that it began with, and is fed its log again: TakeReplay() has it then. Where there
  // was no snapshot, it is lost.
  void ReplayAgain(Session& session, uint64_t suspect);
  // Whether snapshots are on their way, or states come.
  bool store_is_busy() const;

  // --- Copies, whose target is new; they wait ---

  // From a session with a slab to one of AddWithHost, and between two that are parked.
  void CopyToHost(const Session& from, Session& to);
  // From a parked session to one with a slab.
  void CopyToSlab(const Session& from, const Session& to);

  void PublishGauges() const;

 private:
  struct Move {
    Session* session;
    absl::Duration begun;
    std::unique_ptr<Transfer> transfer;
    int buffer = -1;  // of the store's that it leaves to; -1: it has to do with the host
  };
  // From the store: read, copied to a slab, to be fed its log.
  struct Arrival {
    Session* session;
    absl::Duration begun;
    std::optional<StoredState> state;  // once it was read
    std::unique_ptr<Transfer> transfer;
    bool copied = false;
    bool replays = false;  // TakeReplay() has returned it
  };
  // parking_store.cc
  bool ParkInStore(Session& session, bool stays);
  void Copied(Session& session, const Move& move);
  void Wrote(const StoredStates::Written& written);
  void WroteFromHost(const StoredStates::Written& written);
  void Refuse(Session& session, const absl::Status& why);
  void AskAgain();
  int RefusedAndResident(const Session* keeper, bool newcomer) const;
  int ParkOldest(int slabs, bool newcomer);
  void Leave(Session& session);
  std::list<Arrival>::iterator ArrivalOf(const Session& session);
  void Advance(Arrival& arrival);
  void Fail(Session& session, const absl::Status& why);
  void Begin(Session& session, Residence to, absl::Duration now, std::unique_ptr<Transfer> transfer,
             int buffer = -1);
  void Arrive(const Move& move);
  void Stay(Session& session);
  // Its state with the host, which stays as long as it is written from there.
  void FreeHostState(Session& session);
  // The least recently used of those with the host; null: none that can go to the store.
  Session* OldestOnHost() const;
  static bool IsInStore(const Session& session);
  // From the host to the store, which has it.
  void LeaveHost(Session& session);
  // Where the host is full: begins to write the least recently used one.
  void MakeRoomOnHost();
  int64_t FreePages(bool newcomer) const;

  StatePool& pool_;
  HostStates* const host_;
  StoredStates* const store_;
  Clock& clock_;
  EngineStats& stats_;
  const std::function<void()> wake_;
  const std::function<void(Session&)> before_snapshot_;
  int64_t uses_ = 0;
  std::set<std::pair<int64_t, Session*>> resting_;  // with a slab, by when they were used last
  std::set<Session*> in_use_;                       // with a slab
  std::list<Move> moves_;
  int leaving_ = 0;
  absl::Duration busy_until_ = absl::ZeroDuration();  // KeepPlacesFree
  int64_t coming_pages_ = 0;  // that will be free when those that come are there
  std::set<std::pair<int64_t, Session*>> on_host_;  // parked there, by when they were used last
  // One that is written from the host's memory: the session, as long as that is its state.
  struct Demotion {
    StoredStates::Ticket ticket = 0;
    Session* session = nullptr;
    int host_state = -1;
  };
  std::optional<Demotion> demotion_;
  absl::Duration no_demotion_until_ = absl::ZeroDuration();
  // Not durable, copied, and on its way to a file.
  struct Writing {
    StoredStates::Ticket ticket = 0;
    Session* session = nullptr;
    absl::Duration begun;
  };
  std::vector<Writing> writing_;
  // Not durable, and with a slab when the store refused it: until when it is not asked again.
  absl::flat_hash_map<Session*, absl::Duration> refused_;
  absl::Status refusal_;
  bool saves_all_ = false;
  std::list<Arrival> arrivals_;
  std::vector<SessionKey> stored_;
};

}  // namespace mneme
