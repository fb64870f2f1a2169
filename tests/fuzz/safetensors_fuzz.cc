// Files that claim to be safetensors: as they are, and as a header whose length is right, which
// gets the input past the first check.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "models/safetensors.h"

namespace mneme {
namespace {

// A header that was accepted must be usable: every tensor's bytes inside the file, disjoint, as
// many as its shape says, and together all there are after the header.
void Check(std::span<const std::byte> file) {
  const auto header = ParseSafetensors(file, "input");
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return;
  }
  std::vector<uint8_t> used(file.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  for (size_t i = 0; i < sizeof(header_bytes) + header_bytes; ++i) used[i] = 1;
  for (const SafetensorsTensor& tensor : header->tensors) {
    if (tensor.begin < 0 || tensor.end > static_cast<int64_t>(file.size())) std::abort();
    if (tensor.dtype.has_value() && tensor.bytes() != tensor.elements() * SizeOf(*tensor.dtype)) {
      std::abort();
    }
    for (int64_t i = tensor.begin; i < tensor.end; ++i) {
      if (used[static_cast<size_t>(i)]++) std::abort();
    }
    if (header->Find(tensor.name) != &tensor) std::abort();
  }
  for (const uint8_t is_used : used) {
    if (!is_used) std::abort();
  }
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mneme::Check(std::as_bytes(std::span(data, size)));
  // The same bytes as a header, followed by as much data as its last byte says.
  const size_t data_bytes = size == 0 ? 0 : 32 * (data[size - 1] % 4);
  std::vector<std::byte> file(sizeof(uint64_t) + size + data_bytes);
  const uint64_t length = size;
  std::memcpy(file.data(), &length, sizeof(length));
  if (size > 0) std::memcpy(file.data() + sizeof(length), data, size);
  mneme::Check(file);
  return 0;
}
