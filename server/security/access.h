// Callers, and the rights that calls need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// The right that a call needs of its caller, least first.
enum class Access {
  kOpen,     // nothing: health
  kMonitor,  // any key: facts about the server, metrics
  kUse,      // a key that may generate: inference and its own sessions
  kAdmin,    // a key marked admin
};

// The rights of a caller; each role includes those before it.
enum class Role { kMonitor, kUser, kAdmin };

inline bool Allows(Role role, Access access) {
  switch (access) {
    case Access::kOpen:
    case Access::kMonitor:
      return true;
    case Access::kUse:
      return role != Role::kMonitor;
    case Access::kAdmin:
      return role == Role::kAdmin;
  }
  return false;
}

// The access that a gRPC method needs, by its path: "/mneme.v1.Inference/Generate".
Access GrpcAccess(absl::string_view path);

// The limits of one key; 0: no limit, but for max_priority.
struct KeyLimits {
  int max_streams = 0;  // requests that wait or run
  int max_sessions = 0;
  int64_t tokens_per_minute = 0;
  int max_priority = 0;  // of a request; 0 is none above the usual one

  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct Caller {
  // Sessions, idempotency keys and limits belong to it: the name of a key, "cert:NAME" for a
  // client certificate, empty for those who need neither.
  std::string owner;
  Role role = Role::kUser;
  KeyLimits limits;
};

// Constant; outlives the reload of the key file that made it.
using CallerRef = std::shared_ptr<const Caller>;

}  // namespace mneme
