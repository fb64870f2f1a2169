#include "engine/sessions/stored_states.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/timed_wait.h"
#include "engine/status_payload.h"
#include "models/state_bytes.h"
#include "store/owner_limit.h"
#include "store/record.h"
#include "store/session_label.h"

namespace mneme {
namespace {

// A thread that takes what others leave of a core; where that is refused, its share.
constexpr int kLazyNiceness = 15;

// Between two warnings of keys that have stored what they may.
constexpr absl::Duration kLimitWarningPause = absl::Minutes(1);
// Between two looks at a disk that has refused a snapshot.
constexpr absl::Duration kProbePause = absl::Seconds(3);

// The section: whether a token is pending, how many marks, the marks.
std::string EncodeHistory(const Session& session) {
  const std::vector<int32_t> marks = session.history.Marks();
  RecordWriter values;
  values.Varint(session.pending_token.has_value() ? 1 : 0).Varint(marks.size());
  for (const int32_t mark : marks) values.Signed(mark);
  return std::move(values).Values();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoredStates>> StoredStates::Create(
    Backend& backend, const Model& model, const StatePool& pool, SessionStore& store,
    FileSystem& files, const SlabIdentity& identity, EngineStats& stats) {
  auto states =
      absl::WrapUnique(new StoredStates(backend, model, pool, store, files, identity, stats));
  MNEME_ASSIGN_OR_RETURN(states->memory_,
                         Buffer::AllocatePinned(backend, Bytes(pool.slab_bytes())));
  for (int i = 0; i < kBuffers; ++i) {
    states->free_to_save_.push_back(i);
    states->free_to_load_.push_back(kBuffers + i);
  }
  states->lazy_writer_ = std::thread([self = states.get()] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLazyNiceness);
    self->WriteFiles(Urgency::kLazy);
  });
  states->urgent_writer_ =
      std::thread([self = states.get()] { self->WriteFiles(Urgency::kUrgent); });
  states->reader_ = std::thread([self = states.get()] { self->ReadFiles(); });
  return states;
}

StoredStates::~StoredStates() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  if (lazy_writer_.joinable()) lazy_writer_.join();
  if (urgent_writer_.joinable()) urgent_writer_.join();
  if (reader_.joinable()) reader_.join();
}

void StoredStates::SetWake(std::function<void()> wake) {
  absl::MutexLock lock(&mu_);
  wake_ = std::move(wake);
}

int64_t StoredStates::TotalBytes(const std::vector<ByteRange>& ranges) {
  int64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.end - range.begin;
  return bytes;
}

std::span<std::byte> StoredStates::BytesOf(int buffer, int64_t bytes) const {
  return {memory_.data() + buffer * pool_.slab_bytes(), static_cast<size_t>(bytes)};
}

int StoredStates::TakeBuffer(Urgency urgency) {
  if (free_to_save_.size() < (urgency == Urgency::kLazy ? 2 : 1)) return -1;
  const int buffer = free_to_save_.back();
  free_to_save_.pop_back();
  return buffer;
}

void StoredStates::ReturnBuffer(int buffer) {
  (buffer < kBuffers ? free_to_save_ : free_to_load_).push_back(buffer);
  Dispatch();
}

std::unique_ptr<Transfer> StoredStates::Move(int slot, int64_t tokens, int buffer,
                                             TransferDirection direction,
                                             std::function<void()> on_done) {
  std::vector<TransferPiece> pieces;
  std::byte* host = BytesOf(buffer, 0).data();
  for (const ByteRange& range : pool_.Filled(slot, tokens)) {
    std::byte* const slab = pool_.slab(slot) + range.begin;
    const int64_t bytes = range.end - range.begin;
    if (direction == TransferDirection::kToHost) {
      pieces.push_back({.dst = host, .src = slab, .bytes = bytes});
    } else {
      pieces.push_back({.dst = slab, .src = host, .bytes = bytes});
    }
    host += bytes;
  }
  return backend_.BeginTransfer(pieces, direction, std::move(on_done));
}

std::unique_ptr<Transfer> StoredStates::Save(int slot, int64_t tokens, int buffer,
                                             std::function<void()> on_done) {
  return Move(slot, tokens, buffer, TransferDirection::kToHost, std::move(on_done));
}

std::unique_ptr<Transfer> StoredStates::Load(int buffer, int slot, int64_t tokens,
                                             std::function<void()> on_done) {
  return Move(slot, tokens, buffer, TransferDirection::kToDevice, std::move(on_done));
}

StoredStates::WriteJob StoredStates::JobOf(const Session& session) const {
  WriteJob job = {.key = session.key,
                  .head = {.owner = session.key.owner,
                           .name = session.key.name,
                           .session = static_cast<uint64_t>(session.id),
                           .position = session.fed_tokens,
                           .turn = session.turns,
                           .created = absl::ToUnixSeconds(session.created)},
                  .rewinds = session.rewinds,
                  .filled = pool_.Filled(/*slot=*/0, session.fed_tokens),
                  .history = EncodeHistory(session)};
  job.bytes = TotalBytes(job.filled);
  return job;
}

StoredStates::Ticket StoredStates::Write(const Session& session, int buffer, Urgency urgency) {
  WriteJob job = JobOf(session);
  job.urgency = urgency;
  job.buffer = buffer;
  return Begin(std::move(job));
}

StoredStates::Ticket StoredStates::WriteParked(const Session& session, int buffer,
                                               std::vector<std::span<const std::byte>> pieces) {
  WriteJob job = JobOf(session);
  job.buffer = buffer;
  job.pieces = std::move(pieces);
  return Begin(std::move(job));
}

StoredStates::Ticket StoredStates::Begin(WriteJob job) {
  const Ticket ticket = job.ticket = ++tickets_;
  // Behind what is still to be written of the session.
  for (const auto& [other, writing] : writing_) {
    if (writing.session == job.head.session) job.urgency = writing.urgency;
  }
  writing_.insert({ticket, {job.head.session, job.urgency}});
  absl::MutexLock lock(&mu_);
  WritesOf(job.urgency).push_back(std::move(job));
  return ticket;
}

void StoredStates::WriteAlone(const Session& session, const std::byte* slab, uint64_t snapshot,
                              std::vector<Change> changes, ForgetPast forget,
                              std::function<void(const absl::Status&)> done) {
  WriteJob job = JobOf(session);
  job.own.resize(static_cast<size_t>(job.bytes));
  std::byte* host = job.own.data();
  for (const ByteRange& range :
       session.slot < 0 ? job.filled : pool_.Filled(session.slot, session.fed_tokens)) {
    const int64_t bytes = range.end - range.begin;
    if (session.slot < 0) {
      std::memcpy(host, slab + range.begin, static_cast<size_t>(bytes));
    } else {
      backend_.CopyToHost(host, pool_.slab(session.slot) + range.begin, bytes);
    }
    host += bytes;
  }
  job.alone = {snapshot, std::move(changes), std::move(forget), std::move(done)};
  Begin(std::move(job));
}

absl::Status StoredStates::health() const {
  absl::MutexLock lock(&mu_);
  return unwritten_;
}

std::vector<StoredStates::Written> StoredStates::TakeWritten() { return std::exchange(told_, {}); }

void StoredStates::Settle() {
  std::vector<WriteJob> written;
  std::vector<StoredState> arrived;
  {
    absl::MutexLock lock(&mu_);
    written.swap(written_);
    arrived.swap(arrived_);
  }
  for (StoredState& state : arrived) TakeIn(std::move(state));
  for (WriteJob& job : written) {
    writing_.erase(job.ticket);
    if (job.alone.has_value()) continue;
    told_.push_back({std::move(job.key), job.ticket, std::move(job.status)});
    free_to_save_.push_back(job.buffer);
  }
  if (!written.empty()) Dispatch();
}

// --- The threads that write ---

void StoredStates::WriteFiles(Urgency urgency) {
  const auto ready = [this, urgency]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !WritesOf(urgency).empty() || closing_;
  };
  while (true) {
    WriteJob job;
    if (urgency == Urgency::kUrgent) AwaitUrgent();
    {
      absl::MutexLock lock(&mu_, absl::Condition(&ready));
      std::deque<WriteJob>& writes = WritesOf(urgency);
      if (writes.empty()) return;
      job = std::move(writes.front());
      writes.pop_front();
    }
    const RealClock clock;
    const absl::Duration begun = clock.Monotonic();
    const absl::Status status = WriteFile(job);
    if (status.ok()) {
      stats_.snapshots.Add();
      stats_.snapshot_seconds.Observe(absl::ToDoubleSeconds(clock.Monotonic() - begun));
    } else {
      CountUnwritten(job.head, status, clock.Monotonic());
    }
    if (job.alone.has_value()) job.alone->done(status);
    job.status = status;
    absl::MutexLock lock(&mu_);
    // What a key may have, and what was deleted meanwhile, says nothing about the disk.
    if (!absl::IsNotFound(status) && !ExceededLimit(status).has_value()) {
      unwritten_ = status;
      unwritten_bytes_ = job.bytes;
    }
    written_.push_back(std::move(job));
    Wake();
  }
}

// Until there is something urgent to be written. Meanwhile looks whether a disk that refused a
// snapshot would take it now: nobody may ask for one.
void StoredStates::AwaitUrgent() {
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !urgent_writes_.empty() || closing_;
  };
  while (true) {
    int64_t bytes = 0;
    {
      absl::MutexLock lock(&mu_);
      if (AwaitFor(mu_, absl::Condition(&ready), kProbePause)) return;
      if (unwritten_.ok()) continue;
      bytes = unwritten_bytes_;
    }
    if (!store_.CheckRoom(bytes).ok() || !store_.Probe("probe.urgent.tmp").ok()) continue;
    absl::MutexLock lock(&mu_);
    unwritten_ = absl::OkStatus();
  }
}

// An operator has to act on a disk that fails, and not on a key that has what it may.
void StoredStates::CountUnwritten(const SlabHead& head, const absl::Status& why,
                                  absl::Duration now) {
  if (absl::IsNotFound(why)) return;  // of a session that was deleted, or went back
  const std::string session = SessionLabel(head.name, head.owner, head.session);
  if (!ExceededLimit(why).has_value()) {
    stats_.snapshot_failures.Add();
    LOG(ERROR) << "a snapshot of " << session << " was not written: " << why.message();
    return;
  }
  stats_.snapshots_over_limit.Add();
  absl::MutexLock lock(&mu_);
  if (now < next_limit_warning_) {
    ++unwarned_;
    return;
  }
  next_limit_warning_ = now + kLimitWarningPause;
  const int64_t before = std::exchange(unwarned_, 0);
  LOG(WARNING) << "a snapshot of " << session << " was not written, as its key has stored what it "
               << "may: " << why.message()
               << (before > 0 ? absl::StrCat(" (and ", before, " more since the last such line)")
                              : "");
}

absl::Status StoredStates::WriteFile(WriteJob& job) {
  const std::span<std::byte> bytes =
      job.alone.has_value() ? std::span(job.own) : BytesOf(job.buffer, job.bytes);
  std::byte* to = bytes.data();
  for (const std::span<const std::byte> piece : job.pieces) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  ClearUnwritten(model_.state_layout(), job.filled, job.head.position, bytes);
  const auto write = [&](uint64_t id, bool may_go_on) -> absl::StatusOr<SnapshotRecord> {
    MNEME_ASSIGN_OR_RETURN(SnapshotRecord snapshot,
                           snapshots_.Write(id, job.head, may_go_on, bytes, job.history));
    stats_.snapshot_bytes.Add(snapshot.bytes);
    return snapshot;
  };
  if (!job.alone.has_value()) {
    MNEME_RETURN_IF_ERROR(store_.CheckRoom(job.bytes));
    MNEME_ASSIGN_OR_RETURN(SnapshotRecord snapshot, write(store_.NewId(), /*may_go_on=*/true));
    absl::Status added = store_.Apply({AddSnapshot{job.head.session, snapshot, job.rewinds}});
    if (snapshot.base != 0 && absl::IsNotFound(added)) {  // what it goes on from may be gone
      MNEME_ASSIGN_OR_RETURN(snapshot, write(store_.NewId(), /*may_go_on=*/false));
      added = store_.Apply({AddSnapshot{job.head.session, snapshot, job.rewinds}});
    }
    return added;
  }
  MNEME_ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                         write(job.alone->snapshot, /*may_go_on=*/false));
  job.alone->forget.snapshot = snapshot;
  job.alone->changes.push_back(std::move(job.alone->forget));
  return store_.Apply(std::move(job.alone->changes));
}

}  // namespace mneme
