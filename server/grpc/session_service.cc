#include "server/grpc/session_service.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/grpc/grpc_credentials.h"
#include "server/grpc/memory_conversion.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/response_conversion.h"
#include "server/grpc/session_rewind.h"
#include "server/grpc/session_transfer.h"
#include "server/requests/request_conversion.h"
#include "server/requests/session_listing.h"

namespace mneme {
namespace {

absl::StatusOr<v1::Session> CreateNamed(const EngineAccess& access, const std::string& owner,
                                        const v1::CreateSessionRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  MNEME_ASSIGN_OR_RETURN(std::string name, SessionNameOrRandom("name", request.name()));
  MNEME_ASSIGN_OR_RETURN(const absl::Duration ttl,
                         ToTtl("ttl_ms", request.ttl_ms(), access.facts()));
  NewSession options = ttl;
  MNEME_ASSIGN_OR_RETURN(options.durability, ToDurability("durability", request.durability()));
  options.replaces_lost = request.replace_lost();
  if (request.has_memory_seed()) options.memory_seed = request.memory_seed();
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info,
                         engine->CreateSession({owner, std::move(name)}, options));
  return ToSessionMessage(info, *engine);
}

absl::StatusOr<v1::Session> GetSession(const EngineAccess& access, const std::string& owner,
                                       const v1::GetSessionRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info, engine->GetSession({owner, request.name()}));
  return ToSessionMessage(info, *engine);
}

absl::StatusOr<v1::ListSessionsResponse> ListSessions(const EngineAccess& access,
                                                      const std::string& owner,
                                                      const v1::ListSessionsRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const size_t page_size, PageSize(request.page_size()));
  MNEME_ASSIGN_OR_RETURN(const SessionPage page,
                         engine->ListSessions({.owner = owner,
                                               .name_prefix = request.name_prefix(),
                                               .after = {owner, request.page_token()},
                                               .limit = page_size}));
  v1::ListSessionsResponse response = ToSessionPage(page, *engine);
  // A page token is the last name of the page before.
  if (page.has_more) response.set_next_page_token(page.sessions.back().key.name);
  return response;
}

absl::StatusOr<v1::Session> ForkNamed(const EngineAccess& access, const std::string& owner,
                                      const v1::ForkSessionRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.source_name(), "source_name"));
  MNEME_ASSIGN_OR_RETURN(std::string target,
                         SessionNameOrRandom("target_name", request.target_name()));
  MNEME_ASSIGN_OR_RETURN(const absl::Duration ttl,
                         ToTtl("ttl_ms", request.ttl_ms(), access.facts()));
  MNEME_ASSIGN_OR_RETURN(const std::optional<RewindTarget> at, PlaceOf(request));
  const SessionKey source{owner, request.source_name()};
  const SessionKey key{owner, std::move(target)};
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info, at.has_value()
                                                     ? engine->ForkSessionAt(source, key, ttl, *at)
                                                     : engine->ForkSession(source, key, ttl));
  return ToSessionMessage(info, *engine);
}

absl::StatusOr<v1::DeleteSessionResponse> DeleteNamed(const EngineAccess& access,
                                                      const std::string& owner,
                                                      const v1::DeleteSessionRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  MNEME_RETURN_IF_ERROR(engine->DeleteSession({owner, request.name()}));
  return v1::DeleteSessionResponse();
}

absl::StatusOr<v1::InspectMemoryResponse> InspectEngrams(const EngineAccess& access,
                                                         const std::string& owner,
                                                         const v1::InspectMemoryRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  MNEME_ASSIGN_OR_RETURN(const MemoryQuery query, ToMemoryQuery(request));
  MNEME_ASSIGN_OR_RETURN(const MemoryReport report,
                         engine->InspectMemory({owner, request.name()}, query));
  return ToMemoryMessage(report);
}

absl::StatusOr<v1::ForgetSegmentsResponse> ForgetSegments(
    const EngineAccess& access, const std::string& owner,
    const v1::ForgetSegmentsRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  MNEME_ASSIGN_OR_RETURN(
      const ForgottenSegments forgotten,
      engine->ForgetSegments({owner, request.name()}, request.first(), request.end()));
  v1::ForgetSegmentsResponse response;
  response.set_working(forgotten.working);
  response.set_short_term(forgotten.short_term);
  response.set_long_term(forgotten.long_term);
  for (const std::string& name : forgotten.checkpoints) response.add_dropped_checkpoints(name);
  return response;
}

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* SessionService::AnswerOwner(
    grpc::CallbackServerContext& context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response,
    absl::StatusOr<Response> (*handle)(const EngineAccess&, const std::string& owner,
                                       const Request&)) {
  return AnswerUnary<Request, Response>(
      engine_.stats(), &context, request, response, &executor_,
      [this, handle, caller = CallerOf(context, security_, Access::kUse)](
          const Request& r) -> absl::StatusOr<Response> {
        MNEME_RETURN_IF_ERROR(caller.status());
        return handle(engine_, (*caller)->owner, r);
      });
}

grpc::ServerUnaryReactor* SessionService::Create(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return AnswerOwner<v1::CreateSessionRequest, v1::Session>(*context, request, response,
                                                            &CreateNamed);
}

grpc::ServerUnaryReactor* SessionService::Get(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return AnswerOwner<v1::GetSessionRequest, v1::Session>(*context, request, response, &GetSession);
}

grpc::ServerUnaryReactor* SessionService::List(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return AnswerOwner<v1::ListSessionsRequest, v1::ListSessionsResponse>(*context, request, response,
                                                                        &ListSessions);
}

grpc::ServerUnaryReactor* SessionService::Fork(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return AnswerOwner<v1::ForkSessionRequest, v1::Session>(*context, request, response, &ForkNamed);
}

grpc::ServerUnaryReactor* SessionService::CreateCheckpoint(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return AnswerOwner<v1::CreateCheckpointRequest, v1::Checkpoint>(*context, request, response,
                                                                  &CreateNamedCheckpoint);
}

grpc::ServerUnaryReactor* SessionService::ListCheckpoints(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  return AnswerOwner<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(
      *context, request, response, &ListCheckpointsOf);
}

grpc::ServerUnaryReactor* SessionService::DeleteCheckpoint(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return AnswerOwner<v1::DeleteCheckpointRequest, v1::DeleteCheckpointResponse>(
      *context, request, response, &DeleteNamedCheckpoint);
}

grpc::ServerUnaryReactor* SessionService::Rewind(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return AnswerOwner<v1::RewindSessionRequest, v1::Session>(*context, request, response,
                                                            &RewindNamed);
}

grpc::ServerUnaryReactor* SessionService::Delete(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return AnswerOwner<v1::DeleteSessionRequest, v1::DeleteSessionResponse>(*context, request,
                                                                          response, &DeleteNamed);
}

grpc::ServerUnaryReactor* SessionService::InspectMemory(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return AnswerOwner<v1::InspectMemoryRequest, v1::InspectMemoryResponse>(
      *context, request, response, &InspectEngrams);
}

grpc::ServerUnaryReactor* SessionService::ForgetSegments(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  return AnswerOwner<v1::ForgetSegmentsRequest, v1::ForgetSegmentsResponse>(
      *context, request, response, &mneme::ForgetSegments);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SessionService::Export(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return ExportSession(engine_, transfers_, CallerOf(*context, security_, Access::kUse), *context,
                       *request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* SessionService::Import(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  return ImportSession(engine_, transfers_, CallerOf(*context, security_, Access::kUse), *context,
                       *response);
}

}  // namespace mneme
