// A session as all endpoints show it.
#pragma once

#include <string>

#include "engine/engine.h"
#include "server/openai/json_body.h"

namespace mneme {

Json SessionJson(const SessionInfo& info, const Engine& engine);
// Limits that there are not are null.
Json SessionUsageJson(const SessionUsage& usage);
Json CheckpointJson(const std::string& session, const CheckpointInfo& info);

}  // namespace mneme
