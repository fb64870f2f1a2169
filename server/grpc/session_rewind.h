// Calls of mneme.v1.Sessions about checkpoints and going back, for the sessions of `owner`.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "mneme/v1/sessions.pb.h"
#include "server/requests/engine_access.h"

namespace mneme {

// ForkSessionRequest.at. INVALID_ARGUMENT
absl::StatusOr<std::optional<RewindTarget>> PlaceOf(const v1::ForkSessionRequest& request);

absl::StatusOr<v1::Session> RewindNamed(const EngineAccess& access, const std::string& owner,
                                        const v1::RewindSessionRequest& request);
absl::StatusOr<v1::Checkpoint> CreateNamedCheckpoint(const EngineAccess& access,
                                                     const std::string& owner,
                                                     const v1::CreateCheckpointRequest& request);
absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpointsOf(
    const EngineAccess& access, const std::string& owner,
    const v1::ListCheckpointsRequest& request);
absl::StatusOr<v1::DeleteCheckpointResponse> DeleteNamedCheckpoint(
    const EngineAccess& access, const std::string& owner,
    const v1::DeleteCheckpointRequest& request);

}  // namespace mneme
