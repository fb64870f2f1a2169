#include "models/safetensors_writer.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// Tensors of a fresh file begin where any element type and vector load is aligned.
constexpr size_t kHeaderAlignment = 64;

std::string PartialPath(absl::string_view path) { return absl::StrCat(path, ".partial"); }

absl::Status SystemError(absl::string_view what, absl::string_view path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

}  // namespace

absl::string_view SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kU16:
      return "U16";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
  }
  return "?";
}

int64_t SafetensorsSpec::bytes() const {
  int64_t n = SizeOf(dtype);
  for (const int64_t dim : shape) n *= dim;
  return n;
}

std::string SafetensorsHeaderBytes(std::span<const SafetensorsSpec> specs,
                                   const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const SafetensorsSpec& spec : specs) {
    header[spec.name] = {{"dtype", std::string(SafetensorsName(spec.dtype))},
                         {"shape", spec.shape},
                         {"data_offsets", {offset, offset + spec.bytes()}}};
    offset += spec.bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  uint64_t length = text.size();
  while ((sizeof(length) + length) % kHeaderAlignment != 0) ++length;
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  absl::StrAppend(&bytes, text, std::string(length - text.size(), ' '));
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::FILE* file, int64_t data_bytes)
    : path_(std::move(path)), file_(file), data_bytes_(data_bytes) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(PartialPath(path_).c_str());
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    absl::string_view path, std::span<const SafetensorsSpec> specs,
    const std::map<std::string, std::string>& metadata) {
  int64_t data_bytes = 0;
  std::set<absl::string_view> names;
  for (const SafetensorsSpec& spec : specs) {
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", spec.name, "\" is to be written twice"));
    }
    data_bytes += spec.bytes();
  }
  // The finished file is renamed to `path`, which must not do away with a device or a folder.
  std::error_code ignored;
  const std::filesystem::file_status target = std::filesystem::status(std::string(path), ignored);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  std::FILE* file = std::fopen(PartialPath(path).c_str(), "wb");
  if (file == nullptr) return SystemError("create", PartialPath(path));
  auto writer = absl::WrapUnique(new SafetensorsWriter(std::string(path), file, data_bytes));
  const std::string header = SafetensorsHeaderBytes(specs, metadata);
  if (std::fwrite(header.data(), 1, header.size(), file) != header.size()) {
    return SystemError("write", PartialPath(path));
  }
  return writer;
}

absl::Status SafetensorsWriter::Write(std::span<const std::byte> bytes) {
  if (file_ == nullptr) return absl::FailedPreconditionError(absl::StrCat(path_, ": is finished"));
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size > data_bytes_ - written_bytes_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": more than the declared ", data_bytes_, " bytes of tensors"));
  }
  if (bytes.empty()) return absl::OkStatus();  // whose data() may be null
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) {
    return SystemError("write", PartialPath(path_));
  }
  written_bytes_ += size;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (file_ == nullptr || written_bytes_ != data_bytes_) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": ", written_bytes_, " bytes of tensors written, expected ", data_bytes_));
  }
  const int closed = std::fclose(std::exchange(file_, nullptr));
  const std::string partial = PartialPath(path_);
  if (closed != 0 || std::rename(partial.c_str(), path_.c_str()) != 0) {
    const absl::Status status = SystemError("write", path_);
    std::remove(partial.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace mneme
