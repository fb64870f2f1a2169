// Requests to generate that the engine never runs, whichever protocol they came by: counted, and a
// line in the request log as for all others.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "mneme/v1/inference.pb.h"
#include "server/requests/engine_access.h"
#include "server/requests/request_conversion.h"

namespace mneme {

// One that was refused before the engine was asked.
void CountRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status);

// One that Engine::Submit refused, which has counted it.
void LogRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status);

// Where a request that needs a place of its own would be refused anyway, its text need not be read;
// of several prompts, each of which is a request, none need be begun where not all can wait. And of
// no prompt where the model generates nothing.
absl::Status CheckQueue(const Engine& engine, const v1::GenerateRequest& request,
                        size_t prompts = 1);

}  // namespace mneme
