// Files of sessions over HTTP: the way out as a body that comes into being while it is sent, the
// way in as a body that may be longer than all others.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/http_call.h"
#include "server/requests/engine_access.h"
#include "server/requests/executor.h"

namespace mneme {

// Outlives the HttpServer that has its routes. What takes time is done on threads of its own.
class SessionFiles {
 public:
  explicit SessionFiles(EngineAccess& engine);

  // GET /v1/sessions/{session}/export?format=safetensors. A session may be called "a/export", too:
  // it is the query that asks for the file. Returns false if that does not.
  bool Export(const std::shared_ptr<HttpCall>& call);
  // POST /v1/sessions/{session}/import?session_ttl_ms=N. False if it is another action.
  bool Import(const std::shared_ptr<HttpCall>& call);

  // Of POST to that route: HttpRoute's.
  int64_t MaxBodyBytes(absl::string_view argument) const;
  absl::Status Admit(HttpRequest& request) const;

 private:
  EngineAccess& engine_;
  Executor executor_;
};

}  // namespace mneme
