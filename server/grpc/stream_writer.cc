#include "server/grpc/stream_writer.h"

#include <grpc/support/time.h>

#include <optional>
#include <utility>

#include "engine/status_payload.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/response_conversion.h"
#include "server/grpc/status_conversion.h"

namespace mneme {
namespace {

// Events of one message: enough to catch up quickly, and small beside any receive limit.
constexpr int kMaxEventsPerMessage = 64;

}  // namespace

// gRPC keeps a deadline on its own monotonic clock, and would turn it into a date when asked for
// one; what is left of it now needs no date.
absl::Duration DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const gpr_timespec deadline = context.raw_deadline();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  const absl::Duration time = absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
  // "Never" lies at the end of gRPC's range; nobody waits for a hundred years.
  if (time > absl::Hours(24 * 365 * 100)) return absl::InfiniteDuration();
  return clock.Monotonic() + time;
}

std::shared_ptr<StreamWriter> StreamWriter::Create(grpc::CallbackServerContext& context,
                                                   const Clock& clock,
                                                   std::function<void(absl::StatusCode)> on_end) {
  std::shared_ptr<StreamWriter> writer(new StreamWriter(context, clock, std::move(on_end)));
  absl::MutexLock lock(&writer->mu_);
  writer->self_ = writer;
  return writer;
}

StreamWriter::StreamWriter(grpc::CallbackServerContext& context, const Clock& clock,
                           std::function<void(absl::StatusCode)> on_end)
    : clock_(clock), deadline_(DeadlineOf(context, clock)), on_end_(std::move(on_end)) {}

absl::Status StreamWriter::StillWanted() {
  absl::MutexLock lock(&mu_);
  return cancelled_ || is_late() ? CancelledStatus() : absl::OkStatus();
}

absl::Status StreamWriter::Claim(absl::StatusOr<StreamPermit> permit) {
  if (!permit.ok()) return permit.status();
  absl::MutexLock lock(&mu_);
  if (!cancelled_) permit_ = *std::move(permit);
  return absl::OkStatus();
}

StreamPermit StreamWriter::permit() {
  absl::MutexLock lock(&mu_);
  return permit_;
}

void StreamWriter::Start(Request request, absl::StatusOr<std::shared_ptr<TokenStream>> stream,
                         Recut recut) {
  if (!stream.ok()) {
    Action action;
    {
      absl::MutexLock lock(&mu_);
      started_ = true;
      ended_ = true;
      if (!finished_) action = FinishWith(stream.status());
    }
    Do(action);
    return;
  }
  (*stream)->SetReadyCallback([weak = weak_from_this()] {
    if (const std::shared_ptr<StreamWriter> self = weak.lock()) self->Advance();
  });
  std::shared_ptr<TokenStream> dropped;
  {
    absl::MutexLock lock(&mu_);
    request_ = std::move(request);
    stream_ = *std::move(stream);
    recut_ = std::move(recut);
    started_ = true;
    if (cancelled_) dropped = DropStream();  // the client left before there was a stream
  }
  Advance();
}

void StreamWriter::Advance() {
  Action action;
  {
    absl::MutexLock lock(&mu_);
    action = NextAction();
  }
  Do(action);
}

void StreamWriter::Do(const Action& action) {
  switch (action.kind) {
    case Action::kNothing:
      break;
    case Action::kWrite:
      StartWrite(&message_);
      break;
    case Action::kWriteAndFinish:
      if (on_end_) on_end_(absl::StatusCode::kOk);
      StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
      break;
    case Action::kFinish:
      if (on_end_) on_end_(action.status.code());
      Finish(ToGrpcStatus(action.status));
      break;
    case Action::kRecut:
      action.recut(action.cut_bytes);
      break;
  }
}

StreamWriter::Action StreamWriter::NextAction() {
  if (!started_ || write_in_flight_ || finished_) return {};
  if (cancelled_) return FinishWith(CancelledStatus());
  if (ended_) return FinishWith(end_status_);  // what came before the error is written
  v1::GenerateResponse response;
  for (int i = 0; i < kMaxEventsPerMessage && !ended_; ++i) {
    std::optional<TokenEvent> event = stream_->TryNext();
    if (!event.has_value()) break;
    if (recut_ && ReasonOf(event->status) == kReasonHistoryCut) {
      started_ = false;  // until the Recut starts it again
      return {.kind = Action::kRecut,
              .recut = std::exchange(recut_, nullptr),
              .cut_bytes = PositionOf(event->status).value_or(0),
              .dropped = std::exchange(stream_, nullptr)};
    }
    recut_ = nullptr;  // it holds the whole prompt
    AppendEvent(*event, request_, first_event_, response);
    first_event_ = false;
    if (!event->is_last) continue;
    ended_ = true;
    end_status_ = std::move(event->status);
  }
  const bool has_content =
      response.has_started() || response.has_finished() || response.outputs_size() > 0;
  if (!has_content) return ended_ ? FinishWith(end_status_) : Action();
  message_ = SerializeMessage(response);
  if (ended_ && end_status_.ok()) {
    finished_ = true;
    permit_ = nullptr;
    return {.kind = Action::kWriteAndFinish};
  }
  write_in_flight_ = true;
  return {.kind = Action::kWrite};
}

StreamWriter::Action StreamWriter::FinishWith(absl::Status status) {
  finished_ = true;
  permit_ = nullptr;
  return {.kind = Action::kFinish, .status = std::move(status)};
}

std::shared_ptr<TokenStream> StreamWriter::DropStream() {
  // Past the deadline the engine ends the request by itself, for the right reason.
  if (stream_ != nullptr && !request_.detached && !is_late()) stream_->Cancel();
  return std::exchange(stream_, nullptr);
}

absl::Status StreamWriter::CancelledStatus() const {
  if (is_late()) return absl::DeadlineExceededError("the call's deadline passed");
  return absl::CancelledError("the client cancelled the call");
}

void StreamWriter::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    write_in_flight_ = false;
    if (!ok) cancelled_ = true;  // OnCancel follows, or came first
  }
  Advance();
}

void StreamWriter::OnCancel() {
  std::shared_ptr<TokenStream> dropped;
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    permit_ = nullptr;  // before the engine hears of it, and counts the request as ended
    dropped = DropStream();
  }
  Advance();
}

void StreamWriter::OnDone() {
  std::shared_ptr<StreamWriter> self;  // destroyed after the lock is gone
  absl::MutexLock lock(&mu_);
  self = std::exchange(self_, nullptr);
}

}  // namespace mneme
