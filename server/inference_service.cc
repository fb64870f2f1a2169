#include "server/inference_service.h"

#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/raw_messages.h"
#include "server/request_conversion.h"
#include "server/request_id.h"
#include "server/response_conversion.h"
#include "server/stream_writer.h"

namespace mneme {
namespace {

// A longer prompt is tokenised on the executor: callbacks share few threads, and this one would
// keep its own for more than a millisecond.
constexpr size_t kMaxInlineTextBytes = 4096;

// Converts and submits, on the executor or in the callback.
void Submit(EngineAccess& access, const v1::GenerateRequest& request, const CallFacts& call,
            StreamWriter& writer) {
  const absl::StatusOr<Engine*> engine = access.GetForWork();
  if (!engine.ok()) return writer.Fail(engine.status());
  absl::StatusOr<Request> converted = ToEngineRequest(request, call, **engine, access.facts());
  if (!converted.ok()) return writer.Fail(converted.status());
  Request names;  // what the writer needs of the request, without its tokens
  names.id = converted->id;
  names.session = converted->session;
  names.detached = converted->detached;
  writer.Start(std::move(names), (*engine)->Submit(*std::move(converted)));
}

absl::StatusOr<v1::TokenizeResponse> Tokenized(const EngineAccess& access,
                                               const v1::TokenizeRequest& request) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_RETURN_IF_ERROR(CheckModelName(request.model(), access.facts()));
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(*engine, "text"));
  EncodeOptions options;
  options.continuation = request.continuation();
  options.add_bos =
      !request.continuation() &&
      (request.has_add_special_tokens() ? request.add_special_tokens() : tokenizer->adds_bos());
  MNEME_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         tokenizer->Encode(request.text(), options));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  if (request.with_pieces()) {
    for (const int32_t id : ids) {
      const TokenEntry& entry = tokenizer->entry(id);
      const bool has_text = entry.kind == TokenKind::kText || entry.kind == TokenKind::kByte;
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
  v1::DetokenizeResponse response;
  MNEME_ASSIGN_OR_RETURN(*response.mutable_text(), tokenizer->Decode(ids, options));
  return response;
}

}  // namespace

absl::string_view ServerVersion() { return MNEME_VERSION; }

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  auto request = std::make_shared<v1::GenerateRequest>();
  const absl::Status parsed = ParseMessage(*bytes, *request);
  const std::shared_ptr<StreamWriter> writer = StreamWriter::Create(*context);
  const absl::Status id_status = CheckRequestId(request->request_id());
  const CallFacts call{
      .request_id = id_status.ok() ? ChooseRequestId(request->request_id(), *context) : "",
      .deadline = DeadlineOf(*context)};
  if (id_status.ok()) context->AddInitialMetadata("x-request-id", call.request_id);
  if (!parsed.ok() || !id_status.ok()) {
    writer->Fail(parsed.ok() ? id_status : parsed);
  } else if (request->text().size() <= kMaxInlineTextBytes) {
    Submit(engine_, *request, call, *writer);
  } else {
    executor_.Post([this, request, call, writer] { Submit(engine_, *request, call, *writer); });
  }
  return writer.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
      context, request, response, &executor_,
      [this](const v1::TokenizeRequest& r) { return Tokenized(engine_, r); });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return AnswerUnary<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      context, request, response, &executor_,
      [this](const v1::DetokenizeRequest& r) { return Detokenized(engine_, r); });
}

grpc::ServerUnaryReactor* InferenceService::GetInfo(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return AnswerUnary<v1::GetInfoRequest, v1::GetInfoResponse>(
      context, request, response, nullptr,
      [this](const v1::GetInfoRequest&) -> absl::StatusOr<v1::GetInfoResponse> {
        return ToInfo(engine_, ServerVersion());
      });
}

}  // namespace mneme
