#include "engine/sessions/snapshot_files.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/state_bytes.h"

namespace mneme {
namespace {

constexpr char kHistory[] = "history";
constexpr char kAllInOne[] = "state";  // of version 1
// Files that a snapshot takes at most.
constexpr size_t kMostFiles = 32;

std::string StateSection(size_t i) { return absl::StrCat("state.", i); }
std::string RowsSection(size_t i) { return absl::StrCat("rows.", i); }

int64_t SumOf(const std::vector<ByteRange>& ranges) {
  int64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.end - range.begin;
  return bytes;
}

template <typename Byte>
std::span<Byte> Part(std::span<Byte> state, const ByteRange& range) {
  return state.subspan(static_cast<size_t>(range.begin),
                       static_cast<size_t>(range.end - range.begin));
}

// The bytes of a section; 0 where there is none.
size_t SizeOf(const SlabReader& reader, absl::string_view section) {
  for (const SlabSection& one : reader.sections()) {
    if (one.name == section) return one.raw_bytes;
  }
  return 0;
}

}  // namespace

absl::StatusOr<SnapshotFiles::Base> SnapshotFiles::FindBase(const SlabHead& head,
                                                            int64_t bytes) const {
  if (AppendedBytes(layout_, head.position, 0, head.position).empty()) return Base();
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         store_.ReadSnapshots(head.session));
  const auto newest =
      std::find_if(snapshots.rbegin(), snapshots.rend(), [&](const SnapshotRecord& one) {
        return one.position > 0 && one.position <= head.position && one.turn <= head.turn;
      });
  if (newest == snapshots.rend()) return Base();
  const int64_t own = SumOf(RewrittenBytes(layout_, head.position)) +
                      SumOf(AppendedBytes(layout_, head.position, newest->position, head.position));
  int64_t together = own;
  size_t files = 1;
  for (uint64_t id = newest->id; id != 0; ++files) {
    const auto one = std::find_if(snapshots.begin(), snapshots.end(),
                                  [&](const SnapshotRecord& record) { return record.id == id; });
    if (one == snapshots.end()) return Base();
    together += one->bytes;
    id = one->base;
  }
  if (own > bytes / 4 * 3 || together > 2 * bytes || files > kMostFiles) return Base();
  // It may be of before the server was started with another state format.
  const absl::StatusOr<SlabHead> found =
      SlabReader::HeadOf(files_, store_.SnapshotPath(newest->id));
  if (!found.ok() || found->version == 1 || !found->Is(newest->id)) return Base();
  if (Current(found->identity) != identity_) return Base();
  return Base{newest->id, newest->position};
}

SlabIdentity SnapshotFiles::Current(SlabIdentity identity) const {
  identity.model = store_.SuccessorOf(identity.model);
  return identity;
}

absl::StatusOr<SnapshotRecord> SnapshotFiles::Write(uint64_t id, SlabHead head, bool may_go_on,
                                                    std::span<const std::byte> state,
                                                    absl::string_view history) const {
  Base base;
  if (may_go_on) {
    MNEME_ASSIGN_OR_RETURN(base, FindBase(head, static_cast<int64_t>(state.size())));
  }
  head.identity = identity_;
  head.id = id;
  head.base = base.id;
  head.base_position = base.position;
  SnapshotRecord snapshot = {.id = id, .position = head.position, .turn = head.turn};
  snapshot.base = base.id;
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<SlabWriter> writer,
                         SlabWriter::Create(files_, store_.SnapshotPath(id), head));
  const std::vector<ByteRange> rewritten = RewrittenBytes(layout_, head.position);
  for (size_t i = 0; i < rewritten.size(); ++i) {
    MNEME_RETURN_IF_ERROR(
        writer->AddSection(StateSection(i), Part(state, rewritten[i]), /*compress=*/true));
  }
  const std::vector<ByteRange> rows =
      AppendedBytes(layout_, head.position, base.position, head.position);
  for (size_t i = 0; i < rows.size(); ++i) {
    MNEME_RETURN_IF_ERROR(
        writer->AddSection(RowsSection(i), Part(state, rows[i]), /*compress=*/true));
  }
  MNEME_RETURN_IF_ERROR(writer->AddSection(
      kHistory, std::as_bytes(std::span(history.data(), history.size())), /*compress=*/true));
  MNEME_ASSIGN_OR_RETURN(snapshot.bytes, writer->Finish());
  return snapshot;
}

absl::Status SnapshotFiles::Read(const SnapshotRecord& snapshot, std::span<std::byte> state,
                                 std::string& history, uint64_t& failed) const {
  // The newest file first.
  std::vector<std::unique_ptr<SlabReader>> files;
  failed = snapshot.id;
  int64_t position = snapshot.position;
  for (uint64_t id = snapshot.id; id != 0;) {
    failed = id;
    MNEME_ASSIGN_OR_RETURN(std::unique_ptr<SlabReader> reader,
                           SlabReader::Open(files_, store_.SnapshotPath(id), SlabCheck::kIndex));
    const SlabHead& head = reader->head();
    // It is this model's, under the identity that it had then.
    SlabIdentity expected = identity_;
    if (Current(head.identity).model == identity_.model) expected.model = head.identity.model;
    MNEME_RETURN_IF_ERROR(reader->CheckIdentity(expected));
    if (!head.Is(id)) {
      return absl::DataLossError(
          absl::StrCat("snapshot ", id, ": in its file is that of id ", head.id));
    }
    const bool may_go_on = head.base < id && head.base_position <= position;
    if (head.position != position || (head.version == 1 && id != snapshot.id) || !may_go_on) {
      return absl::DataLossError(absl::StrCat(
          "snapshot ", id, ": is of ", head.position, " tokens and goes on from snapshot ",
          head.base, " of ", head.base_position, ", expected ", position, " tokens"));
    }
    id = head.base;
    position = head.base_position;
    files.push_back(std::move(reader));
  }
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    const SlabHead& head = (*file)->head();
    failed = file + 1 == files.rend() ? snapshot.id : (*(file + 1))->head().base;
    if (head.version == 1) break;
    const std::vector<ByteRange> rows =
        AppendedBytes(layout_, snapshot.position, head.base_position, head.position);
    for (size_t i = 0; i < rows.size(); ++i) {
      MNEME_RETURN_IF_ERROR((*file)->ReadSection(RowsSection(i), Part(state, rows[i])));
    }
  }
  failed = snapshot.id;
  SlabReader& newest = *files.front();
  history.resize(SizeOf(newest, kHistory));
  MNEME_RETURN_IF_ERROR(newest.ReadSection(
      kHistory, std::as_writable_bytes(std::span(history.data(), history.size()))));
  if (newest.head().version == 1) return newest.ReadSection(kAllInOne, state);
  const std::vector<ByteRange> rewritten = RewrittenBytes(layout_, snapshot.position);
  for (size_t i = 0; i < rewritten.size(); ++i) {
    MNEME_RETURN_IF_ERROR(newest.ReadSection(StateSection(i), Part(state, rewritten[i])));
  }
  return absl::OkStatus();
}

}  // namespace mneme
