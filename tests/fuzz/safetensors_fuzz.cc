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

// What was accepted must be usable: every tensor's bytes inside the file, disjoint, and as many as
// its shape says.
void Check(std::span<const std::byte> file) {
  const auto header = ParseSafetensors(file, "input");
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return;
  }
  std::vector<uint8_t> used(file.size());
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
