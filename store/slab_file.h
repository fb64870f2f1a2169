// Snapshots: a session's state as a file. This header and slab_file.cc alone know its bytes.
//
//   file    := "MNEMSLAB" version:fixed32 head block* index tail
//   head    := length:fixed32 record            the record: SlabHead's fields, in their order
//   block   := the next 1 MiB of a section, fewer at its end; as they are, or one frame of zstd
//   index   := record: sections:varint { kind:varint name:bytes raw:varint blocks:varint
//                                        { stored:varint packed:varint crc:fixed32 }* }*
//   tail    := index_length:fixed32 file_crc:fixed32 "SLABMNEM"
//
// Records and numbers are those of record.h. Blocks lie one behind another in the index's order, so
// their offsets follow from their lengths. crc is of a block's stored bytes, file_crc of all bytes
// of the file before it; both are CRC-32C. packed is 1 where zstd made the block shorter, 0
// elsewhere. kind is 0; readers refuse all others.
//
// A snapshot may go on from an earlier one of the same session, or of that which it was forked
// from, its base: it has then what became different since, and the base (and its base) the rest.
// Which sections those are, the engine knows.
//
// Versions. A reader refuses a version above its own, and reads all below: what version 1 says
// about a byte holds as long as there are files of version 1. Whatever changes what a reader must
// know (a field, a kind, a codec) is a new version, and one more file in tests/store/fixtures.
// Version 1 has neither base nor id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/file_system.h"

namespace mneme {

// What a snapshot must agree in with those who read it.
struct SlabIdentity {
  uint64_t model = 0;         // fingerprint of weights, keys of config.json and tokenizer
  uint64_t state_format = 0;  // of fields, dtypes and the device's layout
  uint64_t adapter = 0;       // 0: none

  friend bool operator==(const SlabIdentity&, const SlabIdentity&) = default;
};

inline constexpr uint32_t kSlabVersion = 2;

struct SlabHead {
  SlabIdentity identity;
  uint64_t id = 0;  // SnapshotRecord::id, so that no file is taken for another; version 1: unknown
  // Whose it is. Enough to go on from the file alone, where the catalogue is lost.
  std::string owner;
  std::string name;
  uint64_t session = 0;       // SessionRecord::id
  int64_t position = 0;       // tokens fed
  int64_t turn = 0;           // turns of the log that are in it
  int64_t created = 0;        // seconds since 1970
  uint64_t base = 0;          // SnapshotRecord::id, less than this one's; 0: all is in this file
  int64_t base_position = 0;  // tokens fed there
  uint32_t version = kSlabVersion;  // of the file

  bool Is(uint64_t snapshot) const { return version == 1 || id == snapshot; }
};

struct SlabSection {
  std::string name;
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
};

// Of a file's name, "<16 hex digits>.slab"; 0 where it is of another form.
uint64_t SnapshotOfFile(absl::string_view name);

// Writes PATH.tmp, and makes it PATH once all of it is on the disk. Used by one thread at a time.
class SlabWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SlabWriter>> Create(FileSystem& files, std::string path,
                                                            const SlabHead& head);
  // Removes what was not finished.
  ~SlabWriter();

  // One more section; its name is new in this file. With `compress`, blocks are stored by zstd
  // where that makes them much shorter.
  absl::Status AddSection(absl::string_view name, std::span<const std::byte> bytes, bool compress);
  // Returns the file's size. When this is OK the file is durable, under its name.
  absl::StatusOr<int64_t> Finish();

 private:
  struct Block {
    uint64_t stored = 0;
    bool packed = false;
    uint32_t crc = 0;
  };
  struct Section {
    std::string name;
    uint64_t raw_bytes = 0;
    std::vector<Block> blocks;
  };
  SlabWriter(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Write(std::span<const std::byte> bytes, uint32_t crc);
  // `raw` itself where that does not pay.
  std::span<const std::byte> Pack(std::span<const std::byte> raw);

  FileSystem& files_;
  const std::string path_;
  std::unique_ptr<File> file_;  // null once finished
  int64_t offset_ = 0;
  uint32_t file_crc_ = 0;
  std::vector<Section> sections_;
  std::vector<std::byte> packed_;
};

// What is looked at before a snapshot is taken for one.
enum class SlabCheck {
  kAll,    // every byte
  kIndex,  // head, index and tail; blocks when they are read
};

// Memory is two blocks and the index, whose size the file's own bounds. Used by one thread at a
// time.
class SlabReader {
 public:
  // DATA_LOSS: torn or altered, or no snapshot at all. FAILED_PRECONDITION: of a newer version.
  // Both say what was found where, and what was expected.
  static absl::StatusOr<std::unique_ptr<SlabReader>> Open(FileSystem& files, std::string path,
                                                          SlabCheck check = SlabCheck::kAll);
  // The head alone, which has a checksum of its own; of the rest nothing is known.
  static absl::StatusOr<SlabHead> HeadOf(FileSystem& files, std::string path);

  const SlabHead& head() const { return head_; }
  const std::vector<SlabSection>& sections() const { return sections_; }
  int64_t file_bytes() const { return file_bytes_; }
  // FAILED_PRECONDITION, naming what differs, unless the snapshot is of `expected`.
  absl::Status CheckIdentity(const SlabIdentity& expected) const;

  // Fills `bytes`, all of the section's. NOT_FOUND where there is none of this name,
  // INVALID_ARGUMENT where its length is another, DATA_LOSS where the file changed meanwhile.
  absl::Status ReadSection(absl::string_view name, std::span<std::byte> bytes);

 private:
  struct Block {
    int64_t offset = 0;
    uint64_t stored = 0;
    uint64_t raw = 0;
    bool packed = false;
    uint32_t crc = 0;
  };
  explicit SlabReader(std::string path) : path_(std::move(path)) {}
  absl::Status ReadHead();
  // The bytes up to there against the file's sum.
  absl::Status CheckAll(int64_t end, uint32_t expected);
  absl::Status ReadIndex(absl::string_view record, int64_t blocks_end);
  absl::Status ReadBlock(const Block& block, std::span<std::byte> out);
  absl::Status Damaged(absl::string_view what) const;
  absl::Status ReadExactly(int64_t offset, std::span<std::byte> bytes) const;

  const std::string path_;
  std::unique_ptr<File> file_;
  int64_t file_bytes_ = 0;
  int64_t blocks_begin_ = 0;
  SlabHead head_;
  std::vector<SlabSection> sections_;
  std::vector<std::vector<Block>> blocks_;  // of each section
  std::vector<std::byte> stored_;
};

}  // namespace mneme
