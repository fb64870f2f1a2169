// Sessions over HTTP, with the names of fields that the endpoints which generate have.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/http/http_routes.h"
#include "server/openai/json_body.h"
#include "server/openai/session_files.h"
#include "server/requests/engine_access.h"
#include "server/requests/executor.h"

namespace mneme {

// Outlives the HttpServer that has its routes. Handlers return at once: commands wait for the
// engine on a thread of their own.
class SessionRoutes {
 public:
  explicit SessionRoutes(EngineAccess& engine);

  //   GET    /v1/sessions            ?prefix= &limit= &after=
  //   POST   /v1/sessions            {session_id, session_ttl_ms, fork_of, fork_checkpoint |
  //                                   fork_position}
  //   GET    /v1/sessions/{session}
  //   GET    /v1/sessions/{session}/memory  ?view= and the fields of memory_view.h
  //   DELETE /v1/sessions/{session}
  //   POST   /v1/sessions/{session}/forget_segments   {first, end}
  //   GET    /v1/sessions/{session}/checkpoints
  //   POST   /v1/sessions/{session}/checkpoints   {name}
  //   DELETE /v1/sessions/{session}/checkpoints   ?name=
  //   POST   /v1/sessions/{session}/rewind        {checkpoint | position}
  //   GET    /v1/sessions/{session}/export   ?format=safetensors
  //   POST   /v1/sessions/{session}/import   ?session_ttl_ms=, the file as its body
  // A session that is called "a/export" is "a%2Fexport".
  void AddRoutes(HttpRoutes& routes);

 private:
  using Command = absl::StatusOr<Json> (*)(const EngineAccess&, const HttpRequest&);
  HttpHandler Run(Command command);

  EngineAccess& engine_;
  Executor executor_;
  SessionFiles files_;
};

}  // namespace mneme
