// What the store is told of named sessions, and what it says of those that have no Session here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "engine/sessions/log_cut.h"
#include "engine/sessions/logged_facts.h"
#include "engine/sessions/session.h"
#include "engine/sessions/stored_states.h"
#include "store/session_store.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// What a request, or a command, fed to a session that it has to itself.
struct FedTurn {
  std::vector<int32_t> tokens;
  int64_t prompted = 0;          // of those: what a client sent
  bool fed_pending = false;      // the first one was the pending token
  bool dropped_pending = false;  // there was one, and it was taken back
  int64_t known = 0;             // of the first tokens: those that the log has in front of it
  bool sent_before = false;      // what was fed before counts as what a client sent
  std::optional<std::pair<int64_t, int64_t>> forgotten;  // positions [begin, end)
  bool imported = false;                                 // all of the session came in a file
};

// FAILED_PRECONDITION, NO_STORE: nothing of sessions is logged.
absl::Status NoStore();

// Owned and called by one thread, the loop's. Changes go to the store's thread; what became of them
// is told by Settle(). What the constructor takes must outlive it.
class SessionLog {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;            // ConversationDigest::Add
    uint64_t model = 0;                              // SessionRecord::model
    std::string model_name;                          // NameModel; may be empty
    uint64_t arithmetic = 0;                         // LoggedFacts::arithmetic
    int engram_capacity = 0;                         // likewise
    Durability durability = Durability::kTurn;       // where nobody says
    std::function<uint64_t(const Session&)> digest;  // of a state in a slab; may be empty
    StoredStates* states = nullptr;                  // of the store's
  };
  // `wake`: called by another thread when Settle() has something to do; may be empty.
  SessionLog(SessionStore& store, Clock& clock, EngineStats& stats, Options options,
             std::function<void()> wake);
  ~SessionLog();  // waits for what is on its way

  SessionStore& store() const { return store_; }
  const Options& options() const { return options_; }

  // --- Records ---

  std::optional<SessionRecord> Find(const SessionKey& key) const {
    return store_.Find(key.owner, key.name);
  }
  // Whether a session that nobody has here can go on: its state is what the store has.
  bool CanGoOn(const SessionRecord& record) const;
  // OK where a session of that name may begin. `replaces_lost`: as in Request. DATA_LOSS,
  // SESSION_LOST: there was one. FAILED_PRECONDITION, MODEL_MISMATCH.
  absl::Status CheckBeginning(const SessionKey& key, bool replaces_lost) const;
  // Why nothing can be done with the one of that name; of one that can go on, OK.
  absl::Status CheckRecord(const SessionRecord& record) const;
  // DATA_LOSS, SESSION_LOST, of a session that may be older than it was, unless the request knows
  // that: it says where the session stands, takes what is left, or sends the whole conversation.
  static absl::Status CheckDoubt(const Session& session, const Request& request);
  // FAILED_PRECONDITION, ENGRAM_CAPACITY: the session cannot go on with this server's room for
  // engrams, for the reason that `why` ends a sentence with. OK where it has the room that it had.
  absl::Status CheckCapacity(const SessionRecord& record, absl::string_view why) const;
  // Fills a session with what is known of it without its state.
  static absl::Status Restore(const SessionRecord& record, Session& session);
  // As of the last change that is durable: for a session that was taken back to there.
  int64_t PositionOf(const SessionKey& key) const;
  uint64_t NewId() { return store_.NewId(); }

  // --- Changes ---

  // Called with OK when the change is durable. Otherwise the status says NOT_DURABLE, or which
  // limit of the key's is in the way (KEY_STORAGE_LIMIT), and the store has the session as it was.
  using Done = std::function<void(const absl::Status&)>;
  static void IgnoreStatus(const absl::Status&) {}

  void Create(Session& session, Done done);
  void Fork(const Session& parent, Session& child, Done done);
  void Delete(int64_t id, Done done);
  // Begins the session, too, where the log does not have it yet. Of one that is not durable only
  // where it stands is told: with its name, and then when there is time for it, where `done` is
  // called at once.
  void AddTurn(Session& session, FedTurn turn, std::optional<RequestRecord> request, Done done);
  // Tells again where one that is not durable and does not run stands, if the store could not be
  // told.
  void CatchUp(Session& session);
  // The same of a session behind which no log leads back: all that the store has of it is a
  // snapshot of where it stands now, which becomes durable with the turn. Of what was answered to
  // requests, what ended beyond a position is gone, too. The state is in its slab, or, where it has
  // none, in `slab`, memory of the host that is read until this returns.
  void AddTurnWithoutPast(Session& session, FedTurn turn, int64_t answers_beyond, Done done,
                          const std::byte* slab = nullptr);

  // These may be refused, too: NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, with the store's words.
  //
  // Back to where it was (RewindTarget): what is here of it is not it any more.
  void Rewind(int64_t id, RewindTarget to, Done done);
  // Looks for where its log and a whole conversation part, on another thread; wakes the loop.
  std::shared_ptr<const CutSearch> FindCut(const Session& session,
                                           std::vector<int32_t> prompt) const;
  // Reads ReadTokens() in the same way.
  std::shared_ptr<const CutSearch> FindTokens(const Session& session) const;
  // A session that begins as another one was.
  void ForkAt(int64_t parent, Session& child, RewindTarget at, Done done);
  // Where the session stands.
  void AddCheckpoint(const Session& session, const std::string& name, absl::Time created,
                     Done done);
  void DropCheckpoint(int64_t id, const std::string& name, Done done);

  // Calls who waits. False: there was nobody.
  bool Settle();
  // Waits until Settle() has something to do; there is something on its way.
  void Await();
  int pending() const { return pending_; }
  // All that is wrong with the store: the last error of the disk's, until a later change was
  // durable; snapshots that are not written, until one is; names in doubt, until they are trusted;
  // what was found to be damaged since the store was opened.
  absl::Status health() const;
  // The error that a turn would end with, where that is known before it begins: the disk is full,
  // or the key has stored what it may. `session`: null where it is to begin.
  absl::Status CheckStorage(const SessionKey& key, const Session* session) const;

 private:
  struct Inbox;
  SessionRecord NewRecord(const Session& session) const;
  std::string Described(uint64_t model, absl::string_view name) const;
  // What has to go before a session of that name begins, and what has to be there.
  void AppendBeginning(const Session& session, std::vector<Change>& changes) const;
  std::vector<Change> ChangesOf(Session& session, FedTurn turn,
                                std::optional<RequestRecord> request, uint64_t imported_as);
  // What another thread tells of a change that somebody waits for, who has it from Settle().
  // `may_refuse`: what the store finds wrong with the change is told as it is.
  Done Expect(Done done, bool may_refuse = false);
  // As Expect, with its time and failure counted.
  Done ExpectCounted(Done done, bool may_refuse = false);
  void Submit(std::vector<Change> changes, Done arrive, bool may_wait);

  SessionStore& store_;
  Clock& clock_;
  EngineStats& stats_;
  const Options options_;
  const std::shared_ptr<Inbox> inbox_;
  int pending_ = 0;
  // Sessions that are not durable, and whose records do not say where they stand.
  absl::flat_hash_set<int64_t> behind_;
};

}  // namespace mneme
