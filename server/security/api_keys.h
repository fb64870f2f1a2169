// The keys of clients: a file with a line for each,
//
//   name:hash[:option,option...]
//   alice:sha256-9b74...:streams=8,sessions=100,tokens-per-minute=60000
//
// Empty lines and those that begin with # are skipped. The options are streams=N, sessions=N,
// tokens-per-minute=N (0: no limit), priority=N and one of admin and monitor. Sessions belong to
// the name, so a second line of the same name is a second key of the same client, for the time of a
// rotation; its options must be the same.
//
// Hashes are SHA-256 of the whole key, in hexadecimal digits. A hash made to be slow would guard
// keys that can be guessed; those of NewApiKey have 256 random bits, which nobody tries out at any
// speed, and a slow hash would let strangers keep the server busy.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/security/access.h"

namespace mneme {

// A copy of this is what a client sends. "mneme-" and 43 letters, digits, "-" and "_".
std::string NewApiKey();

// The line of a key, without options: "alice:sha256-...".
std::string ApiKeyLine(absl::string_view name, absl::string_view key);

// 1 to 64 of [A-Za-z0-9._-].
absl::Status CheckKeyName(absl::string_view name);

// Constant once it is built.
class ApiKeys {
 public:
  // `source` is how errors call the text. Limits that a line leaves out are those of `defaults`.
  // INVALID_ARGUMENT names the line, never a hash.
  static absl::StatusOr<ApiKeys> Parse(absl::string_view text, absl::string_view source,
                                       const KeyLimits& defaults);

  // A key that is there in plain, of a name that is new: ALREADY_EXISTS otherwise.
  absl::Status Add(absl::string_view key, Caller caller);

  // Null if the key is unknown. Takes as long for every key: each entry is compared, whole.
  CallerRef Find(absl::string_view key) const;
  // The caller of that name; null if there is none.
  CallerRef Named(const std::string& name) const;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    Digest digest;
    CallerRef caller;
  };

  absl::Status AddLine(absl::string_view line, const KeyLimits& defaults);

  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, CallerRef> names_;
};

}  // namespace mneme
