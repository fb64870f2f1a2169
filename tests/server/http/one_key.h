// An authenticator for tests.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/http_authenticator.h"

namespace mneme {

// Only "Bearer good" may in.
class OneKey final : public HttpAuthenticator {
 public:
  absl::StatusOr<std::string> Authenticate(const HttpRequest& request) override {
    if (request.Field("authorization") == "Bearer good") return "alice";
    return absl::UnauthenticatedError("no such key");
  }
};

}  // namespace mneme
