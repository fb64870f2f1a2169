#include "server/grpc/inference_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/chat/chat_prompt.h"
#include "server/grpc/call_names.h"
#include "server/grpc/chat_conversion.h"
#include "server/grpc/classify_call.h"
#include "server/grpc/grpc_credentials.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/response_conversion.h"
#include "server/grpc/stream_writer.h"
#include "server/process/out_of_memory.h"
#include "server/process/version.h"
#include "server/requests/refusal.h"
#include "server/requests/request_conversion.h"
#include "server/security/quota.h"

namespace mneme {
namespace {

// Ends a call whose request the engine never sees.
void Refuse(const EngineAccess& access, const CallFacts& call, const absl::Status& status,
            StreamWriter& writer) {
  CountRefusal(access, call, status);
  writer.Fail(status);
}

// How a message becomes a request of the engine's; on the executor or in the callback.
absl::StatusOr<Request> Converted(const v1::GenerateRequest& request, const CallFacts& call,
                                  const Engine& engine, const ServingFacts& facts,
                                  WorkMeter& meter) {
  return ToEngineRequest(request, call, engine, facts, meter);
}

absl::StatusOr<Request> Converted(const v1::ChatRequest& request, const CallFacts& call,
                                  const Engine& engine, const ServingFacts& facts,
                                  WorkMeter& meter) {
  MNEME_ASSIGN_OR_RETURN(const Conversation conversation, ToConversation(request, meter));
  return ToChatEngineRequest(ToGenerateRequest(request), conversation, call, engine, facts, meter);
}

// For CheckQueue, which does not look at the prompt.
const v1::GenerateRequest& WithoutMessages(const v1::GenerateRequest& request) { return request; }
v1::GenerateRequest WithoutMessages(const v1::ChatRequest& request) {
  return ToGenerateRequest(request);
}

// The parts of a request that the writer needs; its tokens are not among them, nor a session that
// the answer leaves as it is.
Request NamesOf(const Request& request) {
  Request names;
  names.id = request.id;
  if (request.remember) names.session = request.session;
  names.detached = request.detached;
  return names;
}

// Ends work for a call that nobody waits for any more, or that cannot be taken.
WorkMeter MeterOf(const EngineAccess& access, const TextExecutors& executors,
                  StreamWriter& writer) {
  return WorkMeter([&access, &executors, &writer]() -> absl::Status {
    MNEME_RETURN_IF_ERROR(access.GetForWork().status());
    MNEME_RETURN_IF_ERROR(executors.StillOpen());
    return writer.StillWanted();
  });
}

void SubmitConverted(EngineAccess& access, Engine& engine, Request request, const CallFacts& call,
                     StreamWriter& writer, StreamWriter::Recut recut) {
  if (const absl::Status quota = TakeTokensFor(request, writer.permit()); !quota.ok()) {
    return Refuse(access, call, quota, writer);
  }
  Request names = NamesOf(request);
  absl::StatusOr<std::shared_ptr<TokenStream>> stream = engine.Submit(std::move(request));
  if (!stream.ok()) LogRefusal(access, call, stream.status());
  writer.Start(std::move(names), std::move(stream), std::move(recut));
}

// Submits a whole conversation again whose session ends inside of one of its tokens: a model does
// not always cut a text as the tokenizer would. Null for other requests.
StreamWriter::Recut MakeRecut(EngineAccess& access, TextExecutors& executors, Engine& engine,
                              const Request& request, const CallFacts& call, StreamWriter& writer) {
  if (!request.whole_history || request.session.name.empty()) return nullptr;
  return [&access, &executors, &engine, request, call,
          weak = writer.weak_from_this()](int64_t bytes) {
    const std::shared_ptr<StreamWriter> writer = weak.lock();  // which calls this
    // Some bytes of text for each token.
    Lanes& lanes = executors.ForBody(4 * request.prompt.at_start.size());
    const auto cut_and_submit = [&access, &executors, &engine, request, call, writer, bytes] {
      const auto work = [&] {
        WorkMeter meter = MeterOf(access, executors, *writer);
        absl::StatusOr<std::vector<int32_t>> ids =
            CutAt(*engine.tokenizer(), request.prompt.at_start, bytes, access.facts(), meter);
        if (!ids.ok()) return Refuse(access, call, ids.status(), *writer);
        Request cut = request;
        cut.prompt.at_start = *std::move(ids);
        SubmitConverted(access, engine, std::move(cut), call, *writer, nullptr);
      };
      RunOrRefuse(work, [&](const absl::Status& why) { Refuse(access, call, why, *writer); });
    };
    const bool posted = lanes.TryPost(TextOwner(call.owner, call.origin.client), cut_and_submit);
    if (!posted) Refuse(access, call, TooManyTasks(), *writer);
  };
}

template <typename Message>
void Submit(EngineAccess& access, TextExecutors& executors, const Message& request,
            const CallFacts& call, StreamWriter& writer) {
  const absl::StatusOr<Engine*> engine = access.GetForWork();
  if (!engine.ok()) return Refuse(access, call, engine.status(), writer);
  // Queued work that nobody waits for any more, or that cannot be taken, costs no time.
  WorkMeter meter = MeterOf(access, executors, writer);
  if (const absl::Status wanted = meter.Look(); !wanted.ok()) {
    return Refuse(access, call, wanted, writer);
  }
  if (const absl::Status queue = CheckQueue(**engine, WithoutMessages(request)); !queue.ok()) {
    return Refuse(access, call, queue, writer);
  }
  absl::StatusOr<Request> converted = Converted(request, call, **engine, access.facts(), meter);
  if (!converted.ok()) return Refuse(access, call, converted.status(), writer);
  StreamWriter::Recut recut = MakeRecut(access, executors, **engine, *converted, call, writer);
  SubmitConverted(access, **engine, *std::move(converted), call, writer, std::move(recut));
}

// For unary calls, until they are answered.
StillWanted Wanted(const grpc::CallbackServerContext& context, const Clock& clock,
                   const TextExecutors& executors) {
  return [&context, &clock, &executors, deadline = DeadlineOf(context, clock)]() -> absl::Status {
    if (clock.Monotonic() >= deadline) {
      return absl::DeadlineExceededError("the call's deadline passed");
    }
    if (context.IsCancelled()) return absl::CancelledError("the client cancelled the call");
    return executors.StillOpen();
  };
}

absl::StatusOr<v1::TokenizeResponse> Tokenized(const EngineAccess& access,
                                               const v1::TokenizeRequest& request,
                                               WorkMeter& meter) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_RETURN_IF_ERROR(CheckModelName(request.model(), access.facts()));
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(*engine, "text"));
  MNEME_RETURN_IF_ERROR(CheckTextSize(request.text(), "text", access.facts()));
  EncodeOptions options;
  options.continuation = request.continuation();
  options.parse_special = ParsesSpecial(request);
  options.add_bos =
      !request.continuation() &&
      (request.has_add_special_tokens() ? request.add_special_tokens() : tokenizer->adds_bos());
  options.add_eos = !request.continuation() &&
                    (!request.has_add_special_tokens() || request.add_special_tokens());
  Tokenizer::Pair encoded;
  if (request.has_text_pair()) {
    if (request.continuation()) {
      return FieldError("text_pair", "is there beside continuation, expected only one");
    }
    MNEME_RETURN_IF_ERROR(CheckTextSize(request.text_pair(), "text_pair", access.facts()));
    MNEME_ASSIGN_OR_RETURN(encoded, EncodeTextPair(*tokenizer, request.text(), request.text_pair(),
                                                   options, access.facts(), meter));
  } else {
    MNEME_ASSIGN_OR_RETURN(encoded.ids,
                           EncodeText(*tokenizer, request.text(), options, access.facts(), meter));
  }
  const std::vector<int32_t>& ids = encoded.ids;
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  response.mutable_type_ids()->Add(encoded.type_ids.begin(), encoded.type_ids.end());
  if (request.with_pieces()) {
    for (const int32_t id : ids) {
      const TokenEntry& entry = tokenizer->entry(id);
      const bool has_text = entry.kind == TokenKind::kText || entry.kind == TokenKind::kBytes;
      response.add_pieces(SanitizeUtf8(has_text ? entry.text : entry.piece));
    }
  }
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenized(const EngineAccess& access,
                                                   const v1::DetokenizeRequest& request) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_RETURN_IF_ERROR(CheckModelName(request.model(), access.facts()));
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(*engine, "token_ids"));
  DecodeOptions options;
  options.skip_special_tokens = !request.has_skip_special_tokens() || request.skip_special_tokens();
  options.at_sequence_start = !request.continuation();
  const std::vector<int32_t> ids(request.token_ids().begin(), request.token_ids().end());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer->contains(ids[i])) continue;
    const std::string field = absl::StrCat("token_ids[", i, "]");
    return FieldError(field,
                      absl::StrCat("is ", ids[i], ", expected 0 to ", tokenizer->vocab_size() - 1));
  }
  v1::DetokenizeResponse response;
  MNEME_ASSIGN_OR_RETURN(*response.mutable_text(), tokenizer->Decode(ids, options));
  return response;
}

}  // namespace

// From the bytes to the engine. `call` has no request's id yet.
template <typename Message>
void InferenceService::Begin(grpc::CallbackServerContext& context, const grpc::ByteBuffer& bytes,
                             const absl::StatusOr<CallerRef>& caller, CallFacts call,
                             StreamWriter& writer) {
  const auto name = [&](absl::string_view own) {
    call.request_id = ChooseRequestId(own, context);
    context.AddInitialMetadata("x-request-id", call.request_id);
  };
  const auto work = [&] {
    Message request;
    const absl::Status parsed = ParseMessage(bytes, request);
    const absl::Status id_status = CheckRequestId(request.request_id());
    if (id_status.ok()) name(request.request_id());
    for (const absl::Status& status : {caller.status(), parsed, id_status}) {
      if (!status.ok()) return Refuse(engine_, call, status, writer);
    }
    if (const absl::Status place = writer.Claim(security_.quotas().BeginStream(*caller));
        !place.ok()) {
      return Refuse(engine_, call, place, writer);
    }
    Submit(engine_, executors_, request, call, writer);
  };
  RunOrRefuse(work, [&](const absl::Status& why) {
    if (call.request_id.empty()) name("");
    Refuse(engine_, call, why, writer);
  });
}

template <typename Message>
grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Answer(
    absl::string_view method, grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  const std::shared_ptr<StreamWriter> writer = StreamWriter::Create(
      *context, engine_.clock(), [&stats = engine_.stats(), method](absl::StatusCode code) {
        stats.rpcs.Add(std::string(method), absl::StatusCodeToString(code));
      });
  const TraceContext trace = AnswerTrace(*context);
  const absl::StatusOr<CallerRef> caller = CallerOf(*context, security_, Access::kUse);
  const CallFacts call{.owner = caller.ok() ? (*caller)->owner : "",
                       .origin = {.api = "grpc",
                                  .client = PeerText(*context),
                                  .trace_id = trace.trace_id,
                                  .span_id = trace.span_id},
                       .received = engine_.clock().Monotonic(),
                       .deadline = DeadlineOf(*context, engine_.clock())};
  // Where a message is refused before it is read, its own fields are not known.
  const auto refuse_unread = [this, context, call, writer](const absl::Status& why) {
    CallFacts named = call;
    named.request_id = ChooseRequestId("", *context);
    context->AddInitialMetadata("x-request-id", named.request_id);
    Refuse(engine_, named, why, *writer);
  };
  Lanes* const lanes = executors_.For(bytes->Length());
  if (lanes == nullptr) {
    Begin<Message>(*context, *bytes, caller, call, *writer);
  } else if (!caller.ok()) {
    refuse_unread(caller.status());
  } else {
    // The call, and so `context`, lives until the writer has ended it; `bytes` shares its memory.
    const auto begin = [this, context, bytes = *bytes, caller, call, writer, refuse_unread] {
      if (const absl::Status wanted = writer->StillWanted(); !wanted.ok()) {
        return refuse_unread(wanted);
      }
      Begin<Message>(*context, bytes, caller, call, *writer);
    };
    if (!lanes->TryPost(TextOwner(call.owner, call.origin.client), begin)) {
      refuse_unread(TooManyTasks());
    }
  }
  return writer.get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return Answer<v1::GenerateRequest>("Generate", context, request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Chat(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return Answer<v1::ChatRequest>("Chat", context, request);
}

grpc::ServerUnaryReactor* InferenceService::Classify(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  security_.grpc_peers().Mark(PeerText(*context));
  return ClassifyOverGrpc(engine_, security_, executors_, *context, *request, *response);
}

PostTask InferenceService::LanesFor(const grpc::CallbackServerContext& context, size_t bytes) {
  Lanes* const lanes = executors_.For(bytes);
  if (lanes == nullptr) return nullptr;
  const absl::StatusOr<CallerRef> caller = CallerOf(context, security_, Access::kUse);
  return [lanes, owner = TextOwner(caller.ok() ? (*caller)->owner : "", PeerText(context))](
             std::function<void()> task) { return lanes->TryPost(owner, std::move(task)); };
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  security_.grpc_peers().Mark(PeerText(*context));
  return AnswerUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
      engine_.stats(), context, request, response, LanesFor(*context, request->Length()),
      [this, context](const v1::TokenizeRequest& r) {
        WorkMeter meter(Wanted(*context, engine_.clock(), executors_));
        return Tokenized(engine_, r, meter);
      });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  security_.grpc_peers().Mark(PeerText(*context));
  return AnswerUnary<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      engine_.stats(), context, request, response, LanesFor(*context, request->Length()),
      [this](const v1::DetokenizeRequest& r) { return Detokenized(engine_, r); });
}

grpc::ServerUnaryReactor* InferenceService::GetInfo(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  security_.grpc_peers().Mark(PeerText(*context));
  return AnswerUnary<v1::GetInfoRequest, v1::GetInfoResponse>(
      engine_.stats(), context, request, response, PostTask(),
      [this](const v1::GetInfoRequest&) -> absl::StatusOr<v1::GetInfoResponse> {
        return ToInfo(engine_, ServerVersion());
      });
}

}  // namespace mneme
