#include "server/security/security.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log_fields.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

std::vector<std::string> NotEmpty(std::vector<std::string> paths) {
  std::erase(paths, "");
  return paths;
}

void LogKeys(const Authenticator& authenticator) {
  LogFields("keys_read")
      .Add("file", authenticator.key_file())
      .Add("keys", static_cast<int64_t>(authenticator.key_count()))
      .Write(LogSeverity::kInfo);
}

void LogTls(const TlsMaterial& material) {
  LogFields("certificate_read")
      .Add("subject", material.subject)
      .Add("expires", absl::FormatTime(absl::RFC3339_sec, material.expires, absl::UTCTimeZone()))
      .Add("client_certificates", material.asks_clients() ? "required" : "not asked for")
      .Write(LogSeverity::kInfo);
}

void LogFailedReload(const char* files, absl::string_view consequence, const absl::Status& status) {
  LogFields("reload_failed")
      .Message(absl::StrCat(consequence, ": ", status.message()))
      .Add("files", files)
      .Write(LogSeverity::kError);
}

}  // namespace

Security::Security(const v1::SecuritySection& config, Clock& clock)
    : clock_(clock),
      key_changes_(NotEmpty({config.api_key_file()})),
      tls_changes_(NotEmpty({config.ssl_certfile(), config.ssl_keyfile(), config.ssl_ca_certs()})),
      quotas_(clock) {}

absl::StatusOr<std::unique_ptr<Security>> Security::Create(const v1::SecuritySection& config,
                                                           Clock& clock, SecurityFailure& failure) {
  std::unique_ptr<Security> security(new Security(config, clock));
  failure = SecurityFailure::kKeys;
  MNEME_ASSIGN_OR_RETURN(security->authenticator_, Authenticator::Create(config));
  if (!config.api_key_file().empty()) LogKeys(*security->authenticator_);
  if (config.ssl_certfile().empty()) return security;
  failure = SecurityFailure::kTls;
  MNEME_ASSIGN_OR_RETURN(security->tls_, TlsFiles::Create({.certificate = config.ssl_certfile(),
                                                           .private_key = config.ssl_keyfile(),
                                                           .client_ca = config.ssl_ca_certs()},
                                                          clock.Now()));
  LogTls(*security->tls_->current());
  return security;
}

absl::Status Security::ReloadKeys() {
  if (authenticator_->key_file().empty()) return absl::OkStatus();
  absl::MutexLock lock(&reload_mu_);
  const absl::Status status = authenticator_->Reload();
  key_reloads_.Add(status.ok());
  if (status.ok()) {
    LogKeys(*authenticator_);
  } else {
    LogFailedReload("keys", "the API keys stay as they were", status);
  }
  return status;
}

absl::Status Security::ReloadTls() {
  if (tls_ == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&reload_mu_);
  const absl::Status status = tls_->Reload(clock_.Now());
  tls_reloads_.Add(status.ok());
  if (status.ok()) {
    LogTls(*tls_->current());
  } else {
    LogFailedReload("tls", "the TLS certificate stays as it was", status);
  }
  return status;
}

absl::Status Security::Reload() {
  absl::Status keys = ReloadKeys();
  const absl::Status tls = ReloadTls();
  keys.Update(tls);
  return keys;
}

void Security::Poll() {
  if (key_changes_.Poll()) (void)ReloadKeys();
  if (tls_changes_.Poll()) (void)ReloadTls();
}

}  // namespace mneme
