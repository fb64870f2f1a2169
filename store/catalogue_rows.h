// The kinds and keys of a catalogue's rows, and how statements and counts of them are written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/database.h"
#include "store/record.h"

namespace mneme {

// Numbers are in files: a kind keeps its own.
enum class RowKind {
  kSession = 1,         // session; its record
  kTurn = 2,            // session, turn
  kSnapshot = 3,        // session, snapshot
  kCheckpoint = 4,      // session, name
  kRequest = 5,         // session, RequestKey
  kRequestSession = 6,  // 0, RequestKey; which session has the request
  kDoubt = 7,           // 0; whether rows of sessions were lost, so that names are unknown
  // 0; how many transactions with changes there were, this one included, and how many rows of each
  // kind there are that is counted (versions before 2026-11-27: those were not).
  kCommits = 8,
  kModel = 9,  // 0, SessionRecord::model; what that model is called
  // 0; that rows were lost, and sessions are still to be compared with their snapshots: whether
  // commits were lost with them, and whether requests were of which nothing is left.
  kDamage = 10,
  kTakenOver = 11,  // 0, SessionRecord::model of an earlier rule; whose its sessions are since
};

struct RowKey {
  RowKind kind;
  uint64_t session = 0;
  std::string key;

  // As errors name it.
  std::string Name() const;
  friend bool operator==(const RowKey&, const RowKey&) = default;
};

// Keys that sort as their numbers do.
std::string NumberKey(uint64_t number);
uint64_t NumberOf(absl::string_view key);

// As errors name it.
absl::string_view KindName(RowKind kind);

// The columns that KeyOf reads, and the record behind them as column 3.
constexpr absl::string_view kSelectRows = "SELECT kind, session, key, record FROM rows ";
RowKey KeyOf(const Statement& rows);
// Parameters 1 to 3, which are named in that order.
Statement& BindKey(Statement& statement, const RowKey& row);

// Whether the last commit tells how many rows of a kind there are: those that nobody would miss.
bool IsCounted(RowKind kind);
using RowCounts = std::map<RowKind, int64_t>;
absl::StatusOr<RowCounts> CountRows(Database& database);

// The row of kCommits: how many commits there were, and the counts, of which versions before
// 2026-11-27 wrote none.
RecordWriter EncodeCommits(int64_t commits, const std::optional<RowCounts>& counts);
struct Commits {
  int64_t commits = 0;
  std::optional<RowCounts> counts;
};
// None where the row is missing, which an empty record stands for.
Commits DecodeCommits(absl::string_view record);

// The first column of a statement's first row; 0 where it has none.
absl::StatusOr<int64_t> ReadNumber(Database& database, absl::string_view sql);

}  // namespace mneme
