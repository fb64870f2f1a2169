#include "clients/cli/session_lines.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace mneme::cli {
namespace {

std::string TtlText(int64_t ttl_ms) {
  return ttl_ms < 0 ? "never" : absl::FormatDuration(absl::Milliseconds(ttl_ms));
}

// How many tokens the session can be fed, and whether it was.
std::string RoomText(const v1::Session& session) {
  if (session.max_context() == 0) return "any";
  return absl::StrCat(session.max_context(), session.context_full() ? " (full)" : "");
}

}  // namespace

void PrintSessionHeader(bool owners) {
  if (owners) absl::PrintF("%-24s ", "OWNER");
  absl::PrintF("%-32s %12s %14s %6s %10s %10s %6s  %s\n", "NAME", "TOKENS", "ROOM", "BUSY",
               "EXPIRES", "BYTES", "WHERE", "LAST USED");
}

void PrintSession(const v1::Session& session, bool json, bool owners) {
  if (json) {
    WriteOut(absl::StrCat(ToJson(session), "\n"));
    return;
  }
  if (owners) absl::PrintF("%-24s ", session.owner());
  const absl::Time used = absl::FromUnixSeconds(session.last_use_time().seconds());
  absl::PrintF("%-32s %12d %14s %6s %10s %10d %6s  %s\n", session.name(), session.position(),
               RoomText(session), session.busy() ? "yes" : "no", TtlText(session.ttl_ms()),
               session.state_bytes(), session.residency() == v1::RESIDENCY_HOST ? "host" : "device",
               absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", used, absl::UTCTimeZone()));
}

}  // namespace mneme::cli
