#include "server/grpc/classify_call.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "mneme/v1/inference.pb.h"
#include "server/classify/classify_batch.h"
#include "server/classify/classify_request.h"
#include "server/grpc/call_names.h"
#include "server/grpc/grpc_credentials.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/status_conversion.h"
#include "server/grpc/stream_writer.h"
#include "server/process/out_of_memory.h"
#include "server/requests/refusal.h"
#include "server/requests/request_conversion.h"

namespace mneme {
namespace {

ClassifyCall ToCall(v1::ClassifyRequest& request) {
  ClassifyCall call;
  call.model = request.model();
  call.priority = request.priority();
  call.special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  call.parse_special = ParsesSpecial(request);
  for (v1::Document& document : *request.mutable_documents()) {
    ClassifyDocument& added = call.documents.emplace_back();
    if (document.has_token_ids()) {
      added.has_ids = true;
      added.ids.assign(document.token_ids().ids().begin(), document.token_ids().ids().end());
    } else {
      added.text = std::move(*document.mutable_text());
    }
    if (document.has_text_pair()) added.pair = std::move(*document.mutable_text_pair());
    added.types.assign(document.token_types().begin(), document.token_types().end());
  }
  return call;
}

v1::ClassifyResponse ToResponse(const ClassifiedBatch& batch, const Engine& engine,
                                const ServingFacts& facts, const std::string& request_id) {
  v1::ClassifyResponse response;
  const Classes& classes = engine.model_info().classes;
  for (const ClassifiedDocument& document : batch.documents) {
    v1::Classification& result = *response.add_results();
    result.set_label_id(static_cast<int32_t>(document.label));
    result.set_label(SanitizeUtf8(classes.labels[document.label]));
    result.mutable_probabilities()->Add(document.scores.begin(), document.scores.end());
    result.mutable_logits()->Add(document.logits.begin(), document.logits.end());
    result.set_prompt_tokens(document.tokens);
    result.set_memory_evicted(document.memory_evicted);
  }
  response.mutable_usage()->set_prompt_tokens(batch.usage.prompt_tokens);
  response.mutable_usage()->set_fed_tokens(batch.usage.fed_tokens);
  response.mutable_usage()->set_memory_evicted(batch.usage.memory_evicted);
  response.set_model(SanitizeUtf8(facts.model_name));
  response.set_request_id(request_id);
  return response;
}

// Lives until gRPC and all who answer it have let go: the former says so once, by OnDone.
class ClassifyReactor final : public grpc::ServerUnaryReactor {
 public:
  ClassifyReactor(EngineAccess& access, Security& security, TextExecutors& executors,
                  grpc::CallbackServerContext& context, const grpc::ByteBuffer& in,
                  grpc::ByteBuffer& out)
      : access_(access),
        security_(security),
        executors_(executors),
        context_(context),
        in_(in),
        out_(out),
        trace_(AnswerTrace(context)),
        caller_(CallerOf(context, security, Access::kUse)),
        call_{.owner = caller_.ok() ? (*caller_)->owner : "",
              .origin = {.api = "grpc",
                         .client = PeerText(context),
                         .trace_id = trace_.trace_id,
                         .span_id = trace_.span_id},
              .received = access.clock().Monotonic(),
              .deadline = DeadlineOf(context, access.clock())} {}

  void Begin(const std::shared_ptr<ClassifyReactor>& self) {
    self_ = self;
    Lanes* const lanes = executors_.For(in_.Length());
    if (lanes == nullptr) return Work();
    if (!caller_.ok()) return RefuseUnread(caller_.status());
    const bool posted =
        lanes->TryPost(TextOwner(call_.owner, call_.origin.client), [self] { self->Work(); });
    if (!posted) RefuseUnread(TooManyTasks());
  }

  void OnCancel() override {
    std::shared_ptr<ClassifyBatch> batch;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      batch = batch_.lock();
    }
    if (batch != nullptr) batch->Cancel();
  }

  void OnDone() override { std::exchange(self_, nullptr).reset(); }

 private:
  void Work() {
    const auto work = [this] {
      v1::ClassifyRequest request;
      const absl::Status parsed = ParseMessage(in_, request);
      const absl::Status id_status = CheckRequestId(request.request_id());
      Name(id_status.ok() ? request.request_id() : "");
      for (const absl::Status& status : {caller_.status(), parsed, id_status}) {
        if (!status.ok()) return Refuse(status);
      }
      if (const absl::Status status = Submit(request); !status.ok()) Refuse(status);
    };
    RunOrRefuse(work, [&](const absl::Status& why) { RefuseUnread(why); });
  }

  absl::Status Submit(v1::ClassifyRequest& request) {
    MNEME_ASSIGN_OR_RETURN(Engine * engine, access_.GetForWork());
    MNEME_ASSIGN_OR_RETURN(const StreamPermit permit, security_.quotas().BeginStream(*caller_));
    MNEME_RETURN_IF_ERROR(permit->CheckPriority(request.priority()));
    WorkMeter meter([this]() -> absl::Status {
      MNEME_RETURN_IF_ERROR(access_.GetForWork().status());
      MNEME_RETURN_IF_ERROR(executors_.StillOpen());
      if (access_.clock().Monotonic() >= call_.deadline) {
        return absl::DeadlineExceededError("the call's deadline passed");
      }
      return context_.IsCancelled() ? absl::CancelledError("the client cancelled the call")
                                    : absl::OkStatus();
    });
    MNEME_RETURN_IF_ERROR(meter.Look());
    MNEME_ASSIGN_OR_RETURN(
        std::vector<Request> requests,
        ToEngineRequests(ToCall(request), call_, *engine, access_.facts(), meter));
    int64_t tokens = 0;
    for (const Request& one : requests) tokens += static_cast<int64_t>(one.prompt.at_start.size());
    MNEME_RETURN_IF_ERROR(permit->TakeTokens(tokens));
    const std::shared_ptr<ClassifyBatch> batch = ClassifyBatch::Start(
        *engine, std::move(requests), permit,
        [this](const absl::Status& status) { LogRefusal(access_, call_, status); },
        [self = self_, engine](const absl::StatusOr<ClassifiedBatch>& answer) {
          self->Answer(*engine, answer);
        });
    bool cancelled = false;
    {
      absl::MutexLock lock(&mu_);
      batch_ = batch;
      cancelled = cancelled_;
    }
    if (cancelled) batch->Cancel();
    return absl::OkStatus();
  }

  void Answer(const Engine& engine, const absl::StatusOr<ClassifiedBatch>& answer) {
    if (answer.ok()) {
      out_ = SerializeMessage(ToResponse(*answer, engine, access_.facts(), call_.request_id));
    }
    End(answer.status());
  }

  void Name(absl::string_view own) {
    if (!call_.request_id.empty()) return;
    call_.request_id = ChooseRequestId(own, context_);
    context_.AddInitialMetadata("x-request-id", call_.request_id);
  }
  // Before the request's own fields are known.
  void RefuseUnread(const absl::Status& why) {
    Name("");
    Refuse(why);
  }
  void Refuse(const absl::Status& why) {
    CountRefusal(access_, call_, why);
    End(why);
  }
  void End(const absl::Status& status) {
    access_.stats().rpcs.Add("Classify", absl::StatusCodeToString(status.code()));
    Finish(ToGrpcStatus(status));
  }

  EngineAccess& access_;
  Security& security_;
  TextExecutors& executors_;
  grpc::CallbackServerContext& context_;
  const grpc::ByteBuffer& in_;
  grpc::ByteBuffer& out_;
  const TraceContext trace_;
  const absl::StatusOr<CallerRef> caller_;
  CallFacts call_;
  std::shared_ptr<ClassifyReactor> self_;  // until OnDone

  absl::Mutex mu_;
  std::weak_ptr<ClassifyBatch> batch_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerUnaryReactor* ClassifyOverGrpc(EngineAccess& access, Security& security,
                                           TextExecutors& executors,
                                           grpc::CallbackServerContext& context,
                                           const grpc::ByteBuffer& request,
                                           grpc::ByteBuffer& response) {
  const auto reactor =
      std::make_shared<ClassifyReactor>(access, security, executors, context, request, response);
  reactor->Begin(reactor);
  return reactor.get();
}

}  // namespace mneme
