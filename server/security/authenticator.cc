#include "server/security/authenticator.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"
#include "server/security/small_file.h"

namespace mneme {
namespace {

constexpr int64_t kMaxKeyFileBytes = int64_t{16} << 20;
// The owner of what is done with --api-key.
constexpr absl::string_view kOnlyKeyName = "api-key";
constexpr absl::string_view kCertificatePrefix = "cert:";

absl::Status Unauthenticated(absl::string_view message, absl::string_view reason) {
  return WithReason(absl::UnauthenticatedError(message), reason);
}

// "Bearer KEY", the scheme in any case, as RFC 9110 has it.
absl::StatusOr<absl::string_view> BearerKey(const Credentials& credentials) {
  if (credentials.authorizations == 0) {
    return Unauthenticated("an API key is needed: send \"authorization: Bearer KEY\"",
                           kReasonNoKey);
  }
  constexpr absl::string_view kScheme = "bearer ";
  if (credentials.authorizations > 1 ||
      !absl::StartsWithIgnoreCase(credentials.authorization, kScheme)) {
    return Unauthenticated("expected one header \"authorization: Bearer KEY\"", kReasonNoKey);
  }
  return absl::StripAsciiWhitespace(credentials.authorization.substr(kScheme.size()));
}

absl::Status NotAllowed(const Caller& caller, Access access) {
  const absl::string_view who =
      caller.owner.empty() ? absl::string_view("callers without a key") : caller.owner;
  return WithReason(
      absl::PermissionDeniedError(absl::StrCat(
          who, access == Access::kAdmin
                   ? " may not make admin calls: they need a key marked admin in --api-key-file"
                   : " may not do this: its key is marked monitor, for facts and metrics only")),
      kReasonNotAllowed);
}

}  // namespace

std::string CertificateName(absl::string_view uri, absl::string_view common_name,
                            absl::string_view dns) {
  return std::string(!uri.empty() ? uri : !common_name.empty() ? common_name : dns);
}

Authenticator::Authenticator(const v1::SecuritySection& config)
    : config_(config),
      defaults_{.max_streams = config.max_streams_per_key(),
                .max_sessions = config.max_sessions_per_key(),
                .tokens_per_minute = config.tokens_per_minute_per_key(),
                .max_priority = config.max_priority_per_key()},
      keys_needed_(!config.api_key().empty() || !config.api_key_file().empty()),
      anonymous_(std::make_shared<const Caller>(Caller{.limits = defaults_})) {}

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Create(
    const v1::SecuritySection& config) {
  std::unique_ptr<Authenticator> authenticator(new Authenticator(config));
  MNEME_RETURN_IF_ERROR(authenticator->Reload());
  return authenticator;
}

absl::StatusOr<std::shared_ptr<const ApiKeys>> Authenticator::ReadKeys() const {
  auto keys = std::make_shared<ApiKeys>();
  if (const std::string& path = config_.api_key_file(); !path.empty()) {
    MNEME_ASSIGN_OR_RETURN(const std::string text,
                           ReadSmallFile("--api-key-file", path, kMaxKeyFileBytes));
    MNEME_ASSIGN_OR_RETURN(*keys, ApiKeys::Parse(text, path, defaults_));
  }
  if (!config_.api_key().empty()) {
    MNEME_RETURN_IF_ERROR(keys->Add(
        config_.api_key(), Caller{.owner = std::string(kOnlyKeyName), .limits = defaults_}));
  }
  if (keys_needed_ && keys->empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--api-key-file \"", config_.api_key_file(),
                                                   "\": has no key, so nobody could call"));
  }
  return keys;
}

absl::Status Authenticator::Reload() {
  MNEME_ASSIGN_OR_RETURN(std::shared_ptr<const ApiKeys> keys, ReadKeys());
  absl::MutexLock lock(&mu_);
  keys_ = std::move(keys);
  return absl::OkStatus();
}

std::shared_ptr<const ApiKeys> Authenticator::keys() const {
  absl::MutexLock lock(&mu_);
  return keys_;
}

absl::StatusOr<CallerRef> Authenticator::Identify(const Credentials& credentials) const {
  if (keys_needed_) {
    MNEME_ASSIGN_OR_RETURN(const absl::string_view key, BearerKey(credentials));
    CallerRef caller = keys()->Find(key);
    if (caller == nullptr) return Unauthenticated("the API key is unknown", kReasonUnknownKey);
    return caller;
  }
  if (config_.ssl_ca_certs().empty()) return anonymous_;
  if (credentials.certificate.empty()) {
    return Unauthenticated(
        "the client certificate has no name to know its owner by: neither a URI, nor a common "
        "name, "
        "nor a DNS name",
        kReasonNoName);
  }
  return std::make_shared<const Caller>(Caller{
      .owner = absl::StrCat(kCertificatePrefix, credentials.certificate), .limits = defaults_});
}

absl::StatusOr<CallerRef> Authenticator::Authenticate(const Credentials& credentials,
                                                      Access access) const {
  if (access == Access::kOpen) return anonymous_;
  absl::StatusOr<CallerRef> caller = Identify(credentials);
  if (!caller.ok()) {
    unauthenticated_.Add();
  } else if (!Allows((*caller)->role, access)) {
    not_allowed_.Add();
    caller = NotAllowed(**caller, access);
  }
  return caller;
}

CallerRef Authenticator::CallerNamed(const std::string& owner) const {
  if (owner.empty()) return anonymous_;
  CallerRef named = keys()->Named(owner);
  if (named != nullptr) return named;
  return std::make_shared<const Caller>(Caller{.owner = owner, .limits = defaults_});
}

int Authenticator::SessionLimitOf(const std::string& owner) const {
  const CallerRef caller = keys()->Named(owner);
  return caller == nullptr ? defaults_.max_sessions : caller->limits.max_sessions;
}

}  // namespace mneme
