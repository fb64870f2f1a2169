// Safetensors files: 8 bytes of header length, a JSON header with the name, element type, shape and
// place of each tensor, then the tensors' bytes.
//
// Nothing of a file is believed before it is checked: the header's length, every type, shape and
// offset (products are computed with overflow checks), names that occur twice, tensors that overlap
// and bytes that belong to nothing: as the format demands, the tensors cover the data without
// holes. All errors are INVALID_ARGUMENT and name the file and the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mapped_file.h"
#include "kernels/tensor_view.h"

namespace mneme {

struct SafetensorsTensor {
  std::string name;
  std::string dtype_name;      // as in the file: "BF16"
  std::optional<DType> dtype;  // unset: a type that no kernel takes ("I16", "F8_E4M3", ...)
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin = 0, end = 0;  // bytes from the start of the file

  int64_t bytes() const { return end - begin; }
  int64_t elements() const;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
  // The first bytes that belong to no tensor, as a message; empty: there are none.
  std::string hole;

  // Null if there is none of this name.
  const SafetensorsTensor* Find(absl::string_view name) const;
};

// Whether bytes that belong to no tensor are an error at once. Who knows which tensors there should
// be can say more about a hole, and takes the error upon itself.
enum class Holes { kRefused, kReported };

// `path` is for messages only.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file,
                                                   absl::string_view path,
                                                   Holes holes = Holes::kRefused);

// A mapped file with its header. Movable; the mapped bytes stay where they are.
class SafetensorsFile {
 public:
  // Errors of MappedFile::Open and ParseSafetensors.
  static absl::StatusOr<SafetensorsFile> Open(absl::string_view path,
                                              Holes holes = Holes::kRefused);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  const MappedFile& file() const { return file_; }

  // The tensor's bytes, little-endian, row-major. Not necessarily aligned to the element size.
  std::span<const std::byte> Bytes(const SafetensorsTensor& tensor) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace mneme
