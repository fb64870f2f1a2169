#include "server/openai/session_routes.h"

#include <map>
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
#include "server/request_conversion.h"
#include "server/session_listing.h"

namespace mneme {
namespace {

// Commands wait for the engine's loop, one after the other, so more threads would not help.
constexpr int kThreads = 1;
constexpr size_t kMaxWaiting = 1024;
// The largest body: it has a few short fields, and is read on that one thread.
constexpr size_t kMaxBodyBytes = 65536;

Json SessionJson(const SessionInfo& info, const Engine& engine) {
  const int64_t max_context = engine.model_info().max_context;
  return {{"id", info.key.name},
          {"object", "session"},
          {"position", info.position},
          {"has_pending_token", info.has_pending_token},
          {"busy", info.busy},
          {"created_at", absl::ToUnixSeconds(info.created)},
          {"last_used_at", absl::ToUnixSeconds(info.last_used)},
          {"ttl_ms", TtlMs(info.ttl)},
          {"state_bytes", info.state_bytes},
          {"max_context", max_context > 0 ? Json(max_context) : Json()},
          {"context_full", ContextFull(info, max_context)},
          {"residency", IsParked(info.residence) ? "host" : "device"}};
}

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
  MNEME_ASSIGN_OR_RETURN(std::vector<SessionInfo> all,
                         engine->ListSessions(http.owner, query["prefix"]));
  const SessionPage page =
      PageOf(std::move(all), {http.owner, query["after"]}, static_cast<size_t>(limit));
  Json data = Json::array();
  for (const SessionInfo& info : page.sessions) data.push_back(SessionJson(info, *engine));
  return Json{{"object", "list"},
              {"data", std::move(data)},
              {"has_more", page.has_more},
              {"last_id", page.sessions.empty() ? Json() : Json(page.sessions.back().key.name)},
              {"total", page.total}};
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
  MNEME_RETURN_IF_ERROR(fields.Finish());
  MNEME_ASSIGN_OR_RETURN(name, SessionNameOrRandom("session_id", name));
  MNEME_ASSIGN_OR_RETURN(const absl::Duration ttl, ToTtl("session_ttl_ms", ttl_ms, access.facts()));
  if (is_fork) MNEME_RETURN_IF_ERROR(ValidateSessionName(source, "fork_of"));
  const SessionKey key{http.owner, std::move(name)};
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info,
                         is_fork ? engine->ForkSession({http.owner, source}, key, ttl)
                                 : engine->CreateSession(key, ttl));
  return SessionJson(info, *engine);
}

absl::StatusOr<Json> InspectMemory(Engine& engine, const std::string& owner,
                                   const std::string& session,
                                   const std::map<std::string, std::string>& fields) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(session, "session_id"));
  MNEME_ASSIGN_OR_RETURN(const MemoryQuery query, ReadMemoryQuery(fields));
  MNEME_ASSIGN_OR_RETURN(const MemoryReport report, engine.InspectMemory({owner, session}, query));
  return MemoryJson(session, query, report);
}

absl::StatusOr<Json> Get(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  // A session may be called "a/memory", too: it is the query that asks for a view.
  absl::string_view name = http.route_argument;
  std::map<std::string, std::string> query;
  MNEME_ASSIGN_OR_RETURN(query, ParseQuery(http.query));
  if (query.contains("view") && absl::ConsumeSuffix(&name, "/memory")) {
    return InspectMemory(*engine, http.owner, std::string(name), query);
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(http.route_argument, "session_id"));
  MNEME_ASSIGN_OR_RETURN(const SessionInfo info,
                         engine->GetSession({http.owner, http.route_argument}));
  return SessionJson(info, *engine);
}

absl::StatusOr<Json> Delete(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(http.route_argument, "session_id"));
  MNEME_RETURN_IF_ERROR(engine->DeleteSession({http.owner, http.route_argument}));
  return Json{{"id", http.route_argument}, {"object", "session.deleted"}, {"deleted", true}};
}

// What is done with a session: its name is in front of the last slash.
absl::StatusOr<Json> Act(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  absl::string_view name = http.route_argument;
  if (!absl::ConsumeSuffix(&name, "/forget_segments")) {
    return absl::NotFoundError(absl::StrCat("there is nothing at ", SanitizeUtf8(http.path),
                                            " for POST, expected /v1/sessions/NAME/"
                                            "forget_segments"));
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, "session_id"));
  MNEME_RETURN_IF_ERROR(CheckBodySize(http));
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
  MNEME_ASSIGN_OR_RETURN(const ForgottenEngrams forgotten,
                         engine->ForgetSegments({http.owner, std::string(name)}, first, end));
  return Json{{"id", std::string(name)},
              {"object", "session.segments_forgotten"},
              {"working", forgotten.working},
              {"short_term", forgotten.short_term},
              {"long_term", forgotten.long_term}};
}

}  // namespace

SessionRoutes::SessionRoutes(EngineAccess& engine)
    : engine_(engine), executor_(kThreads, kMaxWaiting) {}

void SessionRoutes::AddRoutes(HttpRoutes& routes) {
  routes.Add({"GET", "/v1/sessions", Run(&List)});
  routes.Add({"POST", "/v1/sessions", Run(&Create)});
  routes.Add({"GET", "/v1/sessions/{session}", Run(&Get)});
  routes.Add({"POST", "/v1/sessions/{session}", Run(&Act)});
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
