// One call of Generate or Chat: the engine's TokenStream on one side, gRPC's writes on the other.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "server/security/quota.h"

namespace mneme {

// Keeps itself alive until gRPC is done with it.
//
// At most one write is in flight. What the engine says meanwhile waits in the TokenStream, whose
// bound makes the engine pause this request and no other; the next write takes all of it. A client
// that leaves ends the request, unless that is detached (Request::detached).
//
// Threads: gRPC's callbacks, the engine's notifier and whoever calls Start. No lock is held while
// gRPC is called, because it may run a callback before it returns.
class StreamWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<StreamWriter> {
 public:
  // The pointer is gRPC's to use; it stays valid until OnDone.
  // `clock` must outlive it. `on_end` is called once with what the client is told at the end; it
  // may be empty.
  static std::shared_ptr<StreamWriter> Create(
      grpc::CallbackServerContext& context, const Clock& clock,
      std::function<void(absl::StatusCode)> on_end = nullptr);

  // Once, first of all: keeps the permit until the client may hear that the call has ended, so that
  // its next call finds the place free. The error, if there is none.
  absl::Status Claim(absl::StatusOr<StreamPermit> permit) ABSL_LOCKS_EXCLUDED(mu_);
  // Null once the call has ended.
  StreamPermit permit() ABSL_LOCKS_EXCLUDED(mu_);

  // Starts this call once more, without a Recut, with its history cut at that byte: the session
  // ends inside of one of the history's tokens (kReasonHistoryCut). On a thread of gRPC's or the
  // engine's, so it must not take long itself.
  using Recut = std::function<void(int64_t bytes)>;

  // Once: the stream to write out, or why there is none. `request` for its names. `recut` is called
  // at most once, before anything was written; it may be empty.
  void Start(Request request, absl::StatusOr<std::shared_ptr<TokenStream>> stream,
             Recut recut = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const absl::Status& status) { Start(Request(), status); }
  // Before Start: OK, or how the call has ended already, so that no work is wasted on it.
  absl::Status StillWanted() ABSL_LOCKS_EXCLUDED(mu_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  StreamWriter(grpc::CallbackServerContext& context, const Clock& clock,
               std::function<void(absl::StatusCode)> on_end);

  // The next thing to do with gRPC, decided under the lock and done without it.
  struct Action {
    enum { kNothing, kWrite, kWriteAndFinish, kFinish, kRecut } kind = kNothing;
    absl::Status status;  // kFinish
    Recut recut;          // kRecut, with the two below
    int64_t cut_bytes = 0;
    std::shared_ptr<TokenStream> dropped;  // as DropStream's
  };
  void Advance() ABSL_LOCKS_EXCLUDED(mu_);
  void Do(const Action& action) ABSL_LOCKS_EXCLUDED(mu_);
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Action FinishWith(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CancelledStatus() const;
  bool is_late() const { return clock_.Monotonic() >= deadline_; }
  // Ends the request, unless it is detached. What is returned has to be destroyed without the lock:
  // that waits until the stream's callback, which may be waiting for the lock, is over.
  [[nodiscard]] std::shared_ptr<TokenStream> DropStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock& clock_;
  const absl::Duration deadline_;  // on the monotonic clock
  const std::function<void(absl::StatusCode)> on_end_;
  grpc::ByteBuffer message_;  // of the write in flight, or of the one about to start

  absl::Mutex mu_;
  std::shared_ptr<StreamWriter> self_ ABSL_GUARDED_BY(mu_);
  Request request_ ABSL_GUARDED_BY(mu_);  // its prompt is empty
  std::shared_ptr<TokenStream> stream_ ABSL_GUARDED_BY(mu_);
  StreamPermit permit_ ABSL_GUARDED_BY(mu_);
  absl::Status end_status_ ABSL_GUARDED_BY(mu_);  // of the last event, once it was taken
  Recut recut_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool first_event_ ABSL_GUARDED_BY(mu_) = true;
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called or is about to be
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // the stream's last event was taken, or none comes
};

// The call's deadline on the monotonic clock; infinite where the client set none.
absl::Duration DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock);

}  // namespace mneme
