// States of sessions in files of snapshots: all of a state in one, or what became different since
// an earlier one, which the file goes on from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/state_layout.h"
#include "store/session_store.h"
#include "store/slab_file.h"

namespace mneme {

// A state is what StatePool::Filled names, packed. Its sections: "state.<i>", what any token may
// change, and "rows.<i>", blocks of rows that are written once (state_bytes.h). A file that goes on
// from another one has the blocks that came since. So a session whose context grows writes each row
// about twice, whatever its length, and its two newest files take, with those that they go on from,
// at most three times its state:
//
//   A file goes on from the newest snapshot if that spares a quarter of it, and if then it, and all
//   that it goes on from, take at most twice what the whole state takes.
//
// Files of version 1 have all of it in "state".
//
// May be used by several threads at once; what the constructor takes must outlive it.
class SnapshotFiles {
 public:
  SnapshotFiles(SessionStore& store, FileSystem& files, const StateLayout& layout,
                const SlabIdentity& identity)
      : store_(store), files_(files), layout_(layout), identity_(identity) {}

  // Writes a snapshot of a session's state, at the place that `head` says, which goes on from
  // one of the session's, if that pays and `may_go_on`. It is yet to be added to the store.
  absl::StatusOr<SnapshotRecord> Write(uint64_t id, SlabHead head, bool may_go_on,
                                       std::span<const std::byte> state,
                                       absl::string_view history) const;

  // Reads it. `failed`: the id of that among the snapshot and those it goes on from which could not
  // be read. DATA_LOSS, NOT_FOUND: it is damaged or gone. FAILED_PRECONDITION: it is of another
  // model or state format.
  absl::Status Read(const SnapshotRecord& snapshot, std::span<std::byte> state,
                    std::string& history, uint64_t& failed) const;

 private:
  struct Base {
    uint64_t id = 0;
    int64_t position = 0;
  };
  // With the identity that the store has the model under now.
  SlabIdentity Current(SlabIdentity identity) const;
  // What a snapshot of so many bytes goes on from; an id of 0 where it is better whole.
  absl::StatusOr<Base> FindBase(const SlabHead& head, int64_t bytes) const;

  SessionStore& store_;
  FileSystem& files_;
  const StateLayout& layout_;
  const SlabIdentity identity_;
};

}  // namespace mneme
