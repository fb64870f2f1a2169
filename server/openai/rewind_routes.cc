#include "server/openai/rewind_routes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/openai/session_json.h"
#include "server/requests/session_listing.h"

namespace mneme {

bool ConsumeAction(const HttpRequest& http, absl::string_view suffix, absl::string_view& name) {
  return suffix.substr(1) == http.last_segment && absl::ConsumeSuffix(&name, suffix);
}

std::optional<RewindTarget> ReadPlace(JsonFields& fields, const char* checkpoint,
                                      const char* position, bool applies) {
  RewindTarget place;
  const bool has_name = fields.Read(checkpoint, place.checkpoint);
  const bool has_position = fields.Read(position, place.position);
  if (!has_name && !has_position) return std::nullopt;
  if (!applies) {
    fields.Fail(has_name ? checkpoint : position,
                "is of a session that is forked, expected fork_of");
  }
  if (has_name && has_position) {
    fields.Fail(position, absl::StrCat("is there beside ", checkpoint, ", expected one of them"));
  }
  if (has_position) fields.Fail(ValidateRewindPosition(place.position, position));
  if (has_name) fields.Fail(ValidateSessionName(place.checkpoint, checkpoint));
  return place;
}

absl::StatusOr<Json> Rewind(Engine& engine, const HttpRequest& http, const std::string& session) {
  WorkMeter meter;
  MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(http, meter));
  const TakenApart body_end(body);
  JsonFields fields(body);
  const std::optional<RewindTarget> to =
      ReadPlace(fields, "checkpoint", "position", /*applies=*/true);
  if (!to.has_value()) fields.Fail("position", "is missing, expected it or checkpoint");
  MNEME_RETURN_IF_ERROR(fields.Finish());
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info, engine.RewindSession({http.owner, session}, *to));
  return SessionJson(info, engine);
}

absl::StatusOr<Json> CreateCheckpoint(Engine& engine, const HttpRequest& http,
                                      const std::string& session) {
  std::string name;
  if (!http.body.empty()) {
    WorkMeter meter;
    MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(http, meter));
    const TakenApart body_end(body);
    JsonFields fields(body);
    // Left out it is the server's choice; empty it was to be something.
    if (fields.Read("name", name)) fields.Fail(ValidateSessionName(name, "name"));
    MNEME_RETURN_IF_ERROR(fields.Finish());
  }
  MNEME_ASSIGN_OR_RETURN(name, SessionNameOrRandom("name", name, "checkpoint"));
  MNEME_ASSIGN_OR_RETURN(const CheckpointInfo info,
                         engine.CreateCheckpoint({http.owner, session}, name));
  return CheckpointJson(session, info);
}

absl::StatusOr<Json> ListCheckpoints(Engine& engine, const std::string& owner,
                                     const std::string& session) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(session, "session_id"));
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> infos,
                         engine.ListCheckpoints({owner, session}));
  Json data = Json::array();
  for (const CheckpointInfo& info : infos) data.push_back(CheckpointJson(session, info));
  return Json{{"object", "list"}, {"data", std::move(data)}};
}

absl::StatusOr<Json> DeleteCheckpoint(Engine& engine, const std::string& owner,
                                      const std::string& session, const std::string& name) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(session, "session_id"));
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, "name"));
  MNEME_RETURN_IF_ERROR(engine.DeleteCheckpoint({owner, session}, name));
  return Json{{"id", name},
              {"object", "session.checkpoint.deleted"},
              {"session_id", session},
              {"deleted", true}};
}

}  // namespace mneme
