#include "store/slab_file.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "store/crc32c.h"
#include "store/record.h"

namespace mneme {
namespace {

constexpr absl::string_view kMagic = "MNEMSLAB";
constexpr absl::string_view kEnd = "SLABMNEM";
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kPrefixBytes = 16;  // magic, version, length of the head
constexpr size_t kTailBytes = 16;    // length of the index, checksum, kEnd
constexpr size_t kMaxHeadBytes = size_t{1} << 16;
constexpr int kZstdLevel = 1;
// Where zstd leaves more than that of a block, this one and so many more are stored as they are:
// states of floats lose a few hundredths, and take three times as long to be written.
constexpr double kWorthPacking = 0.875;
constexpr int kBlocksUntilNextTry = 15;
constexpr absl::string_view kHeadName = "head of a snapshot";
constexpr absl::string_view kIndexName = "index of a snapshot";

std::span<const std::byte> AsBytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
absl::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string EncodeHead(const SlabHead& head) {
  RecordWriter record;
  record.Fixed64(head.identity.model)
      .Fixed64(head.identity.state_format)
      .Fixed64(head.identity.adapter)
      .Bytes(head.owner)
      .Bytes(head.name)
      .Varint(head.session)
      .Signed(head.position)
      .Signed(head.turn)
      .Signed(head.created)
      .Varint(head.base)
      .Signed(head.base_position)
      .Varint(head.id);
  return std::move(record).Seal(kHeadName);
}

absl::StatusOr<SlabHead> DecodeHead(absl::string_view bytes, uint32_t version) {
  MNEME_ASSIGN_OR_RETURN(RecordReader record, RecordReader::Open(bytes, kHeadName));
  SlabHead head;
  head.identity.model = record.Fixed64();
  head.identity.state_format = record.Fixed64();
  head.identity.adapter = record.Fixed64();
  head.owner = std::string(record.Bytes());
  head.name = std::string(record.Bytes());
  head.session = record.Varint();
  head.position = record.Signed();
  head.turn = record.Signed();
  head.created = record.Signed();
  head.version = version;
  if (version >= 2) {
    head.base = record.Varint();
    head.base_position = record.Signed();
    head.id = record.Varint();
  }
  MNEME_RETURN_IF_ERROR(record.End(kHeadName));
  return head;
}

std::string TemporaryPath(const std::string& path) { return path + ".tmp"; }
std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlabWriter>> SlabWriter::Create(FileSystem& files, std::string path,
                                                               const SlabHead& head) {
  const std::string record = EncodeHead(head);
  if (record.size() > kMaxHeadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": owner and name take ", record.size(),
                                                   " bytes, a snapshot has room for ",
                                                   kMaxHeadBytes));
  }
  std::unique_ptr<SlabWriter> writer(new SlabWriter(files, std::move(path)));
  MNEME_ASSIGN_OR_RETURN(writer->file_,
                         files.Open(TemporaryPath(writer->path_), OpenMode::kCreate));
  RecordWriter prefix;
  prefix.Fixed32(kSlabVersion).Fixed32(static_cast<uint32_t>(record.size()));
  MNEME_RETURN_IF_ERROR(
      writer->Write(AsBytes(absl::StrCat(kMagic, std::move(prefix).Values(), record))));
  return writer;
}

SlabWriter::~SlabWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  absl::Status removed = files_.Remove(TemporaryPath(path_));
  if (removed.ok()) removed = files_.SyncDirectory(FolderOf(path_));
  if (!removed.ok()) LOG(WARNING) << "unfinished snapshot left behind: " << removed.message();
}

absl::Status SlabWriter::Write(std::span<const std::byte> bytes) {
  return Write(bytes, Crc32c(0, bytes));
}

absl::Status SlabWriter::Write(std::span<const std::byte> bytes, uint32_t crc) {
  file_crc_ = ConcatCrc32c(file_crc_, crc, bytes.size());
  MNEME_RETURN_IF_ERROR(file_->Write(offset_, bytes));
  offset_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

std::span<const std::byte> SlabWriter::Pack(std::span<const std::byte> raw) {
  packed_.resize(ZSTD_compressBound(kBlockBytes));
  const size_t size =
      ZSTD_compress(packed_.data(), packed_.size(), raw.data(), raw.size(), kZstdLevel);
  if (ZSTD_isError(size) != 0) return raw;
  const double most = kWorthPacking * static_cast<double>(raw.size());
  return static_cast<double>(size) < most ? std::span(packed_).first(size) : raw;
}

absl::Status SlabWriter::AddSection(absl::string_view name, std::span<const std::byte> bytes,
                                    bool compress) {
  Section section = {.name = std::string(name), .raw_bytes = bytes.size()};
  int as_they_are = 0;
  while (!bytes.empty()) {
    const std::span<const std::byte> raw = bytes.first(std::min(bytes.size(), kBlockBytes));
    bytes = bytes.subspan(raw.size());
    std::span<const std::byte> stored = raw;
    if (compress && as_they_are-- <= 0) {
      stored = Pack(raw);
      if (stored.data() == raw.data()) as_they_are = kBlocksUntilNextTry;
    }
    const uint32_t crc = Crc32c(0, stored);
    section.blocks.push_back(
        {.stored = stored.size(), .packed = stored.data() != raw.data(), .crc = crc});
    MNEME_RETURN_IF_ERROR(Write(stored, crc));
  }
  sections_.push_back(std::move(section));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SlabWriter::Finish() {
  RecordWriter index;
  index.Varint(sections_.size());
  for (const Section& section : sections_) {
    index.Varint(0).Bytes(section.name).Varint(section.raw_bytes).Varint(section.blocks.size());
    for (const Block& block : section.blocks) {
      index.Varint(block.stored).Varint(block.packed ? 1 : 0).Fixed32(block.crc);
    }
  }
  const std::string record = std::move(index).Seal(kIndexName);
  MNEME_RETURN_IF_ERROR(Write(AsBytes(record)));
  RecordWriter length;
  length.Fixed32(static_cast<uint32_t>(record.size()));
  MNEME_RETURN_IF_ERROR(Write(AsBytes(std::move(length).Values())));
  RecordWriter sum;
  sum.Fixed32(file_crc_);
  MNEME_RETURN_IF_ERROR(Write(AsBytes(absl::StrCat(std::move(sum).Values(), kEnd))));
  MNEME_RETURN_IF_ERROR(file_->Sync());
  MNEME_RETURN_IF_ERROR(files_.Rename(TemporaryPath(path_), path_));
  file_.reset();
  MNEME_RETURN_IF_ERROR(files_.SyncDirectory(FolderOf(path_)));
  return offset_;
}

absl::Status SlabReader::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat("snapshot ", path_, ": ", what));
}

absl::Status SlabReader::ReadExactly(int64_t offset, std::span<std::byte> bytes) const {
  MNEME_ASSIGN_OR_RETURN(const size_t count, file_->Read(offset, bytes));
  if (count == bytes.size()) return absl::OkStatus();
  return Damaged(absl::StrCat("ends at byte ", offset + static_cast<int64_t>(count), ", expected ",
                              offset + static_cast<int64_t>(bytes.size())));
}

absl::StatusOr<std::unique_ptr<SlabReader>> SlabReader::Open(FileSystem& files, std::string path,
                                                             SlabCheck check) {
  std::unique_ptr<SlabReader> reader(new SlabReader(std::move(path)));
  MNEME_ASSIGN_OR_RETURN(reader->file_, files.Open(reader->path_, OpenMode::kRead));
  MNEME_ASSIGN_OR_RETURN(reader->file_bytes_, reader->file_->Size());
  MNEME_RETURN_IF_ERROR(reader->ReadHead());

  // The tail says where the index begins, which has a sum of its own.
  const int64_t tail_begin = reader->file_bytes_ - static_cast<int64_t>(kTailBytes);
  if (tail_begin < reader->blocks_begin_) return reader->Damaged("ends before its blocks");
  std::byte tail[kTailBytes];
  MNEME_RETURN_IF_ERROR(reader->ReadExactly(tail_begin, tail));
  if (AsText(tail).substr(8) != kEnd) {
    return reader->Damaged(absl::StrCat("its last bytes are not ", kEnd, ": it is torn"));
  }
  RecordReader numbers(AsText(tail).substr(0, 8));
  const int64_t index_bytes = numbers.Fixed32();
  const uint32_t crc = numbers.Fixed32();
  reader->stored_.resize(kBlockBytes);
  if (check == SlabCheck::kAll) MNEME_RETURN_IF_ERROR(reader->CheckAll(tail_begin + 4, crc));
  const int64_t index_begin = tail_begin - index_bytes;
  if (index_begin < reader->blocks_begin_) {
    return reader->Damaged(absl::StrCat("an index of ", index_bytes, " bytes is longer than it"));
  }
  std::vector<std::byte> index(static_cast<size_t>(index_bytes));
  MNEME_RETURN_IF_ERROR(reader->ReadExactly(index_begin, index));
  MNEME_RETURN_IF_ERROR(reader->ReadIndex(AsText(index), index_begin));
  return reader;
}

absl::Status SlabReader::CheckAll(int64_t end, uint32_t expected) {
  uint32_t crc = 0;
  for (int64_t at = 0; at < end;) {
    const size_t count =
        static_cast<size_t>(std::min<int64_t>(end - at, static_cast<int64_t>(kBlockBytes)));
    const std::span<std::byte> bytes = std::span(stored_).first(count);
    MNEME_RETURN_IF_ERROR(ReadExactly(at, bytes));
    crc = Crc32c(crc, bytes);
    at += static_cast<int64_t>(count);
  }
  if (crc == expected) return absl::OkStatus();
  return Damaged(absl::StrCat("checksum ", absl::Hex(expected, absl::kZeroPad8),
                              " is stored, its bytes have ", absl::Hex(crc, absl::kZeroPad8)));
}

absl::StatusOr<SlabHead> SlabReader::HeadOf(FileSystem& files, std::string path) {
  SlabReader reader(std::move(path));
  MNEME_ASSIGN_OR_RETURN(reader.file_, files.Open(reader.path_, OpenMode::kRead));
  MNEME_ASSIGN_OR_RETURN(reader.file_bytes_, reader.file_->Size());
  MNEME_RETURN_IF_ERROR(reader.ReadHead());
  return std::move(reader.head_);
}

absl::Status SlabReader::ReadHead() {
  std::byte prefix[kPrefixBytes];
  if (file_bytes_ < static_cast<int64_t>(kPrefixBytes)) {
    return Damaged(absl::StrCat(file_bytes_, " bytes are no snapshot"));
  }
  MNEME_RETURN_IF_ERROR(ReadExactly(0, prefix));
  if (AsText(prefix).substr(0, kMagic.size()) != kMagic) {
    return Damaged(absl::StrCat("begins with other bytes than ", kMagic, ": it is no snapshot"));
  }
  RecordReader numbers(AsText(prefix).substr(kMagic.size()));
  const uint32_t version = numbers.Fixed32();
  const size_t head_bytes = numbers.Fixed32();
  if (version > kSlabVersion) {
    return absl::FailedPreconditionError(absl::StrCat("snapshot ", path_, ": is of version ",
                                                      version, ", this program reads up to ",
                                                      kSlabVersion));
  }
  if (version == 0) return Damaged("there is no version 0");
  if (head_bytes > kMaxHeadBytes) {
    return Damaged(
        absl::StrCat("a head of ", head_bytes, " bytes, expected at most ", kMaxHeadBytes));
  }
  std::vector<std::byte> record(head_bytes);
  MNEME_RETURN_IF_ERROR(ReadExactly(static_cast<int64_t>(kPrefixBytes), record));
  absl::StatusOr<SlabHead> head = DecodeHead(AsText(record), version);
  if (!head.ok()) return Damaged(head.status().message());
  head_ = *std::move(head);
  blocks_begin_ = static_cast<int64_t>(kPrefixBytes + head_bytes);
  return absl::OkStatus();
}

absl::Status SlabReader::ReadIndex(absl::string_view record, int64_t blocks_end) {
  absl::StatusOr<RecordReader> opened = RecordReader::Open(record, kIndexName);
  if (!opened.ok()) return Damaged(opened.status().message());
  RecordReader& index = *opened;
  int64_t offset = blocks_begin_;
  absl::flat_hash_set<std::string> names;
  const uint64_t sections = index.Count(/*bytes_each=*/4);
  for (uint64_t i = 0; i < sections; ++i) {
    const uint64_t kind = index.Varint();
    SlabSection section = {.name = std::string(index.Bytes()), .raw_bytes = index.Varint()};
    const uint64_t block_count = index.Count(/*bytes_each=*/6);
    if (kind != 0) {
      return Damaged(absl::StrCat("section ", section.name, " is of kind ", kind, ", expected 0"));
    }
    if (!names.insert(section.name).second) {
      return Damaged(absl::StrCat("has two sections ", section.name));
    }
    if (block_count != section.raw_bytes / kBlockBytes + (section.raw_bytes % kBlockBytes != 0)) {
      return Damaged(absl::StrCat("section ", section.name, ": ", section.raw_bytes, " bytes in ",
                                  block_count, " blocks"));
    }
    std::vector<Block> blocks;
    blocks.reserve(block_count);
    for (uint64_t left = section.raw_bytes; blocks.size() < block_count;) {
      Block block = {.offset = offset, .stored = index.Varint()};
      block.packed = index.Varint() != 0;
      block.crc = index.Fixed32();
      block.raw = std::min<uint64_t>(left, kBlockBytes);
      if (block.packed ? block.stored >= block.raw : block.stored != block.raw) {
        return Damaged(absl::StrCat("section ", section.name, ": a block of ", block.raw,
                                    " bytes is stored in ", block.stored));
      }
      left -= block.raw;
      offset += static_cast<int64_t>(block.stored);
      section.stored_bytes += block.stored;
      blocks.push_back(block);
    }
    blocks_.push_back(std::move(blocks));
    sections_.push_back(std::move(section));
  }
  const absl::Status end = index.End(kIndexName);
  if (!end.ok()) return Damaged(end.message());
  if (offset != blocks_end) {
    return Damaged(
        absl::StrCat("its blocks end at byte ", offset, ", its index begins at ", blocks_end));
  }
  return absl::OkStatus();
}

absl::Status SlabReader::CheckIdentity(const SlabIdentity& expected) const {
  const auto check = [&](absl::string_view what, uint64_t found, uint64_t wanted) {
    if (found == wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("snapshot ", path_, ": is of ", what, " ", absl::Hex(found, absl::kZeroPad16),
                     ", this server's is ", absl::Hex(wanted, absl::kZeroPad16)));
  };
  MNEME_RETURN_IF_ERROR(check("model identity", head_.identity.model, expected.model));
  MNEME_RETURN_IF_ERROR(check("state format", head_.identity.state_format, expected.state_format));
  return check("adapter", head_.identity.adapter, expected.adapter);
}

absl::Status SlabReader::ReadBlock(const Block& block, std::span<std::byte> out) {
  const std::span<std::byte> stored = block.packed ? std::span(stored_).first(block.stored) : out;
  MNEME_RETURN_IF_ERROR(ReadExactly(block.offset, stored));
  if (Crc32c(0, stored) != block.crc) {
    return Damaged(absl::StrCat("the block at byte ", block.offset, " has another checksum"));
  }
  if (!block.packed) return absl::OkStatus();
  const size_t size = ZSTD_decompress(out.data(), out.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) != 0 || size != out.size()) {
    return Damaged(absl::StrCat("zstd cannot unpack the block at byte ", block.offset));
  }
  return absl::OkStatus();
}

absl::Status SlabReader::ReadSection(absl::string_view name, std::span<std::byte> bytes) {
  for (size_t i = 0; i < sections_.size(); ++i) {
    if (sections_[i].name != name) continue;
    if (sections_[i].raw_bytes != bytes.size()) {
      return absl::InvalidArgumentError(absl::StrCat("snapshot ", path_, ": section ", name,
                                                     " has ", sections_[i].raw_bytes,
                                                     " bytes, expected ", bytes.size()));
    }
    for (const Block& block : blocks_[i]) {
      MNEME_RETURN_IF_ERROR(ReadBlock(block, bytes.first(block.raw)));
      bytes = bytes.subspan(block.raw);
    }
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("snapshot ", path_, ": has no section ", name));
}

}  // namespace mneme
