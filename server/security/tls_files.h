// Certificate, key and authorities from files that may change while the server runs.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace mneme {

struct TlsPaths {
  std::string certificate;  // PEM, the server's own first, then those between it and the root
  std::string private_key;  // PEM, without a passphrase
  std::string client_ca;    // PEM; empty: clients need no certificate
};

// The contents of the files when they were last in order: PEM texts that fit each other.
struct TlsMaterial {
  std::string certificate;
  std::string private_key;
  std::string client_ca;
  std::string subject;  // of the server's certificate, for the log
  absl::Time expires;
  uint64_t version = 0;  // other than that of any material before

  bool asks_clients() const { return !client_ca.empty(); }
};

// INVALID_ARGUMENT names the file and what is wrong with it: unreadable, no PEM, an encrypted key,
// a key of another certificate, one that is expired, not yet valid, or too weak for OpenSSL.
absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsPaths& paths, absl::Time now);

// Prepares a context of OpenSSL for a server: TLS 1.2 or later, the material, and its demands on
// clients. INVALID_ARGUMENT says what OpenSSL does not accept.
absl::Status ApplyTlsMaterial(const TlsMaterial& material, SSL_CTX* context);

// Thread-safe.
class TlsFiles {
 public:
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Create(TlsPaths paths, absl::Time now);

  // Never null.
  std::shared_ptr<const TlsMaterial> current() const ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the files again. On an error what was there stays.
  absl::Status Reload(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  std::vector<std::string> paths() const;

 private:
  TlsFiles(TlsPaths paths, TlsMaterial material);

  const TlsPaths paths_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const TlsMaterial> current_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
