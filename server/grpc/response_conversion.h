// The engine's answers as messages of the wire.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/session_page.h"
#include "mneme/v1/inference.pb.h"
#include "mneme/v1/sessions.pb.h"
#include "server/requests/engine_access.h"

namespace mneme {

// Appends `event` to `response`: `started` on the first event of a stream, outputs, `finished` on a
// last event that is OK. Consecutive pieces of one choice become one output.
void AppendEvent(const TokenEvent& event, const Request& request, bool is_first,
                 v1::GenerateResponse& response);

v1::Session ToSessionMessage(const SessionInfo& info, const Engine& engine);
v1::Checkpoint ToCheckpointMessage(const CheckpointInfo& info);

// Without next_page_token.
v1::ListSessionsResponse ToSessionPage(const SessionPage& page, const Engine& engine);

v1::GetInfoResponse ToInfo(const EngineAccess& access, absl::string_view version);

}  // namespace mneme
