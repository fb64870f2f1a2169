// A session as all endpoints show it.
#pragma once

#include <string>

#include "engine/engine.h"
#include "server/openai/json_body.h"

namespace mneme {

Json SessionJson(const SessionInfo& info, const Engine& engine);
Json CheckpointJson(const std::string& session, const CheckpointInfo& info);

}  // namespace mneme
