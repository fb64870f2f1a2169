// What a session's memory holds: from the request's message to the engine's query, and back.
#pragma once

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "mneme/v1/memory.pb.h"

namespace mneme {

// INVALID_ARGUMENT names the field that is out of its range, such as "edges.limit".
absl::StatusOr<MemoryQuery> ToMemoryQuery(const v1::InspectMemoryRequest& request);
v1::InspectMemoryResponse ToMemoryMessage(const MemoryReport& report);

}  // namespace mneme
