// Catalogue's part that writes the rows to a next generation, and takes the last one away.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/catalogue.h"

namespace mneme {

absl::Status Catalogue::WriteAnew(Damage& damage, const absl::Status& known) {
  const int64_t last = generation_;
  const size_t damaged_rows = damage.rows.size();
  if (!known.ok()) damage.rows.push_back(known);
  absl::Status opened;
  // Where the disk failed as the last one was opened, it may be whole all the same.
  if (last > 0 && (database_ == nullptr || statements_ == nullptr)) opened = OpenGeneration();
  if (!opened.ok() && !absl::IsDataLoss(opened)) return opened;
  if (!opened.ok()) {
    damage.rows.push_back(
        absl::DataLossError(absl::StrCat(Path(last), ": nothing of it is readable")));
    damage.sessions_unreadable = true;
  }
  MNEME_RETURN_IF_ERROR(WriteGeneration(last + 1, damage));
  statements_.reset();
  database_.reset();
  MNEME_RETURN_IF_ERROR(RemoveImage());
  generation_ = last + 1;
  MNEME_RETURN_IF_ERROR(OpenGeneration());
  if (last == 0) return absl::OkStatus();
  mark_.Write(commits_);  // of what is left
  return RemoveGeneration(last, /*set_aside=*/damage.rows.size() > damaged_rows, damage);
}

// Under its name, and durable, when this returns OK.
absl::Status Catalogue::WriteGeneration(int64_t generation, Damage& damage) {
  const std::string temporary = Path(generation) + ".new";
  for (const absl::string_view suffix : {"", "-wal", "-journal"}) {
    const absl::Status removed = files_.Remove(absl::StrCat(temporary, suffix));
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  MNEME_ASSIGN_OR_RETURN(std::unique_ptr<Database> next, Database::Create(files_, temporary));
  MNEME_RETURN_IF_ERROR(next->Execute(absl::StrCat(
      "PRAGMA application_id = ", kApplicationId, "; PRAGMA user_version = ", kFormatVersion,
      "; CREATE TABLE rows (kind INTEGER NOT NULL, session INTEGER NOT NULL, key BLOB NOT NULL,"
      " record BLOB NOT NULL, PRIMARY KEY (kind, session, key)) WITHOUT ROWID;")));
  MNEME_RETURN_IF_ERROR(next->Begin());
  if (statements_ != nullptr) {
    bool whole = true;
    MNEME_RETURN_IF_ERROR(CopyRows(*next, "", damage, whole));
    // From the other end, as far as the damage.
    if (!whole) MNEME_RETURN_IF_ERROR(CopyRows(*next, "DESC", damage, whole));
  }
  MNEME_RETURN_IF_ERROR(NoteCounts(*next, damage));
  MNEME_RETURN_IF_ERROR(NoteDamage(*next, damage));
  MNEME_RETURN_IF_ERROR(next->Commit());
  MNEME_RETURN_IF_ERROR(Database::Finish(std::move(next)));
  MNEME_RETURN_IF_ERROR(files_.Rename(temporary, Path(generation)));
  return files_.SyncDirectory(folder_);
}

absl::Status Catalogue::NoteCounts(Database& next, Damage& damage) {
  MNEME_ASSIGN_OR_RETURN(RowCounts found, CountRows(next));
  const RowKey row = {.kind = RowKind::kCommits};
  Commits before;
  {
    MNEME_ASSIGN_OR_RETURN(
        Statement get,
        next.Prepare("SELECT record FROM rows WHERE kind = ? AND session = ? AND key = ?"));
    MNEME_ASSIGN_OR_RETURN(const bool copied, BindKey(get, row).Step());
    if (copied) {
      const absl::string_view record = get.Bytes(0);
      before = DecodeCommits(record.substr(0, record.size() - 4));
    }
  }
  if (!damage.rows.empty()) {
    // Each request has two rows, far apart: one of them names the session of the other.
    MNEME_ASSIGN_OR_RETURN(
        const int64_t requests,
        ReadNumber(next, absl::StrCat("SELECT count(*) FROM (SELECT key FROM rows WHERE kind = ",
                                      static_cast<int>(RowKind::kRequest),
                                      " UNION SELECT key FROM rows WHERE kind = ",
                                      static_cast<int>(RowKind::kRequestSession), ")")));
    damage.requests_lost |=
        !before.counts.has_value() || requests < (*before.counts)[RowKind::kRequestSession];
    damage.sessions_unreadable |=
        before.counts.has_value() && found[RowKind::kSession] < (*before.counts)[RowKind::kSession];
  }
  MNEME_ASSIGN_OR_RETURN(Statement put,
                         next.Prepare("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)"));
  // One more, as a commit that failed may be in the last one's WAL all the same.
  return BindKey(put, row)
      .BindBlob(4, EncodeCommits(before.commits + 1, found).Seal(row.Name()))
      .Run();
}

absl::Status Catalogue::NoteDamage(Database& next, const Damage& damage) {
  // Earlier damage that is noted stays, unless this is worse.
  const auto put = [&next](RowKind kind, bool replaces, RecordWriter values) -> absl::Status {
    const RowKey row = {.kind = kind};
    MNEME_ASSIGN_OR_RETURN(Statement insert,
                           next.Prepare(absl::StrCat("INSERT OR ", replaces ? "REPLACE" : "IGNORE",
                                                     " INTO rows VALUES (?, ?, ?, ?)")));
    return BindKey(insert, row).BindBlob(4, std::move(values).Seal(row.Name())).Run();
  };
  if (damage.sessions_unreadable) {
    MNEME_RETURN_IF_ERROR(put(RowKind::kDoubt, /*replaces=*/true, RecordWriter()));
  }
  if (damage.rows.empty()) return absl::OkStatus();
  return put(
      RowKind::kDamage, damage.commits_lost || damage.requests_lost,
      std::move(
          RecordWriter().Varint(damage.commits_lost ? 1 : 0).Varint(damage.requests_lost ? 1 : 0)));
}

absl::Status Catalogue::CopyRows(Database& to, absl::string_view order, Damage& damage,
                                 bool& whole) {
  MNEME_ASSIGN_OR_RETURN(Statement put,
                         to.Prepare("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)"));
  absl::StatusOr<Statement> rows = database_->Prepare(
      absl::StrCat(kSelectRows, "ORDER BY kind ", order, ", session ", order, ", key ", order));
  RowKind last = RowKind::kSession;
  absl::StatusOr<bool> more = rows.ok() ? absl::StatusOr<bool>(true) : rows.status();
  while (more.ok()) {
    more = rows->Step();
    if (!more.ok() || !*more) break;
    const RowKey row = KeyOf(*rows);
    last = row.kind;
    const absl::StatusOr<RecordReader> values = RecordReader::Open(rows->Bytes(3), row.Name());
    if (values.ok()) {
      MNEME_RETURN_IF_ERROR(BindKey(put, row).BindBlob(4, rows->Bytes(3)).Run());
    } else if (order.empty()) {
      damage.rows.push_back(values.status());
      damage.sessions_unreadable |= row.kind == RowKind::kSession;
    }
  }
  if (more.ok()) return absl::OkStatus();
  if (!absl::IsDataLoss(more.status())) return more.status();
  if (!order.empty()) return absl::OkStatus();
  whole = false;
  damage.rows.push_back(more.status());
  damage.sessions_unreadable |= last == RowKind::kSession;
  return absl::OkStatus();
}

absl::Status Catalogue::RemoveGeneration(int64_t generation, bool set_aside, Damage& damage) {
  for (const absl::string_view suffix : {"-wal", ""}) {
    const std::string path = absl::StrCat(Path(generation), suffix);
    absl::Status gone;
    if (set_aside) {
      gone = files_.Rename(path, path + ".damaged");
      if (gone.ok()) damage.set_aside.push_back(path + ".damaged");
    } else {
      gone = files_.Remove(path);
    }
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
  }
  return files_.SyncDirectory(folder_);
}

absl::Status Catalogue::RemoveImage() {
  for (const absl::string_view suffix : {"", "-wal"}) {
    const absl::Status gone = files_.Remove(absl::StrCat(Path(generation_), kImageSuffix, suffix));
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
  }
  return absl::OkStatus();
}

}  // namespace mneme
