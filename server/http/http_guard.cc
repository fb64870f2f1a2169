#include "server/http/http_guard.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "server/http/tls_stream.h"

namespace mneme {
namespace {

// Facts and numbers; everything else generates or tokenises, or is no route at all.
constexpr absl::string_view kMonitorRoutes[] = {"/metrics", "/v1/models", "/v1/models/{model}"};

class GuardingAuthenticator final : public HttpAuthenticator {
 public:
  explicit GuardingAuthenticator(const Security& security) : security_(security) {}

  absl::StatusOr<std::string> Authenticate(const HttpRequest& request) override {
    Credentials credentials{.certificate = request.peer_identity};
    for (const HttpField& field : request.fields) {
      if (!absl::EqualsIgnoreCase(field.name, "authorization")) continue;
      ++credentials.authorizations;
      credentials.authorization = field.value;
    }
    MNEME_ASSIGN_OR_RETURN(const CallerRef caller, security_.authenticator().Authenticate(
                                                       credentials, HttpAccess(request.route)));
    return caller->owner;
  }

 private:
  const Security& security_;
};

}  // namespace

Access HttpAccess(absl::string_view route) {
  const bool is_monitor = std::count(std::begin(kMonitorRoutes), std::end(kMonitorRoutes), route);
  return is_monitor ? Access::kMonitor : Access::kUse;
}

std::shared_ptr<HttpAuthenticator> MakeHttpAuthenticator(const Security& security) {
  return std::make_shared<GuardingAuthenticator>(security);
}

void GuardHttp(const Security& security, HttpServerOptions& options) {
  options.authenticator = MakeHttpAuthenticator(security);
  if (security.tls() != nullptr) options.stream_factory = MakeTlsStreamFactory(*security.tls());
}

}  // namespace mneme
