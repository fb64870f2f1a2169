// Sessions that outlive the process: their log, their snapshots, and what was promised about them.
//
//   FOLDER/lock               says who uses the folder
//   FOLDER/catalogue.*.db     catalogue.h: sessions, logs, requests, lists of snapshots
//   FOLDER/commits            commit_mark.h: how many commits the catalogue has, at least
//   FOLDER/slabs/<id>.slab    slab_file.h: snapshots, whose ids are numbers
//
// The promise. A batch whose callback was called with OK is whole on the disk, and stays so after
// kill -9 and power loss at any instant. One whose callback was not called is, after a crash, whole
// or absent, never there in part; so is one that UNAVAILABLE was said of, which is absent until
// then. All this holds as far as the disk keeps what it has acknowledged as synced.
//
// Failures. After a failed sync nothing is acknowledged until the whole catalogue was written anew,
// to other blocks (file_system.h says why). A full disk refuses batches; they succeed again once
// there is room.
//
// Damage is found by checksums, set aside as <name>.damaged, and named in StoreReport or the log. A
// session of which something is missing falls back to the last state that its snapshots and turns
// lead to, or is kLost. Others are untouched. Where bytes of the WAL have changed, what is behind
// them is read all the same if that is certain (wal_check.h); if not, or where its end is gone, the
// last commits are lost: names are in doubt, snapshots that are newer than their sessions' rows are
// adopted, and whatever comes back may be older than it was (SessionRecord::doubted_at). After
// damage no file that verifies is removed: those that no session goes on from are set aside. What
// the disk did not keep of the mark of commits when power failed, nobody can tell from what it did
// not keep of the WAL's end (commit_mark.h).
//
// Deletion erases: rows are overwritten, the WAL is cut, snapshots are removed, and all of that is
// on the disk before the callback. So it is with what going back drops, with what is forgotten, and
// with turns that a long log loses. What a disk keeps in blocks that the file system has given up
// is that file system's matter, as is encryption. Files are for their owner alone.
//
// Order. A snapshot is durable before the row that names it, and its row is gone for good before
// its file is. So a file without a row is rubbish, which opening removes, and a row without a file
// is damage.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "store/catalogue.h"
#include "store/change_applier.h"
#include "store/file_system.h"
#include "store/session_record.h"
#include "store/slab_file.h"

namespace mneme {

// What opening a store found, beside whole sessions.
struct StoreReport {
  std::vector<std::string> set_aside;      // files, by their new names
  std::vector<absl::Status> damage;        // what was wrong with each row or file
  std::vector<SessionRecord> fallen_back;  // as they are now
  std::vector<SessionRecord> in_doubt;     // others that may be older than they were
  std::vector<SessionRecord> lost;         // since the last time
  int64_t orphans_removed = 0;             // files that no row names

  void Log() const;
};

struct StoreStats {
  int64_t commits = 0;
  int64_t failed_commits = 0;
  int64_t batches = 0;  // that were acknowledged
  int64_t turns = 0;
  int64_t log_bytes = 0;  // of turns, written
  int64_t written_anew = 0;
  int64_t queued = 0;  // batches, now
  // Since the store was opened, that included: rows and files that were damaged or missing, and
  // sessions that went back to an earlier position (or may have), or were lost, for it.
  int64_t damaged = 0;
  int64_t fallen_back = 0;
  int64_t lost = 0;
  bool names_in_doubt = false;  // SessionStore::names_in_doubt
  // Commits by how long they took, the sync included: bucket i has those of at most 2^i µs, the
  // last one all others.
  std::array<int64_t, 24> commit_time = {};
  absl::Duration commit_time_sum;
  absl::Status last_error;  // of the disk; OK again after the next commit
};

// Sessions by whether a server of one model can go on with them.
struct SessionTotals {
  int64_t all = 0;
  int64_t lost = 0;
  int64_t of_other_models = 0;  // and not lost
};

// All methods may be called from any thread. Submit, Find, List and stats do not wait for the disk;
// methods that read do, and must not be called from callbacks.
class SessionStore final : private CommittedSessions {
 public:
  struct Options {
    size_t queue_batches = 4096;
    size_t batches_per_commit = 1024;
    // Where the last commit was of several that were not to wait, the next is begun so much later
    // than it might be: sessions that decode together end turns together.
    absl::Duration gather = absl::Microseconds(300);
    absl::Duration lazy = absl::Seconds(1);  // how long batches wait that may
    int64_t requests_kept = 10'000;          // of all sessions; the oldest are forgotten first
    StoreLimits limits;
    // Left for deletions and for writing anew: other batches are refused below.
    int64_t reserved_bytes = int64_t{16} << 20;
    // Answers that gave way to newer ones are erased with the next deletion, or after that.
    absl::Duration erase_within = absl::Minutes(1);
    // A store whose disk has failed is tried with a small file so often, if nobody else tries it.
    absl::Duration probe_every = absl::Seconds(3);
    int64_t wal_pages = 4096;  // of 4 KiB, before they are moved into the database
    // All pages of a catalogue of at most so many bytes are looked at when it is opened, in half a
    // second; of a larger one, that its sessions, snapshots, checkpoints and requests are there.
    int64_t most_checked_bytes = int64_t{256} << 20;
  };

  // Makes the folder where there is none. FAILED_PRECONDITION: another process uses the folder (it
  // is named), or it was written by a newer version; its files are left alone. PERMISSION_DENIED,
  // FAILED_PRECONDITION: it cannot be written to.
  static absl::StatusOr<std::unique_ptr<SessionStore>> Open(FileSystem& files, std::string folder,
                                                            const Options& options,
                                                            StoreReport& report);
  // Commits what is queued, and closes.
  ~SessionStore() override;

  // An id for a session or a snapshot that nobody has, or had since the store was opened.
  uint64_t NewId();

  // --- Changes ---

  using Done = std::function<void(const absl::Status&)>;
  // All of `changes` become durable together, or none does. Batches of one caller are committed in
  // their order. `done` is called once, from the store's thread, in that order. RESOURCE_EXHAUSTED,
  // and no call of it: the queue is full. A batch that `may_wait` goes with the next one that may
  // not, or after Options::lazy.
  //
  // Errors of `done`: NOT_FOUND, ALREADY_EXISTS, INVALID_ARGUMENT, OUT_OF_RANGE say what is wrong
  // with the batch. RESOURCE_EXHAUSTED: a limit of the owner, or the disk is full. UNAVAILABLE: the
  // disk failed.
  absl::Status Submit(std::vector<Change> changes, Done done, bool may_wait = false);
  // Submits, and waits. For tests and tools.
  absl::Status Apply(std::vector<Change> changes);

  // --- Sessions, as they were committed last ---

  std::optional<SessionRecord> Find(absl::string_view owner, absl::string_view name) const override;
  std::optional<SessionRecord> Find(uint64_t id) const override;
  // In the order of owner and name, at most `limit` after `after`. Without `owner`, those of all.
  std::vector<SessionRecord> List(const std::optional<std::string>& owner,
                                  absl::string_view name_prefix,
                                  const std::pair<std::string, std::string>& after,
                                  size_t limit) const;
  // How many List would find. Others do not wait for that, however many there are.
  size_t Count(const std::optional<std::string>& owner, absl::string_view name_prefix) const;
  // How often damage was gone through since the store was opened, after which sessions may have a
  // SessionRecord::doubted_at that they had not.
  int64_t times_mended() const;
  // Rows of sessions were lost: a name that is not found may have existed. Until TrustNames.
  bool names_in_doubt() const;
  absl::Status TrustNames();
  // All of them, and those of an owner.
  int64_t sessions() const;
  SessionTotals TotalsFor(uint64_t model) const;
  bool HasSessionsOf(uint64_t model) const;  // lost ones do not count
  OwnerUsage UsageOf(const std::string& owner) const override;
  OwnerUsage UsageOfAll() const;
  const StoreLimits& limits() const { return options_.limits; }
  // SessionRecord::stored_bytes; 0 where there is no such session.
  int64_t StoredBytesOf(absl::string_view owner, absl::string_view name) const;
  // OverLimit where an owner's other sessions leave no room for a turn of that one, which has so
  // many bytes, whatever it gives up.
  absl::Status CheckLimit(const std::string& owner, int64_t own_bytes) const;
  // NameModel; empty where nobody said.
  std::string NameOfModel(uint64_t model) const;
  // Under which identity sessions are now that were kept as `model`'s, after TakeOverModel.
  uint64_t SuccessorOf(uint64_t model) const;

  // --- What is read from the disk ---

  // Turns from `first` on, at most `limit`. DATA_LOSS where one is damaged or missing.
  absl::StatusOr<std::vector<Turn>> ReadTurns(uint64_t session, int64_t first, size_t limit);
  // Oldest first.
  absl::StatusOr<std::vector<SnapshotRecord>> ReadSnapshots(uint64_t session);
  absl::StatusOr<std::vector<CheckpointRecord>> ReadCheckpoints(uint64_t session);
  // Nothing where the key is unknown.
  absl::StatusOr<std::optional<RequestRecord>> FindRequest(absl::string_view owner,
                                                           absl::string_view key);
  // Whether FindRequest may find something; does not wait for the disk.
  bool MayHaveRequest(absl::string_view owner, absl::string_view key) const;
  // Where the file of a snapshot is, or has to be written before AddSnapshot.
  std::string SnapshotPath(uint64_t snapshot) const;
  // RESOURCE_EXHAUSTED where a file of so many bytes would take of what is kept for deletions.
  // UNAVAILABLE: the folder is gone, or nobody knows.
  absl::Status CheckRoom(int64_t bytes) const;
  // OK: a small file can be written to the folder of snapshots, and synced. Waits for the disk. Of
  // one caller at a time for each `name`, which may not be that of a snapshot.
  absl::Status Probe(const std::string& name) const;
  // The error that a change which adds to the store would meet with, as far as that is known
  // without trying: the disk was too full for the last one, and is so still. Does not wait.
  absl::Status KnownToBeFull() const;

  StoreStats stats() const;

 private:
  struct Batch {
    std::vector<Change> changes;
    Done done;
    bool may_wait = false;
  };

  SessionStore(FileSystem& files, std::string folder, const Options& options)
      : files_(files), folder_(std::move(folder)), options_(options) {}

  using Name = std::pair<absl::string_view, absl::string_view>;  // owner, name
  struct NameOrder {
    using is_transparent = void;
    static Name Of(const SessionRecord* session) { return {session->owner, session->name}; }
    static Name Of(const Name& name) { return name; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Of(a) < Of(b);
    }
  };

  // store_open.cc: from files to sessions, at the start and after damage.
  absl::Status Start(StoreReport& report);
  absl::Status LoadSessions(const Catalogue::Damage& damage, bool opening, StoreReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status NoteSessions(const Catalogue::Damage& damage, bool opening,
                            std::vector<SessionRecord>& sessions, StoreReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status LoadRequests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status SweepSlabs(StoreReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status LoadModelNames() ABSL_LOCKS_EXCLUDED(disk_mu_);
  // Keeps what stats() says of it.
  void Note(const StoreReport& report, bool opening) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteRoom() ABSL_LOCKS_EXCLUDED(mu_);  // that a disk is full, when opened

  // store_recovery.cc: after damage, within a transaction.
  struct SnapshotFiles;
  struct Losses {
    bool commits = false;
    bool requests = false;  // of any session
  };
  absl::Status Recover(std::vector<SessionRecord>& sessions, Losses losses, bool opening,
                       StoreReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  // Sessions that requests are missing of; then each that is left has both of its rows.
  absl::StatusOr<absl::flat_hash_set<uint64_t>> PairRequests()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::StatusOr<SnapshotFiles> ReadSnapshotFiles(StoreReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status AdoptSnapshots(std::vector<SessionRecord>& sessions, SnapshotFiles& files)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status Reconcile(SessionRecord& session, SnapshotFiles& files, StoreReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status ReconcileParked(SessionRecord& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status DropSnapshotRow(uint64_t session, uint64_t snapshot, SnapshotFiles& files)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status DropAround(const SessionRecord& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status SetSlabAside(const std::string& path, StoreReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);

  // store_commit.cc: the store's thread.
  void Run();
  void CloseInOrder() ABSL_LOCKS_EXCLUDED(disk_mu_);
  void ProbeIfDue() ABSL_LOCKS_EXCLUDED(disk_mu_, mu_);
  void CommitBatches(std::vector<Batch> batches);
  void EraseIfDue(bool now) ABSL_LOCKS_EXCLUDED(disk_mu_);
  absl::Status Erase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status Mend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  void NoteRefused(const std::vector<Batch>& batches, const std::vector<absl::Status>& results)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  static bool OnlyErase(const std::vector<Batch>& batches);
  absl::Status CommitOnce(const std::vector<Batch>& batches, std::vector<absl::Status>& results,
                          StagedCommit& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status ForgetOldRequests(StagedCommit& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status Clean(const StagedCommit& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  void Publish(StagedCommit& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetSession(uint64_t id, std::optional<SessionRecord> session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeOver(const TakeOverModel& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteRequestKeys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_, mu_);
  // What a reader found to be damaged is mended before the next commit.
  absl::Status Noted(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);

  FileSystem& files_;
  const std::string folder_;
  const Options options_;
  std::unique_ptr<FileLock> lock_;

  // Who reads or writes rows holds it; the store's thread does while it commits.
  mutable absl::Mutex disk_mu_;
  std::unique_ptr<Catalogue> catalogue_ ABSL_GUARDED_BY(disk_mu_);
  std::vector<uint64_t> unused_snapshots_ ABSL_GUARDED_BY(disk_mu_);  // whose files are to go
  bool slabs_changed_ ABSL_GUARDED_BY(disk_mu_) = false;              // and not synced
  absl::Duration erase_due_ ABSL_GUARDED_BY(disk_mu_) = absl::InfiniteDuration();
  bool broken_ ABSL_GUARDED_BY(disk_mu_) = false;   // until written anew
  bool damaged_ ABSL_GUARDED_BY(disk_mu_) = false;  // broken_, and rows are missing
  absl::flat_hash_map<uint64_t, int> snapshot_users_ ABSL_GUARDED_BY(disk_mu_);  // sessions
  std::deque<RowKey> requests_ ABSL_GUARDED_BY(disk_mu_);  // rows of kRequest, oldest first

  mutable absl::Mutex mu_;  // after disk_mu_, where both are held
  std::deque<Batch> queue_ ABSL_GUARDED_BY(mu_);
  size_t urgent_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool names_in_doubt_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, std::unique_ptr<const SessionRecord>> sessions_
      ABSL_GUARDED_BY(mu_);
  absl::btree_set<const SessionRecord*, NameOrder> by_name_ ABSL_GUARDED_BY(mu_);  // of sessions_
  absl::flat_hash_map<std::string, OwnerUsage> usage_ ABSL_GUARDED_BY(mu_);        // by owner
  OwnerUsage usage_of_all_ ABSL_GUARDED_BY(mu_);
  int64_t times_mended_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t lost_ ABSL_GUARDED_BY(mu_) = 0;                             // of sessions_
  absl::flat_hash_map<uint64_t, int64_t> live_ ABSL_GUARDED_BY(mu_);  // of sessions_, by model
  absl::flat_hash_map<uint64_t, std::string> models_ ABSL_GUARDED_BY(mu_);   // names of models
  absl::flat_hash_map<uint64_t, uint64_t> successors_ ABSL_GUARDED_BY(mu_);  // TakeOverModel
  // Keys of rows of kRequest; of some that are gone, too.
  absl::flat_hash_set<std::string> request_keys_ ABSL_GUARDED_BY(mu_);
  StoreStats stats_ ABSL_GUARDED_BY(mu_);
  absl::Duration next_probe_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();

  std::thread thread_;
};

}  // namespace mneme
