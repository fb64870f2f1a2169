// Tells who calls: by API key, or by client certificate where there are no keys.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "engine/counters.h"
#include "mneme/v1/config.pb.h"
#include "server/security/access.h"
#include "server/security/api_keys.h"

namespace mneme {

inline constexpr char kReasonNoKey[] = "API_KEY_MISSING";
inline constexpr char kReasonUnknownKey[] = "API_KEY_UNKNOWN";
inline constexpr char kReasonNoName[] = "CERTIFICATE_WITHOUT_NAME";
inline constexpr char kReasonNotAllowed[] = "KEY_NOT_ALLOWED";

// A call's proof of who makes it. Views of the transport's memory.
struct Credentials {
  int authorizations = 0;           // headers "authorization"; more than one is an error
  absl::string_view authorization;  // "Bearer KEY"
  absl::string_view certificate;    // CertificateName() of the verified client certificate
};

// How a client certificate names its owner: its first URI name, else its common name, else its
// first DNS name. Empty if it has none of them.
std::string CertificateName(absl::string_view uri, absl::string_view common_name,
                            absl::string_view dns);

// Thread-safe.
class Authenticator {
 public:
  // INVALID_ARGUMENT for a key file that cannot be read or has an error.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(const v1::SecuritySection& config);

  // UNAUTHENTICATED without a known key (or certificate) where one is needed, PERMISSION_DENIED for
  // a key that may not do this. Takes a few microseconds.
  absl::StatusOr<CallerRef> Authenticate(const Credentials& credentials, Access access) const;

  // The caller that Authenticate let in under this name, with the limits of now.
  CallerRef CallerNamed(const std::string& owner) const;
  // Sessions that an owner may have; 0: no limit.
  int SessionLimitOf(const std::string& owner) const;

  // Reads the key file again. On an error the keys stay as they were. Callers that have been let in
  // stay in until their calls end.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mu_);

  bool needs_key() const { return keys_needed_; }
  const std::string& key_file() const { return config_.api_key_file(); }
  size_t key_count() const { return keys()->size(); }
  // Calls refused so far: for want of a known key or a name, and of rights.
  int64_t unauthenticated() const { return unauthenticated_.value(); }
  int64_t not_allowed() const { return not_allowed_.value(); }

 private:
  explicit Authenticator(const v1::SecuritySection& config);

  absl::StatusOr<std::shared_ptr<const ApiKeys>> ReadKeys() const;
  absl::StatusOr<CallerRef> Identify(const Credentials& credentials) const;
  std::shared_ptr<const ApiKeys> keys() const ABSL_LOCKS_EXCLUDED(mu_);

  const v1::SecuritySection config_;
  const KeyLimits defaults_;
  const bool keys_needed_;
  const CallerRef anonymous_;
  mutable Counter unauthenticated_;
  mutable Counter not_allowed_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const ApiKeys> keys_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
