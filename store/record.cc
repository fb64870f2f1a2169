#include "store/record.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "store/crc32c.h"

namespace mneme {

RecordWriter& RecordWriter::Varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
  bytes_.push_back(static_cast<char>(value));
  return *this;
}

RecordWriter& RecordWriter::Signed(int64_t value) {
  return Varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
}

RecordWriter& RecordWriter::Fixed32(uint32_t value) {
  for (int i = 0; i < 4; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  return *this;
}

RecordWriter& RecordWriter::Fixed64(uint64_t value) {
  return Fixed32(static_cast<uint32_t>(value)).Fixed32(static_cast<uint32_t>(value >> 32));
}

RecordWriter& RecordWriter::Bytes(absl::string_view bytes) {
  Varint(bytes.size());
  bytes_.append(bytes.data(), bytes.size());
  return *this;
}

std::string RecordWriter::Seal(absl::string_view name) && {
  Fixed32(Crc32c(Crc32c(0, bytes_), name));
  return std::move(bytes_);
}

absl::StatusOr<RecordReader> RecordReader::Open(absl::string_view record, absl::string_view name) {
  if (record.size() < 4) {
    return absl::DataLossError(
        absl::StrCat(name, ": ", record.size(), " bytes are no record, which has 4 at least"));
  }
  const absl::string_view values = record.substr(0, record.size() - 4);
  const uint32_t stored = RecordReader(record.substr(values.size())).Fixed32();
  const uint32_t expected = Crc32c(Crc32c(0, values), name);
  if (stored != expected) {
    return absl::DataLossError(absl::StrCat(name, ": checksum ", absl::Hex(stored, absl::kZeroPad8),
                                            " is stored, its bytes have ",
                                            absl::Hex(expected, absl::kZeroPad8)));
  }
  return RecordReader(values);
}

absl::string_view RecordReader::Take(size_t count) {
  if (count > rest_.size()) {
    failed_ = true;
    rest_ = {};
    return {};
  }
  const absl::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

uint64_t RecordReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const absl::string_view next = Take(1);
    if (next.empty()) return 0;
    const uint64_t byte = static_cast<unsigned char>(next[0]);
    value |= (byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  Take(rest_.size() + 1);  // no 64-bit number is that long
  return 0;
}

int64_t RecordReader::Signed() {
  const uint64_t value = Varint();
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

uint32_t RecordReader::Fixed32() {
  uint32_t value = 0;
  int shift = 0;
  for (const char byte : Take(4)) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(byte)) << shift;
    shift += 8;
  }
  return value;
}

uint64_t RecordReader::Fixed64() {
  const uint64_t low = Fixed32();
  return low | static_cast<uint64_t>(Fixed32()) << 32;
}

absl::string_view RecordReader::Bytes() {
  const uint64_t size = Varint();
  return Take(size > rest_.size() ? rest_.size() + 1 : static_cast<size_t>(size));
}

uint64_t RecordReader::Count(size_t bytes_each) {
  const uint64_t count = Varint();
  if (count <= rest_.size() / bytes_each) return count;
  Take(rest_.size() + 1);
  return 0;
}

absl::Status RecordReader::End(absl::string_view name) const {
  if (failed_) return absl::DataLossError(absl::StrCat(name, ": ends too early"));
  if (rest_.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(name, ": ", rest_.size(), " bytes more than its fields have"));
}

}  // namespace mneme
