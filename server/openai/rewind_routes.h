// Checkpoints of sessions, and going back, over HTTP: what SessionRoutes answers with.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "server/http/http_message.h"
#include "server/openai/json_body.h"

namespace mneme {

// Behind a session's name.
inline constexpr char kCheckpointsPath[] = "/checkpoints";
inline constexpr char kRewindPath[] = "/rewind";

// Whether the request is for what `suffix` ("/export") says of a session, whose name is left in
// `name` then. "%2Fexport" is no such suffix but the end of a name.
bool ConsumeAction(const HttpRequest& http, absl::string_view suffix, absl::string_view& name);

// A place in a session's past, of two fields of which one is there, or none. INVALID_ARGUMENT, of
// `fields`, where both are, or one that does not apply.
std::optional<RewindTarget> ReadPlace(JsonFields& fields, const char* checkpoint,
                                      const char* position, bool applies);

absl::StatusOr<Json> Rewind(Engine& engine, const HttpRequest& http, const std::string& session);
absl::StatusOr<Json> CreateCheckpoint(Engine& engine, const HttpRequest& http,
                                      const std::string& session);
absl::StatusOr<Json> ListCheckpoints(Engine& engine, const std::string& owner,
                                     const std::string& session);
absl::StatusOr<Json> DeleteCheckpoint(Engine& engine, const std::string& owner,
                                      const std::string& session, const std::string& name);

}  // namespace mneme
