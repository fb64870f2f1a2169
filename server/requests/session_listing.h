// The common part of session listings over gRPC and HTTP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace mneme {

inline constexpr int kDefaultSessionPage = 100;
inline constexpr int kMaxSessionPage = 1000;

// The field page_size of a request; 0: the default.
absl::StatusOr<size_t> PageSize(int32_t asked);

// The name a client asks for, or a random one for "", which begins with `kind`. INVALID_ARGUMENT,
// with `field`, for one that no session may have.
absl::StatusOr<std::string> SessionNameOrRandom(absl::string_view field, const std::string& name,
                                                absl::string_view kind = "session");

// ModelInfo::max_context; 0 of a session of another model, of which nobody here knows.
int64_t MaxContext(const SessionInfo& session, const Engine& engine);

// Whether it was fed as many tokens as it can be, of ModelInfo::max_context.
bool ContextFull(const SessionInfo& session, int64_t max_context);

// As messages give it: milliseconds, -1 for a session that never expires.
int64_t TtlMs(absl::Duration ttl);

}  // namespace mneme
