// Requests that have come and do not run yet: their order, what they wait for, whom to let in next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/engine_stats.h"
#include "engine/generation.h"
#include "engine/sessions/session_manager.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// A request runs, that is, gets rows in steps, once it has its slabs and steps have room for its
// rows, one for each choice: no more choices run than max_rows. One whose reader is slow, or which
// waits for the beginning of its prompt (PrefixCache), lends its rows to others meanwhile, and one
// with more choices than max_rows runs alone; where that makes more than fit, they take turns
// (scheduler.h). All others wait, in order of arrival less what their priority is worth
// (kPriorityStep): nobody overtakes who waits for a row, and what somebody waits for of slabs is
// kept from later ones. At most max_queued requests wait; one more is RESOURCE_EXHAUSTED, reason
// QUEUE_FULL.
//
// When no slab is free. A request that needs slabs waits as long as those that are free, or will be
// freed by running requests (the ones of ephemeral sessions and additional choices), or by named
// sessions that can be parked (Parking), would do; otherwise only deletion or expiry of sessions
// could help, so it is refused at once: RESOURCE_EXHAUSTED, reason NO_FREE_SLAB, with the time to
// the next expiry as the retry hint. Requests that go on with a session that has its slab need
// none, and pass by those that wait for one. Those of a parked session wait for it in their place,
// without a row, and as if they were to take a slab for themselves. For those in front idle
// sessions are parked first, and then those of requests that wait further behind, the last one
// first: so whoever is in front gets all slabs that there are as requests end, and nobody keeps
// from it what it waits for.
//
// Owned and called by one thread, the loop's. Whatever the constructor takes must outlive it.
class AdmissionQueue {
 public:
  struct Options {
    int max_rows = 1;                                   // of a step
    int max_queued = 0;                                 // requests found to have to wait
    std::optional<int64_t> max_context = std::nullopt;  // tokens that a session can be fed
    std::string context_bound = "--max-context";        // what says so
    uint64_t memory_seed = 0;                           // ModelInfo's
  };
  // `tokenizer` may be null.
  AdmissionQueue(SessionManager& sessions, const Tokenizer* tokenizer, EngineStats& stats,
                 const Options& options);

  // The request takes its place, and gets its number of arrival. It stays until it is let in or
  // DropEnded() finds that it has ended.
  Generation& Add(std::unique_ptr<Generation> submitted);
  // The other way, of one that has claimed nothing.
  std::unique_ptr<Generation> Remove(const Generation& g);
  // Settles what the request is to its session, which it claims if it names one: leaves of a
  // history sent whole what the session does not know, and of two readings of a prompt the one that
  // holds there. The error of a request that cannot go on from there, which then claims nothing.
  absl::Status Claim(Generation& g);

  // Goes through those that wait, in order. Calls begin() for each that has what it needs; it then
  // takes its session and slabs, is_admitted(), and moves to `running`, which holds the requests
  // that have rows. Calls refuse() for each that waits in vain; it then has ended.
  void AdmitInto(std::vector<std::unique_ptr<Generation>>& running,
                 absl::FunctionRef<void(Generation&)> begin,
                 absl::FunctionRef<void(Generation&, const absl::Status&)> refuse);

  // A request, waiting or not, has ended: it does not count any more. Also from refuse().
  void Leave(Generation& g);
  void DropEnded();

  // Those that have ended until DropEnded(), too.
  const std::vector<std::unique_ptr<Generation>>& waiting() const { return waiting_; }
  int queued() const { return queued_; }
  // Slabs that those found to wait will need, as of the last AdmitInto().
  int slabs_awaited() const { return slabs_awaited_; }

 private:
  // Begins to park sessions until so many slabs are free, or will be, for the request waiting_[i]
  // and those in front of it: idle ones, then those of requests behind it.
  void MakeRoom(size_t i, int slabs);
  Session* SessionOf(const Generation& g) const;
  absl::Status CheckAgainstSession(const Generation& g, const Session* session) const;
  absl::Status CheckContext(const Request& request, const Session* session) const;
  // The error of a request that must not wait for what it needs.
  absl::Status CheckRoom(const Generation& g, int slabs_needed) const;
  absl::Status CheckFetched(const Generation& g) const;
  int SlabsNeeded(const Generation& g) const;
  bool IsNewcomer(const Generation& g) const;
  bool HasSession(const Generation& g) const;
  // Begins to bring its session back, if that is parked and a slab is free.
  void BringBack(const Generation& g);
  absl::Status Wait(Generation& g, int slabs_needed);

  SessionManager& sessions_;
  const Tokenizer* const tokenizer_;
  EngineStats& stats_;
  const Options options_;

  std::vector<std::unique_ptr<Generation>> waiting_;  // by arrival and priority
  int slabs_awaited_ = 0;
  int queued_ = 0;
  int64_t arrivals_ = 0;
};

}  // namespace mneme
