// Writes safetensors files of known contents, tensor by tensor, without holding them in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor_view.h"

namespace mneme {

// A tensor of a file to be written, whose bytes lie in the order of its specs.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

// The format's name of an element type: "BF16".
absl::string_view SafetensorsName(DType dtype);

// The first bytes of a file, up to its first tensor: tensors lie in the order of `specs`, whose
// names differ, and `metadata` stands in front of them. As long as a multiple of 64.
std::string SafetensorsHeaderBytes(std::span<const SafetensorsSpec> specs,
                                   const std::map<std::string, std::string>& metadata);

// Writes to "<path>.partial" and renames it on Finish(), so that nobody ever reads half a file; an
// unfinished one is removed. Errors name the path and what the system said.
class SafetensorsWriter {
 public:
  // INVALID_ARGUMENT if two specs share a name.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      absl::string_view path, std::span<const SafetensorsSpec> specs,
      const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the data section: any part of a tensor, or several at once.
  absl::Status Write(std::span<const std::byte> bytes);

  // FAILED_PRECONDITION unless exactly the bytes of the specs were written.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, std::FILE* file, int64_t data_bytes);

  const std::string path_;
  std::FILE* file_;
  const int64_t data_bytes_;
  int64_t written_bytes_ = 0;
};

}  // namespace mneme
