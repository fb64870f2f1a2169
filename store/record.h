// Small records of bytes with a checksum, which rows of the catalogue and parts of files are.
//
//   record  := value* crc:fixed32        of the values, and of the record's name
//   varint  := groups of seven bits, low ones first; the high bit says that another follows
//   signed  := varint of 0, -1, 1, -2, ... counted from 0
//   fixed32, fixed64 := little-endian
//   bytes   := length:varint byte*
//
// A record's name says where it belongs ("turn 3 of session 7"). It is not stored, but counts in
// the checksum, so that a record in another's place is found like one that was altered.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

class RecordWriter {
 public:
  RecordWriter& Varint(uint64_t value);
  RecordWriter& Signed(int64_t value);
  RecordWriter& Fixed32(uint32_t value);
  RecordWriter& Fixed64(uint64_t value);
  RecordWriter& Bytes(absl::string_view bytes);
  // The record, with its checksum.
  std::string Seal(absl::string_view name) &&;
  size_t size() const { return bytes_.size(); }
  // The values alone, to be Bytes of another record.
  std::string Values() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what was written, in the same order. After the first value that is not there, all are 0 or
// empty, and End says so.
class RecordReader {
 public:
  // DATA_LOSS, naming the record, unless the checksum is right. `record` outlives the reader.
  static absl::StatusOr<RecordReader> Open(absl::string_view record, absl::string_view name);
  // Values without a checksum of their own, within a record.
  explicit RecordReader(absl::string_view values) : rest_(values) {}

  uint64_t Varint();
  int64_t Signed();
  uint32_t Fixed32();
  uint64_t Fixed64();
  absl::string_view Bytes();
  // A count of things that take at least `bytes_each`; 0 where there is no room for so many.
  uint64_t Count(size_t bytes_each);
  bool empty() const { return rest_.empty(); }
  size_t size() const { return rest_.size(); }
  // DATA_LOSS, naming the record, if a value was missing or any is left.
  absl::Status End(absl::string_view name) const;

 private:
  absl::string_view Take(size_t count);

  absl::string_view rest_;
  bool failed_ = false;
};

}  // namespace mneme
