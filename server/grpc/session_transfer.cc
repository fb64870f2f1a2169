#include "server/grpc/session_transfer.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "mneme/v1/sessions.pb.h"
#include "server/grpc/call_names.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/response_conversion.h"
#include "server/grpc/status_conversion.h"
#include "server/process/out_of_memory.h"
#include "server/requests/request_conversion.h"
#include "server/requests/session_listing.h"
#include "server/requests/session_transfers.h"

namespace mneme {
namespace {

absl::Status ClientLeft() { return absl::CancelledError("the client cancelled the call"); }

// What both have in common. gRPC's calls to a reactor and the executor's tasks take turns: each
// begins the next one, or ends the call, as the last thing it does.
class Transfer {
 protected:
  Transfer(EngineAccess& engine, Executor& executor, absl::StatusOr<CallerRef> caller)
      : engine_(engine), executor_(executor), caller_(std::move(caller)) {}

  // Has `step` run; `end` is told of an error, once, also where it could not be run.
  template <typename Step, typename End>
  void Post(Step step, End end) {
    const bool posted = executor_.TryPost([step = std::move(step), end] {
      absl::Status status;
      RunOrRefuse([&] { status = step(); }, [&](const absl::Status& why) { status = why; });
      if (!status.ok()) end(status);
    });
    if (!posted) end(TooManyTasks());
  }
  template <typename Request>
  grpc::Status Counted(const absl::Status& status) {
    place_ = nullptr;  // before the client hears of the end
    engine_.stats().rpcs.Add(MethodOf<Request>(), absl::StatusCodeToString(status.code()));
    return ToGrpcStatus(status);
  }
  absl::Status TakePlace(SessionTransfers::Direction direction) {
    MNEME_ASSIGN_OR_RETURN(place_, engine_.facts().session_transfers->Begin(direction));
    return absl::OkStatus();
  }

  void Complete(int64_t bytes) { place_->Complete(bytes); }

  EngineAccess& engine_;
  Executor& executor_;
  const absl::StatusOr<CallerRef> caller_;

 private:
  std::shared_ptr<const SessionTransfers::Transfer> place_;
};

class Exporter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, Transfer {
 public:
  Exporter(EngineAccess& engine, Executor& executor, absl::StatusOr<CallerRef> caller,
           const grpc::ByteBuffer& request)
      : Transfer(engine, executor, std::move(caller)), request_(request) {
    Go();
  }

  void OnWriteDone(bool ok) override { ok ? Go() : End(ClientLeft()); }
  void OnDone() override { delete this; }

 private:
  void Go() {
    Post([this] { return Step(); }, [this](const absl::Status& status) { End(status); });
  }
  void End(const absl::Status& status) { Finish(Counted<v1::ExportSessionRequest>(status)); }

  absl::Status Step() {
    v1::ExportSessionResponse response;
    if (source_ == nullptr) {
      MNEME_RETURN_IF_ERROR(Begin());
      response.set_file_bytes(source_->bytes());
    }
    response.set_data(source_->Next());
    if (response.data().empty()) {
      Complete(source_->bytes());
      source_ = nullptr;
      End(absl::OkStatus());
      return absl::OkStatus();
    }
    message_ = SerializeMessage(response);
    StartWrite(&message_);
    return absl::OkStatus();
  }
  absl::Status Begin() {
    MNEME_RETURN_IF_ERROR(caller_.status());
    MNEME_ASSIGN_OR_RETURN(Engine * engine, engine_.Get());
    v1::ExportSessionRequest request;
    MNEME_RETURN_IF_ERROR(ParseMessage(request_, request));
    MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
    MNEME_RETURN_IF_ERROR(TakePlace(SessionTransfers::kExport));
    MNEME_ASSIGN_OR_RETURN(source_, engine->ExportSession({(*caller_)->owner, request.name()}));
    return absl::OkStatus();
  }

  const grpc::ByteBuffer request_;
  std::unique_ptr<SessionFileSource> source_;
  grpc::ByteBuffer message_;  // of the write in flight
};

class Importer final : public grpc::ServerReadReactor<grpc::ByteBuffer>, Transfer {
 public:
  Importer(EngineAccess& engine, Executor& executor, absl::StatusOr<CallerRef> caller,
           grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : Transfer(engine, executor, std::move(caller)), context_(context), response_(response) {
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok && context_.IsCancelled()) return End(ClientLeft());
    Post([this, ok] { return ok ? Take() : Import(); },
         [this](const absl::Status& status) { End(status); });
  }
  void OnDone() override { delete this; }

 private:
  void End(const absl::Status& status) { Finish(Counted<v1::ImportSessionRequest>(status)); }

  // One message.
  absl::Status Take() {
    v1::ImportSessionRequest request;
    MNEME_RETURN_IF_ERROR(ParseMessage(message_, request));
    message_.Clear();
    if (!key_.has_value()) MNEME_RETURN_IF_ERROR(Begin(request));
    MNEME_ASSIGN_OR_RETURN(const Engine* engine, engine_.GetForWork());
    MNEME_RETURN_IF_ERROR(engine_.facts().session_transfers->CheckFileBytes(
        *engine, static_cast<int64_t>(file_.size() + request.data().size())));
    file_ += request.data();
    StartRead(&message_);
    return absl::OkStatus();
  }
  absl::Status Begin(const v1::ImportSessionRequest& request) {
    MNEME_RETURN_IF_ERROR(caller_.status());
    MNEME_ASSIGN_OR_RETURN(Engine * engine, engine_.GetForWork());
    MNEME_ASSIGN_OR_RETURN(std::string name, SessionNameOrRandom("name", request.name()));
    MNEME_ASSIGN_OR_RETURN(ttl_, ToTtl("ttl_ms", request.ttl_ms(), engine_.facts()));
    key_ = SessionKey{(*caller_)->owner, std::move(name)};
    MNEME_RETURN_IF_ERROR(TakePlace(SessionTransfers::kImport));
    MNEME_RETURN_IF_ERROR(CheckNameIsFree(*engine, *key_));
    return engine_.facts().session_transfers->CheckFileBytes(*engine, request.file_bytes());
  }
  absl::Status Import() {
    if (!key_.has_value()) {
      return absl::InvalidArgumentError("the stream has no message, expected one with a name");
    }
    MNEME_ASSIGN_OR_RETURN(Engine * engine, engine_.GetForWork());
    const auto bytes = static_cast<int64_t>(file_.size());
    MNEME_ASSIGN_OR_RETURN(const ImportedSession imported,
                           engine->ImportSession(*key_, ttl_, std::move(file_)));
    Complete(bytes);
    v1::ImportSessionResponse response;
    *response.mutable_session() = ToSessionMessage(imported.session, *engine);
    response.set_file_state_dtype(imported.file_state_dtype);
    response.set_state_dtype(imported.state_dtype);
    response.set_rounded_tensors(imported.rounded_tensors);
    response.set_file_engram_capacity(imported.file_engram_capacity);
    response.set_engram_capacity(imported.engram_capacity);
    response_ = SerializeMessage(response);
    End(absl::OkStatus());
    return absl::OkStatus();
  }

  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  grpc::ByteBuffer message_;       // that is being read
  std::optional<SessionKey> key_;  // once the first message was taken
  absl::Duration ttl_;
  std::string file_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportSession(EngineAccess& engine, Executor& executor,
                                                          absl::StatusOr<CallerRef> caller,
                                                          grpc::CallbackServerContext& context,
                                                          const grpc::ByteBuffer& request) {
  SendRequestId(context);
  return new Exporter(engine, executor, std::move(caller), request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ImportSession(EngineAccess& engine, Executor& executor,
                                                         absl::StatusOr<CallerRef> caller,
                                                         grpc::CallbackServerContext& context,
                                                         grpc::ByteBuffer& response) {
  SendRequestId(context);
  return new Importer(engine, executor, std::move(caller), context, response);
}

}  // namespace mneme
