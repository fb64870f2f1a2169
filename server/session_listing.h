// The common part of session listings over gRPC and HTTP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"

namespace mneme {

inline constexpr int kDefaultSessionPage = 100;
inline constexpr int kMaxSessionPage = 1000;

// In order of owners, and of names of each.
struct SessionPage {
  std::vector<SessionInfo> sessions;
  bool has_more = false;
  size_t total = 0;  // sessions on all pages
};

// The sessions behind the key `after`, `size` of them at most: that session may be gone by now,
// and the page begins where it was. With an empty name: from the owner's first.
SessionPage PageOf(std::vector<SessionInfo> sessions, const SessionKey& after, size_t size);

// The field page_size of a request; 0: the default.
absl::StatusOr<size_t> PageSize(int32_t asked);

// The name a client asks for, or a random one for "". INVALID_ARGUMENT, with `field`, for one that
// no session may have.
absl::StatusOr<std::string> SessionNameOrRandom(absl::string_view field, const std::string& name);

// Whether it was fed as many tokens as it can be, of ModelInfo::max_context.
bool ContextFull(const SessionInfo& session, int64_t max_context);

// As messages give it: milliseconds, -1 for a session that never expires.
int64_t TtlMs(absl::Duration ttl);

}  // namespace mneme
