#include "store/catalogue_rows.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// Kinds whose rows would be missed by nobody. Turns are numbered.
constexpr RowKind kCountedKinds[] = {RowKind::kSession, RowKind::kSnapshot, RowKind::kCheckpoint,
                                     RowKind::kRequest, RowKind::kRequestSession};

}  // namespace

absl::string_view KindName(RowKind kind) {
  switch (kind) {
    case RowKind::kSession:
      return "session";
    case RowKind::kTurn:
      return "turn";
    case RowKind::kSnapshot:
      return "snapshot";
    case RowKind::kCheckpoint:
      return "checkpoint";
    case RowKind::kRequest:
      return "request";
    case RowKind::kRequestSession:
      return "session of request";
    case RowKind::kDoubt:
      return "doubt";
    case RowKind::kCommits:
      return "number of commits";
    case RowKind::kModel:
      return "name of model";
    case RowKind::kDamage:
      return "damage";
    case RowKind::kTakenOver:
      return "successor of model";
  }
  return "row of unknown kind";
}

std::string RowKey::Name() const {
  const absl::string_view what = KindName(kind);
  const bool number = kind == RowKind::kTurn || kind == RowKind::kSnapshot;
  return absl::StrCat(what, " ", number ? absl::StrCat(NumberOf(key)) : key, " of session ",
                      session);
}

std::string NumberKey(uint64_t number) {
  std::string key(8, '\0');
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<char>(number >> (56 - 8 * i));
  return key;
}

uint64_t NumberOf(absl::string_view key) {
  uint64_t number = 0;
  for (const char byte : key) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

RowKey KeyOf(const Statement& rows) {
  return {.kind = static_cast<RowKind>(rows.Int(0)),
          .session = static_cast<uint64_t>(rows.Int(1)),
          .key = std::string(rows.Bytes(2))};
}

Statement& BindKey(Statement& statement, const RowKey& row) {
  return statement.Bind(1, static_cast<int64_t>(row.kind))
      .Bind(2, static_cast<int64_t>(row.session))
      .BindBlob(3, row.key);
}

bool IsCounted(RowKind kind) {
  return std::find(std::begin(kCountedKinds), std::end(kCountedKinds), kind) !=
         std::end(kCountedKinds);
}

RecordWriter EncodeCommits(int64_t commits, const std::optional<RowCounts>& counts) {
  RecordWriter record;
  record.Varint(static_cast<uint64_t>(commits));
  if (!counts.has_value()) return record;
  record.Varint(counts->size());
  for (const auto& [kind, count] : *counts) {
    record.Varint(static_cast<uint64_t>(kind)).Signed(count);
  }
  return record;
}

Commits DecodeCommits(absl::string_view record) {
  RecordReader values(record);
  Commits decoded{.commits = static_cast<int64_t>(values.Varint())};
  if (values.empty()) return decoded;
  RowCounts& counts = decoded.counts.emplace();
  for (uint64_t left = values.Count(2); left > 0; --left) {
    const auto kind = static_cast<RowKind>(values.Varint());
    counts[kind] = values.Signed();
  }
  return decoded;
}

absl::StatusOr<int64_t> ReadNumber(Database& database, absl::string_view sql) {
  MNEME_ASSIGN_OR_RETURN(Statement statement, database.Prepare(sql));
  MNEME_ASSIGN_OR_RETURN(const bool found, statement.Step());
  return found ? statement.Int(0) : 0;
}

absl::StatusOr<RowCounts> CountRows(Database& database) {
  RowCounts counts;
  for (const RowKind kind : kCountedKinds) {
    MNEME_ASSIGN_OR_RETURN(
        counts[kind], ReadNumber(database, absl::StrCat("SELECT count(*) FROM rows WHERE kind = ",
                                                        static_cast<int>(kind))));
  }
  return counts;
}

}  // namespace mneme
