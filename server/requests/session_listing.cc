#include "server/requests/session_listing.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"

namespace mneme {

absl::StatusOr<size_t> PageSize(int32_t asked) {
  if (asked >= 0 && asked <= kMaxSessionPage) {
    return static_cast<size_t>(asked == 0 ? kDefaultSessionPage : asked);
  }
  return FieldError("page_size", absl::StrCat("is ", asked, ", expected 0 to ", kMaxSessionPage));
}

absl::StatusOr<std::string> SessionNameOrRandom(absl::string_view field, const std::string& name,
                                                absl::string_view kind) {
  if (name.empty()) {
    absl::BitGen random;
    return absl::StrFormat("%s-%016x", kind, absl::Uniform<uint64_t>(random));
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, field));
  return name;
}

int64_t MaxContext(const SessionInfo& session, const Engine& engine) {
  return session.residence == Residence::kOtherModel ? 0 : engine.model_info().max_context;
}

bool ContextFull(const SessionInfo& session, int64_t max_context) {
  return max_context > 0 && session.position - (session.has_pending_token ? 1 : 0) >= max_context;
}

int64_t TtlMs(absl::Duration ttl) {
  return ttl == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(ttl);
}

}  // namespace mneme
