#include "tools/memory_norms.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/float16.h"

namespace mneme {
namespace {

double SumOfSquares(const std::byte* data, int64_t elements, DType dtype) {
  double sum = 0;
  for (int64_t i = 0; i < elements; ++i) {
    double value = 0;
    if (dtype == DType::kF64) {
      std::memcpy(&value, data + 8 * i, 8);
    } else if (dtype == DType::kF32) {
      float f32;
      std::memcpy(&f32, data + 4 * i, 4);
      value = f32;
    } else {
      uint16_t f16;
      std::memcpy(&f16, data + 2 * i, 2);
      value = F32FromF16(f16);
    }
    sum += value * value;
  }
  return sum;
}

// The same for rows of int8, each of `pitch` bytes, of which the last are its scale.
double SumOfScaledSquares(const std::byte* data, int64_t bytes, int64_t pitch) {
  const int64_t elements = pitch - static_cast<int64_t>(sizeof(float));
  double sum = 0;
  for (int64_t at = 0; at < bytes; at += pitch) {
    int64_t squares = 0;
    for (int64_t i = 0; i < elements; ++i) {
      const int value = static_cast<int8_t>(data[at + i]);
      squares += value * value;
    }
    float scale;
    std::memcpy(&scale, data + at + elements, sizeof(scale));
    sum += double{scale} * scale * static_cast<double>(squares);
  }
  return sum;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<double>>> MemoryNorms(ToolRunner& tool, int slot) {
  MNEME_RETURN_IF_ERROR(tool.runner->Settle(slot));
  std::vector<std::byte> slab(static_cast<size_t>(tool.pool->slab_bytes()));
  tool.backend->CopyToHost(slab.data(), tool.pool->slabs() + slot * tool.pool->slab_bytes(),
                           tool.pool->slab_bytes());
  MNEME_RETURN_IF_ERROR(tool.backend->Synchronize());
  std::vector<std::vector<double>> norms;
  const std::byte* written = nullptr;  // of the layer: its flags lie in front of its matrices
  for (const StateField& field : tool.model->state_layout().fields()) {
    const std::byte* data = slab.data() + field.offset;
    if (absl::EndsWith(field.name, ".written")) written = data;
    if (!absl::EndsWith(field.name, ".memory")) continue;
    if (written == nullptr) {
      return absl::InternalError(absl::StrCat(field.name, " has no flags in front of it"));
    }
    std::vector<double>& of_layer = norms.emplace_back();
    for (int64_t m = 0; m < field.shape[0]; ++m) {
      const int64_t bytes = field.memory_bytes();
      const std::byte* memory = data + m * bytes;
      if (written[m] == std::byte{0}) {
        of_layer.push_back(-1);
      } else if (field.dtype == DType::kI8) {
        of_layer.push_back(std::sqrt(SumOfScaledSquares(memory, bytes, field.shape[3])));
      } else {
        of_layer.push_back(
            std::sqrt(SumOfSquares(memory, bytes / SizeOf(field.dtype), field.dtype)));
      }
    }
  }
  return norms;
}

}  // namespace mneme
