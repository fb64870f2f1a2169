#include "server/session_listing.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/request_check.h"

namespace mneme {

SessionPage PageOf(std::vector<SessionInfo> sessions, absl::string_view after, size_t size) {
  std::sort(sessions.begin(), sessions.end(),
            [](const SessionInfo& a, const SessionInfo& b) { return a.key.name < b.key.name; });
  SessionPage page{.total = sessions.size()};
  const auto begin = std::upper_bound(
      sessions.begin(), sessions.end(), after,
      [](absl::string_view name, const SessionInfo& info) { return name < info.key.name; });
  const size_t left = sessions.end() - begin;
  page.has_more = left > size;
  std::move(begin, begin + static_cast<std::ptrdiff_t>(std::min(left, size)),
            std::back_inserter(page.sessions));
  return page;
}

absl::StatusOr<std::string> SessionNameOrRandom(absl::string_view field, const std::string& name) {
  if (name.empty()) {
    absl::BitGen random;
    return absl::StrFormat("session-%016x", absl::Uniform<uint64_t>(random));
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, field));
  return name;
}

int64_t TtlMs(absl::Duration ttl) {
  return ttl == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(ttl);
}

}  // namespace mneme
