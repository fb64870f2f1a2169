// What a session's memory holds, as JSON: a view of it, as the query of a target names it.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/json.h"

namespace mneme {

// The fields of a target's query by name, `view` among them. INVALID_ARGUMENT names the one that is
// unknown to the view, or out of its range.
absl::StatusOr<MemoryQuery> ReadMemoryQuery(const std::map<std::string, std::string>& fields);

// The summary, and what was asked for beside it.
Json MemoryJson(const std::string& session, const MemoryQuery& query, const MemoryReport& report);

}  // namespace mneme
