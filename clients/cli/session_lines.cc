#include "clients/cli/session_lines.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace mneme::cli {
namespace {

// Time only puts sessions away where the server stores them.
std::string TtlText(const v1::Session& session) {
  if (session.durability() != v1::DURABILITY_UNSPECIFIED) return "-";
  return session.ttl_ms() < 0 ? "never"
                              : absl::FormatDuration(absl::Milliseconds(session.ttl_ms()));
}

// How many tokens the session can be fed, and whether it was.
std::string RoomText(const v1::Session& session) {
  if (session.residency() == v1::RESIDENCY_OTHER_MODEL) return "-";
  if (session.max_context() == 0) return "any";
  return absl::StrCat(session.max_context(), session.context_full() ? " (full)" : "");
}

// Bytes in the store; of a server that has one.
std::string StoredText(const v1::Session& session) {
  if (session.durability() == v1::DURABILITY_UNSPECIFIED) return "-";
  return absl::StrCat(session.stored_bytes());
}

// Whether damage of the store may have cost it something.
std::string DoubtText(const v1::Session& session) {
  if (!session.has_may_have_been_at()) return "";
  return absl::StrCat("  in doubt: it may have been at ", session.may_have_been_at());
}

const char* Residency(v1::Residency residency) {
  switch (residency) {
    case v1::RESIDENCY_HOST:
      return "host";
    case v1::RESIDENCY_STORE:
      return "store";
    case v1::RESIDENCY_LOST:
      return "lost";
    case v1::RESIDENCY_OTHER_MODEL:
      return "other model";
    default:
      return "device";
  }
}

}  // namespace

void PrintSessionHeader(bool owners) {
  if (owners) absl::PrintF("%-24s ", "OWNER");
  absl::PrintF("%-32s %12s %14s %6s %10s %10s %10s %11s  %s\n", "NAME", "TOKENS", "ROOM", "BUSY",
               "EXPIRES", "BYTES", "STORED", "WHERE", "LAST USED");
}

void PrintSession(const v1::Session& session, bool json, bool owners) {
  if (json) {
    WriteOut(absl::StrCat(ToJson(session), "\n"));
    return;
  }
  if (owners) absl::PrintF("%-24s ", session.owner());
  const absl::Time used = absl::FromUnixSeconds(session.last_use_time().seconds());
  absl::PrintF(
      "%-32s %12d %14s %6s %10s %10d %10s %11s  %s%s\n", session.name(), session.position(),
      RoomText(session), session.busy() ? "yes" : "no", TtlText(session), session.state_bytes(),
      StoredText(session), Residency(session.residency()),
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", used, absl::UTCTimeZone()), DoubtText(session));
}

void PrintSessionUsage(const v1::SessionUsage& usage, bool json) {
  if (json) {
    WriteOut(absl::StrCat(ToJson(usage), "\n"));
    return;
  }
  const auto print = [](absl::string_view what, int64_t used, int64_t most) {
    absl::PrintF("%-12s %14d of %s\n", what, used, most > 0 ? absl::StrCat(most) : "any");
  };
  print("sessions", usage.sessions(), usage.max_sessions());
  print("stored bytes", usage.stored_bytes(), usage.max_stored_bytes());
  print("checkpoints", usage.checkpoints(), usage.max_checkpoints());
}

void PrintCheckpointHeader() {
  absl::PrintF("%-32s %12s %8s  %s\n", "CHECKPOINT", "TOKENS", "PENDING", "MADE");
}

void PrintCheckpoint(const v1::Checkpoint& checkpoint, bool json) {
  if (json) {
    WriteOut(absl::StrCat(ToJson(checkpoint), "\n"));
    return;
  }
  const absl::Time made = absl::FromUnixSeconds(checkpoint.create_time().seconds());
  absl::PrintF("%-32s %12d %8s  %s\n", checkpoint.name(), checkpoint.position(),
               checkpoint.has_pending_token() ? "yes" : "no",
               absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", made, absl::UTCTimeZone()));
}

}  // namespace mneme::cli
