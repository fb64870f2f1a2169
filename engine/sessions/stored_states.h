// States of sessions in files of the store: on their way there, and back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine_stats.h"
#include "engine/sessions/session.h"
#include "engine/sessions/snapshot_files.h"
#include "engine/state_pool.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "models/model.h"
#include "models/state_layout.h"
#include "store/rewind_point.h"
#include "store/session_store.h"

namespace mneme {

// What was read of a stored session: its newest snapshot, and the turns of the log behind it.
struct StoredState {
  absl::Status status;
  int buffer = -1;             // to be returned
  bool in_buffer = false;      // it has the snapshot's state; otherwise there is none
  uint64_t snapshot = 0;       // SnapshotRecord::id; 0: none
  int64_t tokens = 0;          // that the snapshot's state was fed
  int64_t turn = 0;            // turns of the log that are in it
  std::string facts;           // SessionRecord::facts, then
  std::vector<int32_t> marks;  // of TokenHistory, then
  bool has_pending = false;    // the last of them is the session's pending token
  std::vector<Turn> turns;
  SessionRecord record;
};

// A snapshot is the bytes of a slab as the device keeps them (StatePool::Filled), what is held back
// included, with zeros where nothing was written; and the session's history. A device that lays
// states out otherwise, or computes with another dtype, does not read it.
//
// Copies between slabs and buffers are begun by the loop's thread. Files are read by a thread of
// their own, and written by two: a thread of low priority for snapshots that nobody waits for, as
// compressing and writing them takes a core from steps on a CPU; and one for sessions that are to
// leave their slab, and for commands. Those of one session are written in order. A session is not
// read while a snapshot of it is being written. There are kBuffers buffers of pinned memory for
// each direction, of a slab's size: what is in flight is bounded by them.
//
// Used by one thread but for what is said; what the constructor takes must outlive it.
class StoredStates {
 public:
  static constexpr int kBuffers = 2;
  // Memory of the host that it takes.
  static int64_t Bytes(int64_t slab_bytes) { return 2 * kBuffers * slab_bytes; }

  // RESOURCE_EXHAUSTED where memory lacks.
  static absl::StatusOr<std::unique_ptr<StoredStates>> Create(
      Backend& backend, const Model& model, const StatePool& pool, SessionStore& store,
      FileSystem& files, const SlabIdentity& identity, EngineStats& stats);
  ~StoredStates();  // writes what waits to be written

  // Called by another thread when something was written or read, under a lock; may be empty.
  void SetWake(std::function<void()> wake);

  // --- To the store ---

  // Whether somebody waits for a snapshot: for the slab, or for memory of the host.
  enum class Urgency { kLazy, kUrgent };
  // A buffer to save to, or -1. A lazy one leaves one for what is urgent.
  int TakeBuffer(Urgency urgency);
  std::unique_ptr<Transfer> Save(int slot, int64_t tokens, int buffer,
                                 std::function<void()> on_done);
  // Tells one thing to be written from another: of a session there may be several.
  using Ticket = int64_t;
  // Writes what Save has left in a buffer, which is then free, as a snapshot of the session.
  Ticket Write(const Session& session, int buffer, Urgency urgency);
  // The same of a state that lies in `pieces` until it is written, and goes through the buffer.
  Ticket WriteParked(const Session& session, int buffer,
                     std::vector<std::span<const std::byte>> pieces);
  // Copies where the session stands from its slab, waiting for that, or where it has none from
  // `slab`, memory of the host; and writes it as a snapshot of
  // that id, which becomes durable with `changes` and `forget`. `done`: by another thread.
  void WriteAlone(const Session& session, const std::byte* slab, uint64_t snapshot,
                  std::vector<Change> changes, ForgetPast forget,
                  std::function<void(const absl::Status&)> done);
  // Snapshots that were written, or could not be, since the last call.
  struct Written {
    SessionKey key;
    Ticket ticket = 0;
    absl::Status status;
  };
  std::vector<Written> TakeWritten();
  int writing() const { return static_cast<int>(writing_.size()); }
  // Why the last snapshot was not written; OK: it was, or the disk has room for it again and takes
  // small files. By any thread.
  absl::Status health() const;

  // --- From the store ---

  // Begins to read; the answer is there when TakeRead() returns it.
  void Read(const Session& session) { Read(session, nullptr); }
  // The same of one that was read, and was fed its log, and came to another state than the log
  // says: `suspect`, the snapshot that it began with, is dropped as damaged first. Where that is 0,
  // there is nothing else to begin with, and the session is lost.
  void ReadAgain(const Session& session, uint64_t suspect);
  // The same of the newest snapshot that a session which goes back to a point keeps, without the
  // log behind it. NOT_FOUND where there is none.
  void ReadKept(const Session& session, std::shared_ptr<const RewindPoint> point) {
    Read(session, std::move(point));
  }
  std::optional<StoredState> TakeRead(const Session& session);
  // Nobody is going to take what was begun to be read of that session.
  void LeaveRead(const Session& session);
  // Runs `work` on the thread that reads, and then wakes the loop.
  void Look(std::function<void()> work);
  // For a session that was fed `tokens` tokens.
  std::unique_ptr<Transfer> Load(int buffer, int slot, int64_t tokens,
                                 std::function<void()> on_done);
  void ReturnBuffer(int buffer);

  // Takes note of what was written and read.
  void Settle();

 private:
  struct WriteJob {
    SessionKey key;
    Urgency urgency = Urgency::kUrgent;
    Ticket ticket = 0;
    SlabHead head;
    int64_t rewinds = 0;
    int buffer = -1;  // -1: the state is in `own`, and `alone` says what to do with it
    int64_t bytes = 0;
    std::vector<ByteRange> filled;
    std::string history;
    std::vector<std::span<const std::byte>> pieces;  // to be copied to the buffer first
    absl::Status status;                             // in the end
    std::vector<std::byte> own;
    struct Alone {
      uint64_t snapshot = 0;
      std::vector<Change> changes;
      ForgetPast forget;
      std::function<void(const absl::Status&)> done;
    };
    std::optional<Alone> alone;
  };
  struct ReadJob {
    uint64_t session = 0;
    std::shared_ptr<const RewindPoint> kept_by = nullptr;  // ReadKept; null: Read
    std::optional<uint64_t> suspect = std::nullopt;        // ReadAgain
    int buffer = -1;
    std::function<void()> look = nullptr;  // instead
  };
  StoredStates(Backend& backend, const Model& model, const StatePool& pool, SessionStore& store,
               FileSystem& files, const SlabIdentity& identity, EngineStats& stats)
      : backend_(backend),
        model_(model),
        pool_(pool),
        store_(store),
        snapshots_(store, files, model.state_layout(), identity),
        stats_(stats) {}

  void Read(const Session& session, std::shared_ptr<const RewindPoint> kept_by);
  static int64_t TotalBytes(const std::vector<ByteRange>& ranges);
  // Keeps what was read for TakeRead, or drops it for LeaveRead.
  void TakeIn(StoredState state);
  std::unique_ptr<Transfer> Move(int slot, int64_t tokens, int buffer, TransferDirection direction,
                                 std::function<void()> on_done);
  std::span<std::byte> BytesOf(int buffer, int64_t bytes) const;
  void Dispatch();
  WriteJob JobOf(const Session& session) const;
  Ticket Begin(WriteJob job);
  void WriteFiles(Urgency urgency);
  void AwaitUrgent();
  void CountUnwritten(const SlabHead& head, const absl::Status& why, absl::Duration now);
  void ReadFiles();
  absl::Status WriteFile(WriteJob& job);
  StoredState ReadFile(const ReadJob& job);
  absl::Status ReadSession(const ReadJob& job, StoredState& state);
  absl::Status DropSuspect(const SessionRecord& record, uint64_t snapshot);
  // The newest one that can be read, if any, and why others cannot.
  absl::Status ReadNewest(std::vector<SnapshotRecord> snapshots, StoredState& state,
                          absl::Status& unusable);
  absl::Status ReadSnapshot(const SnapshotRecord& snapshot, StoredState& state, uint64_t& failed);
  absl::Status ReadTurns(StoredState& state);
  void Wake() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (wake_) wake_();
  }

  Backend& backend_;
  const Model& model_;
  const StatePool& pool_;
  SessionStore& store_;
  const SnapshotFiles snapshots_;
  EngineStats& stats_;

  Buffer memory_;
  std::vector<int> free_to_save_, free_to_load_;
  Ticket tickets_ = 0;
  struct Writing {
    uint64_t session = 0;
    Urgency urgency = Urgency::kUrgent;
  };
  absl::flat_hash_map<Ticket, Writing> writing_;
  std::deque<ReadJob> waiting_;  // for a buffer
  std::vector<StoredState> read_;
  std::vector<uint64_t> left_;  // sessions that were left while they were read, each time

  mutable absl::Mutex mu_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status unwritten_ ABSL_GUARDED_BY(mu_);       // health()
  int64_t unwritten_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of that
  // Warnings of keys that have stored what they may: the next one, and those left out before it.
  absl::Duration next_limit_warning_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  int64_t unwarned_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<WriteJob>& WritesOf(Urgency urgency) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return urgency == Urgency::kLazy ? lazy_writes_ : urgent_writes_;
  }
  std::deque<WriteJob> lazy_writes_ ABSL_GUARDED_BY(mu_), urgent_writes_ ABSL_GUARDED_BY(mu_);
  std::deque<ReadJob> reads_ ABSL_GUARDED_BY(mu_);
  std::vector<WriteJob> written_ ABSL_GUARDED_BY(mu_);
  std::vector<StoredState> arrived_ ABSL_GUARDED_BY(mu_);
  std::vector<Written> told_;

  std::thread lazy_writer_, urgent_writer_, reader_;
};

}  // namespace mneme
