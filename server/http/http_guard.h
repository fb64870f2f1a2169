// HTTP's side of the guard: who calls, by key or client certificate.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "server/http/http_authenticator.h"
#include "server/http/http_server.h"
#include "server/security/access.h"
#include "server/security/security.h"

namespace mneme {

// The access that a route needs, by its pattern: "/v1/completions". Not for routes that are open.
Access HttpAccess(absl::string_view route);

// Refuses as gRPC does: 401, 403. `security` must outlive the server.
std::shared_ptr<HttpAuthenticator> MakeHttpAuthenticator(const Security& security);

// Sets authenticator and TLS of `options`. `security` must outlive the server.
void GuardHttp(const Security& security, HttpServerOptions& options);

}  // namespace mneme
