#include "server/openai/session_routes.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"
#include "server/http/url.h"
#include "server/openai/memory_view.h"
#include "server/openai/openai_request.h"
#include "server/openai/rewind_routes.h"
#include "server/openai/session_json.h"
#include "server/requests/request_conversion.h"
#include "server/requests/session_listing.h"

namespace mneme {
namespace {

// Commands wait for the engine's loop, one after the other. A second thread is for those that come
// while the first one makes a view of a memory.
constexpr int kThreads = 2;
constexpr size_t kMaxWaiting = 1024;
// The largest body: it has a few short fields, and is read on one of these threads.
constexpr size_t kMaxBodyBytes = 65536;

absl::StatusOr<Json> List(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  std::map<std::string, std::string> query;
  MNEME_ASSIGN_OR_RETURN(query, ParseQuery(http.query));
  int limit = kDefaultSessionPage;
  for (const auto& [name, value] : query) {
    if (name == "limit") {
      if (!absl::SimpleAtoi(value, &limit) || limit < 1 || limit > kMaxSessionPage) {
        return FieldError(name, absl::StrCat("is \"", SanitizeUtf8(value),
                                             "\", expected a number from 1 to ", kMaxSessionPage));
      }
    } else if (name != "prefix" && name != "after") {
      return FieldError(absl::CHexEscape(name), "is unknown, expected prefix, limit or after");
    }
  }
  MNEME_ASSIGN_OR_RETURN(const SessionPage page,
                         engine->ListSessions({.owner = http.owner,
                                               .name_prefix = query["prefix"],
                                               .after = {http.owner, query["after"]},
                                               .limit = static_cast<size_t>(limit)}));
  Json data = Json::array();
  for (const SessionInfo& info : page.sessions) data.push_back(SessionJson(info, *engine));
  return Json{{"object", "list"},
              {"data", std::move(data)},
              {"has_more", page.has_more},
              {"last_id", page.sessions.empty() ? Json() : Json(page.sessions.back().key.name)},
              {"total", page.total},
              {"usage", SessionUsageJson(page.usage)}};
}

absl::Status CheckBodySize(const HttpRequest& http) {
  if (http.body.size() <= kMaxBodyBytes) return absl::OkStatus();
  return BodyError(
      absl::StrCat("the body has ", http.body.size(), " bytes, expected at most ", kMaxBodyBytes));
}

// A new session, or a fork of another one.
absl::StatusOr<Json> Create(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  MNEME_RETURN_IF_ERROR(CheckBodySize(http));
  WorkMeter meter;
  MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(http, meter));
  const TakenApart body_end(body);
  JsonFields fields(body);
  std::string name;
  std::string source;
  int64_t ttl_ms = 0;
  if (fields.Read("session_id", name)) fields.Fail(ValidateSessionName(name, "session_id"));
  fields.Read("session_ttl_ms", ttl_ms);
  const bool is_fork = fields.Read("fork_of", source);
  NewSession options;
  const v1::Durability durability = ReadDurability(fields);
  fields.Read("replace_lost", options.replaces_lost);
  options.memory_seed = ReadMemorySeed(fields);
  const std::optional<RewindTarget> at =
      ReadPlace(fields, "fork_checkpoint", "fork_position", /*applies=*/is_fork);
  MNEME_RETURN_IF_ERROR(fields.Finish());
  MNEME_ASSIGN_OR_RETURN(name, SessionNameOrRandom("session_id", name));
  MNEME_ASSIGN_OR_RETURN(const absl::Duration ttl, ToTtl("session_ttl_ms", ttl_ms, access.facts()));
  options.ttl = ttl;
  MNEME_ASSIGN_OR_RETURN(options.durability, ToDurability("durability", durability));
  if (is_fork && options.memory_seed.has_value()) {
    return FieldError("memory_seed", "is there, expected none: a fork has its source's");
  }
  if (is_fork) MNEME_RETURN_IF_ERROR(ValidateSessionName(source, "fork_of"));
  const SessionKey key{http.owner, std::move(name)};
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info,
                         at.has_value() ? engine->ForkSessionAt({http.owner, source}, key, ttl, *at)
                         : is_fork      ? engine->ForkSession({http.owner, source}, key, ttl)
                                        : engine->CreateSession(key, options));
  return SessionJson(info, *engine);
}

absl::StatusOr<Json> InspectMemory(Engine& engine, const std::string& owner,
                                   const std::string& session,
                                   const std::map<std::string, std::string>& fields) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(session, "session_id"));
  if (!fields.contains("view")) {
    return FieldError("view",
                      "is missing, expected summary, engrams, edges, histogram or contiguity");
  }
  MNEME_ASSIGN_OR_RETURN(const MemoryQuery query, ReadMemoryQuery(fields));
  MNEME_ASSIGN_OR_RETURN(const MemoryReport report, engine.InspectMemory({owner, session}, query));
  return MemoryJson(session, query, report);
}

absl::StatusOr<Json> Get(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  absl::string_view name = http.route_argument;
  std::map<std::string, std::string> query;
  MNEME_ASSIGN_OR_RETURN(query, ParseQuery(http.query));
  if (ConsumeAction(http, "/memory", name)) {
    return InspectMemory(*engine, http.owner, std::string(name), query);
  }
  if (ConsumeAction(http, kCheckpointsPath, name)) {
    return ListCheckpoints(*engine, http.owner, std::string(name));
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(http.route_argument, "session_id"));
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info,
                         engine->GetSession({http.owner, http.route_argument}));
  return SessionJson(info, *engine);
}

absl::StatusOr<Json> Delete(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  absl::string_view name = http.route_argument;
  std::map<std::string, std::string> query;
  MNEME_ASSIGN_OR_RETURN(query, ParseQuery(http.query));
  if (ConsumeAction(http, kCheckpointsPath, name)) {
    if (!query.contains("name")) {
      return FieldError("name", "is missing, expected the name of a checkpoint");
    }
    return DeleteCheckpoint(*engine, http.owner, std::string(name), query["name"]);
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(http.route_argument, "session_id"));
  MNEME_RETURN_IF_ERROR(engine->DeleteSession({http.owner, http.route_argument}));
  return Json{{"id", http.route_argument}, {"object", "session.deleted"}, {"deleted", true}};
}

// What is done with a session: its name is in front of the last slash.
absl::StatusOr<Json> Act(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  absl::string_view name = http.route_argument;
  const bool makes_checkpoint = absl::ConsumeSuffix(&name, kCheckpointsPath);
  const bool rewinds = !makes_checkpoint && absl::ConsumeSuffix(&name, kRewindPath);
  if (!makes_checkpoint && !rewinds && !absl::ConsumeSuffix(&name, "/forget_segments")) {
    return absl::NotFoundError(absl::StrCat("there is nothing at ", SanitizeUtf8(http.path),
                                            " for POST, expected /v1/sessions/NAME/"
                                            "checkpoints, rewind, forget_segments or import"));
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, "session_id"));
  MNEME_RETURN_IF_ERROR(CheckBodySize(http));
  if (makes_checkpoint) return CreateCheckpoint(*engine, http, std::string(name));
  if (rewinds) return Rewind(*engine, http, std::string(name));
  WorkMeter meter;
  MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(http, meter));
  const TakenApart body_end(body);
  JsonFields fields(body);
  int64_t first = 0, end = 0;
  for (const auto& [field, value] : {std::pair("first", &first), std::pair("end", &end)}) {
    if (!fields.Read(field, *value)) {
      fields.Fail(field, "is missing, expected the number of a segment");
    }
  }
  MNEME_RETURN_IF_ERROR(fields.Finish());
  MNEME_ASSIGN_OR_RETURN(const ForgottenSegments forgotten,
                         engine->ForgetSegments({http.owner, std::string(name)}, first, end));
  return Json{{"id", std::string(name)},          {"object", "session.segments_forgotten"},
              {"working", forgotten.working},     {"short_term", forgotten.short_term},
              {"long_term", forgotten.long_term}, {"dropped_checkpoints", forgotten.checkpoints}};
}

}  // namespace

SessionRoutes::SessionRoutes(EngineAccess& engine)
    : engine_(engine), executor_(kThreads, kMaxWaiting), files_(engine) {}

void SessionRoutes::AddRoutes(HttpRoutes& routes) {
  routes.Add({"GET", "/v1/sessions", Run(&List)});
  routes.Add({"POST", "/v1/sessions", Run(&Create)});
  routes.Add({"GET", "/v1/sessions/{session}",
              [this, get = Run(&Get)](const std::shared_ptr<HttpCall>& call) {
                if (!files_.Export(call)) get(call);
              }});
  routes.Add({.method = "POST",
              .pattern = "/v1/sessions/{session}",
              .handler =
                  [this, act = Run(&Act)](const std::shared_ptr<HttpCall>& call) {
                    if (!files_.Import(call)) act(call);
                  },
              .max_body_bytes =
                  [this](absl::string_view argument) { return files_.MaxBodyBytes(argument); },
              .admit = [this](HttpRequest& request) { return files_.Admit(request); }});
  routes.Add({"DELETE", "/v1/sessions/{session}", Run(&Delete)});
}

HttpHandler SessionRoutes::Run(Command command) {
  return [this, command](const std::shared_ptr<HttpCall>& call) {
    const bool posted = executor_.TryPost([this, command, call] {
      call->Send(JsonOrErrorResponse(command(engine_, call->request())));
    });
    if (!posted) call->Send(ErrorResponse(TooManyTasks()));
  };
}

}  // namespace mneme
