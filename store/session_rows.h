// The rows of one session: their keys, and its name in errors.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "store/catalogue.h"
#include "store/session_record.h"

namespace mneme {

inline RowKey SessionRow(uint64_t session) {
  return {.kind = RowKind::kSession, .session = session};
}
inline RowKey TurnRow(uint64_t session, int64_t turn) {
  return {RowKind::kTurn, session, NumberKey(static_cast<uint64_t>(turn))};
}
inline RowKey SnapshotRow(uint64_t session, uint64_t snapshot) {
  return {RowKind::kSnapshot, session, NumberKey(snapshot)};
}

inline std::string Described(const SessionRecord& session) {
  return absl::StrCat("session ", session.name, " (", session.id, ")");
}

}  // namespace mneme
