// Prompts that begin alike: states behind their common beginnings, which new sessions start from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/engine_stats.h"
#include "engine/sessions/host_states.h"
#include "engine/sessions/prefix_tree.h"
#include "engine/sessions/session.h"
#include "engine/state_pool.h"

namespace mneme {

class PrefixCache;

inline constexpr int64_t kNoCut = std::numeric_limits<int64_t>::max();

// What a session is, beside its slab, once it was fed a prefix.
struct PrefixFacts {
  ConversationDigest fed;
  bool has_text = false;
  TokenHistory history;
  int32_t evictions = 0;
};

// The state behind a prefix, in memory of the host.
struct PrefixSnapshot {
  PrefixNode* node = nullptr;
  int state = -1;      // HostStates
  bool ready = false;  // all of its bytes are there
  bool behind_answer = false;
  int readers = 0;  // sessions that it is on its way to
  PrefixFacts facts;
  std::list<PrefixSnapshot*>::iterator place;
};

// A prompt on its way into a new session, from PrefixCache::Begin until it is all fed or given up,
// which its end tells the cache. It is in one of these states:
//
//   waiting   for another run's state at `awaited`, until that was fed so far or has it from the
//             host; or for a snapshot on its way to the host
//   coming    a snapshot is on its way to its slab
//   started   it is fed; or, while `saving`, its slab is copied, and must not be written
class PrefixRun {
 public:
  ~PrefixRun();
  PrefixRun(const PrefixRun&) = delete;
  PrefixRun& operator=(const PrefixRun&) = delete;

  // Whether Start() has said where it begins.
  bool started() const { return started_; }
  // Whether its slab may be written.
  bool can_run() const { return started_ && !saving_; }

 private:
  friend class PrefixCache;
  explicit PrefixRun(PrefixCache& cache) : cache_(cache) {}

  PrefixCache& cache_;
  int64_t number_ = 0;  // in order of Begin
  int slot_ = -1;
  PrefixNode* leaf_ = nullptr;
  bool paused_ = false;
  bool started_ = false;
  bool saving_ = false;
  int64_t position_ = 0;  // tokens fed, or taken from elsewhere
  int64_t begun_at_ = 0;  // position where it started
  // While it waits:
  PrefixNode* awaited_ = nullptr;
  const PrefixRun* producer_ = nullptr;
  // While a snapshot comes:
  PrefixSnapshot* source_ = nullptr;
  std::unique_ptr<Transfer> transfer_;
  // What it takes over, once that is in its slab.
  std::optional<PrefixFacts> facts_;
};

// What a session is fed behind its prompt, from PrefixCache::Follow until the request ends, and,
// where its state is kept then, until that is with the host: its slab must not be written
// meanwhile.
class PrefixTrail {
 public:
  ~PrefixTrail();
  PrefixTrail(const PrefixTrail&) = delete;
  PrefixTrail& operator=(const PrefixTrail&) = delete;

  void Add(std::span<const int32_t> fed) { fed_.insert(fed_.end(), fed.begin(), fed.end()); }
  bool saving() const { return saving_; }

 private:
  friend class PrefixCache;
  PrefixTrail(PrefixCache& cache, PrefixNode& node) : cache_(cache), node_(&node) {}

  PrefixCache& cache_;
  PrefixNode* node_;          // has it among its users
  std::vector<int32_t> fed_;  // behind that
  bool saving_ = false;
};

// Sessions whose prompts begin with the same tokens have the same state behind those (steps may cut
// prompts anywhere). So a prompt is cut where its state may serve others, the state there is copied
// to the host, and later prompts begin with the longest one that is theirs. Cut is
//
//   where clients ask for it; where messages end; where a second prompt parted from an earlier one;
//   at powers of two
//
// but, unless a client asks for it, not closer to the state before than `least_tokens` and a 32nd
// of the prompt. A prompt whose beginning is just being computed waits for that (for an earlier
// run, which is not paused, so that nobody waits in a circle), and has a copy of the slab when it
// stands there; should it never come to stand there, the first one of those that wait goes on.
// A session that goes on keeps its place in the tree (Session::path), so that its later prompts are
// cut, too; and the state behind an answer is kept for conversations that go on from there, or go
// back to there. States are forgotten least recently used first, and of those that were a guess and
// never used the newest ones.
//
// Model, weights and the formats of states are the same for all that one cache holds; the seed of a
// memory that draws is the same within a space. A slab's own bytes are copied, as in HostStates.
//
// Owned and called by one thread, the loop's. Whatever the constructor takes must outlive it; all
// runs have ended before it does.
class PrefixCache {
 public:
  struct Options {
    int64_t least_tokens = 32;  // of a prefix that is worth being kept; powers of two: twice that
    int64_t max_tree_bytes = int64_t{64} << 20;  // for tokens of prompts
    bool shared = false;                         // by all owners
  };
  // `wake`: called, maybe by another thread, when Settle() has something to do; may be empty.
  PrefixCache(StatePool& pool, HostStates& states, EngineStats& stats, std::function<void()> wake,
              const Options& options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The part of a space that says whose prompts share states; it has no NUL.
  absl::string_view OwnerOf(const SessionKey& key) const {
    return options_.shared ? absl::string_view() : key.owner;
  }

  // `prompt` is to be fed to the new session in `slot`, and shares states with others of its
  // `space`. Cuts: where messages end (kWanted), in order, and where the client asks (kAsked). Null
  // where nothing can be shared.
  std::unique_ptr<PrefixRun> Begin(absl::string_view space, std::span<const int32_t> prompt,
                                   std::vector<PrefixCut> cuts, int slot);

  // `feed` is to be fed to a session that goes on, in `slot`, behind `position` tokens, which are
  // those of `path`. Cuts are positions of the session. The run has started. Null where the tree
  // does not have these tokens in that space, or has no room for more.
  std::unique_ptr<PrefixRun> Continue(absl::string_view space, uint64_t path, int64_t position,
                                      std::span<const int32_t> feed, std::vector<PrefixCut> cuts,
                                      int slot);

  // The position where the run begins, and what its session is there; nothing while it waits.
  // Before the first Start() of a turn, Settle() and SetPaused() of all runs.
  struct Beginning {
    int64_t position = 0;
    std::optional<PrefixFacts> facts;  // if position > 0
  };
  std::optional<Beginning> Start(PrefixRun& run);
  // The same for a run that is to end: it waits for nothing.
  Beginning StartNow(PrefixRun& run);
  // For a run that did not start: where it could at once.
  int64_t Reach(const PrefixRun& run) const;
  // It starts at a position, with a state that comes from elsewhere.
  void StartAt(PrefixRun& run, int64_t position);
  // A paused run gets no rows for now: nobody waits for it.
  static void SetPaused(PrefixRun& run, bool paused) { run.paused_ = paused; }
  // The next position where it has to stop; kNoCut if there is none.
  int64_t NextCut(const PrefixRun& run) const;
  // It was fed until `position`, and no step writes its slab now. Where that is a cut, the state is
  // kept, and given to those who wait for it.
  void Advance(PrefixRun& run, int64_t position, const Session& session);
  // Forgets what a session that was fed `tokens` has left here behind its first `position` tokens,
  // but for what another one is just taking. `owner`: of its space, up to the NUL.
  void ForgetPath(absl::string_view owner, std::span<const int32_t> tokens, int64_t position);
  // Begins what follows a run that was fed its prompt, whose last token that is.
  std::unique_ptr<PrefixTrail> Follow(const PrefixRun& run, int32_t last);
  // PrefixTree's name for what the run was fed so far; 0: it has none.
  uint64_t PathOf(const PrefixRun& run);
  // The request has ended, and no step writes the slab now. The name of all that the session was
  // fed, or 0; keeps the state there, if it lies far enough behind the one before.
  uint64_t KeepEnd(PrefixTrail& trail, const Session& session);
  // Those of a path of so many; none where the tree does not have them.
  std::vector<int32_t> TokensOf(uint64_t path, int64_t count) const;
  // Takes note of what has arrived.
  void Settle();
  // For another run, whose pause is seen by Start() alone.
  bool anyone_waits() const {
    return std::any_of(runs_.begin(), runs_.end(),
                       [](const PrefixRun* run) { return run->awaited_ != nullptr; });
  }

  void PublishGauges() const;

 private:
  friend class PrefixRun;
  friend class PrefixTrail;
  struct Saving {
    bool* goes_on;  // the run's or the trail's
    PrefixSnapshot* snapshot;
    std::unique_ptr<Transfer> transfer;
  };
  // How many tokens a state has to be in front of the next one, of a prompt of so many.
  int64_t LeastGap(int64_t tokens) const;
  void AddRun(PrefixRun& run, PrefixNode& leaf, int slot);
  void End(PrefixRun& run);
  // Waits for a copy of a slab that is given up.
  void AwaitSaving(const bool& goes_on);
  // Until `run.producer_` stands at the node.
  static void Await(PrefixRun& run, PrefixNode& node);
  bool StillAwaits(const PrefixRun& run) const;
  void StopWaiting(PrefixRun& run);
  // Begins to wait, or to bring a snapshot; false: there is nothing to wait for.
  bool FindSource(PrefixRun& run);
  PrefixSnapshot* DeepestSnapshot(const PrefixRun& run) const;
  // Finishes a snapshot's way to the run's slab, waiting for it if need be; those that wait for it
  // have copies.
  void Arrive(PrefixRun& run);
  // Begins to copy the slab, if there is room; `goes_on` is true until it was copied.
  void Keep(int slot, PrefixNode& node, const PrefixFacts& facts, bool& goes_on);
  bool MayKeep(const PrefixNode& node) const;
  void Finish(const Saving& saving);
  bool MakeRoom(int64_t pages);
  void Forget(PrefixSnapshot& snapshot);

  StatePool& pool_;
  HostStates& states_;
  EngineStats& stats_;
  const std::function<void()> wake_;
  const Options options_;
  int64_t begun_ = 0;
  std::vector<PrefixRun*> runs_;          // in order of Begin
  std::list<PrefixSnapshot*> snapshots_;  // to be forgotten last first
  std::list<Saving> savings_;
  PrefixTree tree_;  // goes first
};

}  // namespace mneme
