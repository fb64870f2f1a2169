#include "server/grpc/session_rewind.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/grpc/response_conversion.h"
#include "server/requests/session_listing.h"

namespace mneme {
namespace {

absl::StatusOr<RewindTarget> CheckpointTarget(const std::string& name) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, "checkpoint"));
  return RewindTarget{.checkpoint = name};
}

absl::StatusOr<RewindTarget> PositionTarget(int64_t position) {
  MNEME_RETURN_IF_ERROR(ValidateRewindPosition(position, "position"));
  return RewindTarget{.position = position};
}

}  // namespace

absl::StatusOr<std::optional<RewindTarget>> PlaceOf(const v1::ForkSessionRequest& request) {
  switch (request.at_case()) {
    case v1::ForkSessionRequest::kCheckpoint:
      return CheckpointTarget(request.checkpoint());
    case v1::ForkSessionRequest::kPosition:
      return PositionTarget(request.position());
    default:
      return std::nullopt;
  }
}

absl::StatusOr<v1::Session> RewindNamed(const EngineAccess& access, const std::string& owner,
                                        const v1::RewindSessionRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  RewindTarget to;
  switch (request.to_case()) {
    case v1::RewindSessionRequest::kCheckpoint: {
      MNEME_ASSIGN_OR_RETURN(to, CheckpointTarget(request.checkpoint()));
      break;
    }
    case v1::RewindSessionRequest::kPosition: {
      MNEME_ASSIGN_OR_RETURN(to, PositionTarget(request.position()));
      break;
    }
    default:
      return FieldError("to", "is missing, expected checkpoint or position");
  }
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info,
                         engine->RewindSession({owner, request.name()}, to));
  return ToSessionMessage(info, *engine);
}

absl::StatusOr<v1::Checkpoint> CreateNamedCheckpoint(const EngineAccess& access,
                                                     const std::string& owner,
                                                     const v1::CreateCheckpointRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.session(), "session"));
  MNEME_ASSIGN_OR_RETURN(std::string name,
                         SessionNameOrRandom("name", request.name(), "checkpoint"));
  MNEME_ASSIGN_OR_RETURN(const CheckpointInfo info,
                         engine->CreateCheckpoint({owner, request.session()}, std::move(name)));
  return ToCheckpointMessage(info);
}

absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpointsOf(
    const EngineAccess& access, const std::string& owner,
    const v1::ListCheckpointsRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.session(), "session"));
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> infos,
                         engine->ListCheckpoints({owner, request.session()}));
  v1::ListCheckpointsResponse response;
  for (const CheckpointInfo& info : infos) *response.add_checkpoints() = ToCheckpointMessage(info);
  return response;
}

absl::StatusOr<v1::DeleteCheckpointResponse> DeleteNamedCheckpoint(
    const EngineAccess& access, const std::string& owner,
    const v1::DeleteCheckpointRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.session(), "session"));
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  MNEME_RETURN_IF_ERROR(engine->DeleteCheckpoint({owner, request.session()}, request.name()));
  return v1::DeleteCheckpointResponse();
}

}  // namespace mneme
