// Decides from a request's header alone who it comes from.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_message.h"

namespace mneme {

// Asked for every request to a route that is not open, before anything is said about routes and
// before the body is read. Thread-safe; must return quickly: it runs on the connection's thread.
class HttpAuthenticator {
 public:
  virtual ~HttpAuthenticator() = default;
  // The owner of the request's sessions. UNAUTHENTICATED (401), PERMISSION_DENIED (403) or
  // RESOURCE_EXHAUSTED (429, with a retry delay) refuse it.
  virtual absl::StatusOr<std::string> Authenticate(const HttpRequest& request) = 0;
};

}  // namespace mneme
