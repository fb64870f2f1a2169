// Everything that guards the ports: certificates, keys and limits, and the files they come from.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "mneme/v1/config.pb.h"
#include "server/process/reload_counts.h"
#include "server/security/authenticator.h"
#include "server/security/known_peers.h"
#include "server/security/quota.h"
#include "server/security/small_file.h"
#include "server/security/tls_files.h"

namespace mneme {

// The files that something is wrong with, as the process's exit code.
enum class SecurityFailure { kKeys = 2, kTls = 5 };

// Thread-safe but for Poll. Outlives the servers and the engine.
class Security {
 public:
  // On failure `failure` says which files are at fault; INVALID_ARGUMENT, one line.
  static absl::StatusOr<std::unique_ptr<Security>> Create(const v1::SecuritySection& config,
                                                          Clock& clock, SecurityFailure& failure);

  const Authenticator& authenticator() const { return *authenticator_; }
  QuotaTable& quotas() { return quotas_; }
  // The peers of gRPC's port. HTTP's connections know themselves what they have answered.
  KnownPeers& grpc_peers() const { return grpc_peers_; }
  // Null where the ports speak no TLS.
  const TlsFiles* tls() const { return tls_.get(); }
  // Stay as they are where there are no such files.
  const ReloadCounts& key_reloads() const { return key_reloads_; }
  const ReloadCounts& tls_reloads() const { return tls_reloads_; }

  // Reads all files again; what is in order takes effect, what is not is logged and stays as it
  // was. The first error.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(reload_mu_);
  // Called at intervals of about a second by one thread: reads again what has changed.
  void Poll();

 private:
  Security(const v1::SecuritySection& config, Clock& clock);

  absl::Status ReloadKeys() ABSL_LOCKS_EXCLUDED(reload_mu_);
  absl::Status ReloadTls() ABSL_LOCKS_EXCLUDED(reload_mu_);

  Clock& clock_;
  // Made before the files are read, so that no change is missed.
  FileChanges key_changes_;
  FileChanges tls_changes_;
  absl::Mutex reload_mu_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<TlsFiles> tls_;
  QuotaTable quotas_;
  mutable KnownPeers grpc_peers_;
  ReloadCounts key_reloads_;
  ReloadCounts tls_reloads_;
};

}  // namespace mneme
