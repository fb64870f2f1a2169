// Where the states of named sessions are: in a slab, in memory of the host, or on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine_stats.h"
#include "engine/sessions/host_states.h"
#include "engine/sessions/session.h"
#include "engine/state_pool.h"

namespace mneme {

// Idle sessions are parked, the least recently used first, when requests need more slabs than are
// free, and come back when a request wants them. Both go on beside steps: a slab that is left is
// free once all of its bytes are with the host, and a session that comes has its slab from the
// beginning. What is moved are the slab's own bytes, so that a session that was parked says the
// same as one that was not.
//
// Newcomers, that is, whatever adds to the sessions that there are, leave room for one state with
// the host. So a session that is parked can always change places with one that is not, and a
// request for it waits for no more than its turn: requests that run come to an end, and what those
// that wait have claimed can be parked for the ones in front of them.
//
// Owned and called by one thread. What the constructor takes must outlive it.
class Parking {
 public:
  // `host`: null where nothing is ever parked. `wake`: called, maybe by another thread, when
  // Settle() has something to do; may be empty.
  Parking(StatePool& pool, HostStates* host, Clock& clock, EngineStats& stats,
          std::function<void()> wake);
  ~Parking();  // waits for what is on its way
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  bool enabled() const { return host_ != nullptr; }

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
  // the host has room for, but for that of `keeper`, which may be null.
  int Obtainable(const Session* keeper, bool newcomer) const;
  // Whether the host has room for another session.
  bool HasRoomForNewcomer(int64_t tokens) const;
  // Begins to park up to so many of those that rest, and says how many.
  int ParkResting(int slabs, bool newcomer);
  // Begins to park one that has a slab, resting or claimed by a request that waits. False: it moves
  // already, or the host has no room.
  bool Park(Session& session, bool newcomer);
  // Parks one that rests and waits until its slab is free. False: there is none, or no room.
  bool FreeSlab();
  // Begins to bring one back: a slab is free. One that is leaving stays instead.
  void Fetch(Session& session);
  // Waits until the session is where it is going.
  void Await(Session& session);
  // Takes note of what has arrived.
  void Settle();

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
  };
  void Begin(Session& session, Residence to, absl::Duration now,
             std::unique_ptr<Transfer> transfer);
  void Arrive(const Move& move);
  void Stay(Session& session);
  void Free(int& host_state);
  int64_t FreePages(bool newcomer) const;

  StatePool& pool_;
  HostStates* const host_;
  Clock& clock_;
  EngineStats& stats_;
  const std::function<void()> wake_;
  int64_t uses_ = 0;
  std::set<std::pair<int64_t, Session*>> resting_;  // with a slab, by when they were used last
  std::set<Session*> in_use_;                       // with a slab
  std::list<Move> moves_;
  int leaving_ = 0;
  int64_t coming_pages_ = 0;  // that will be free when those that come are there
  int64_t parked_ = 0;
};

}  // namespace mneme
